"""``glake ab``: the same command with and without GLake, in turn, and what differs.

Claims only what the intervals exclude. Steps end with the first optimiser's step, or with ``glake.step()``. Losses are read from the
command's output: every number that follows the word "loss".
"""

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Dict, List, Optional, Tuple

from . import activate

_LOSS = re.compile(r"loss['\"]?\s*[:=]?\s*([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))", re.IGNORECASE)
_DROPPED = 5


class Run:
    """One run of the command."""

    def __init__(self, glake: bool, code: int, records: List[dict], output: str):
        self.glake = glake
        self.code = code
        self.steps = [s for r in records for s in r["step_seconds"][_DROPPED:]]
        gpus = [g for r in records for g in r["gpus"].values()]
        self.reserved = sum(g["peak_reserved_bytes"] for g in gpus)
        self.allocated = sum(g["peak_allocated_bytes"] for g in gpus)
        self.ooms = sum(g["ooms"] for g in gpus) + ("OutOfMemoryError" in output and code != 0)
        self.losses = _LOSS.findall(output)
        self.states = sorted({tuple(r["state"]) for r in records if r["state"]})


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(
        prog="glake ab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Examples:\n  glake ab --steps 50 -- torchrun --nproc-per-node 8 train.py\n  glake ab --runs 2 --json -- python train.py",
    )
    out.add_argument("--steps", type=int, default=50, help="end each run after this many steps (default 50; 0: let it end by itself)")
    out.add_argument("--runs", type=int, default=4, help="runs each way (default 4)")
    out.add_argument("--json", action="store_true", help="the result as JSON")
    out.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")
    return out


def main(words: List[str]) -> int:
    """Runs it all; the exit code: 0 done, 1 a run failed, 2 wrong usage."""
    arguments = parser().parse_args(words)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command or arguments.runs < 1 or arguments.steps < 0:
        print("glake ab: give a command after --, at least one run and no negative steps", file=sys.stderr)
        return 2
    if os.environ.get("GLAKE_DISABLE", "") not in ("", "0", "false"):
        print("glake ab: GLAKE_DISABLE is set, so both ways would be the same; unset it", file=sys.stderr)
        return 2
    runs: List[Run] = []
    for turn in range(arguments.runs):
        for glake in (False, True):
            print(f"glake ab: run {len(runs) + 1} of {2 * arguments.runs}, GLake {'on' if glake else 'off'}", file=sys.stderr)
            runs.append(one_run(command, glake, arguments.steps))
            if runs[-1].code != 0 and turn == 0:
                print(f"glake ab: it ended with code {runs[-1].code}", file=sys.stderr)
    result = compare(runs)
    print(json.dumps(result) if arguments.json else text(result))
    return 0 if all(r.code == 0 for r in runs) else 1


def one_run(command: List[str], glake: bool, steps: int) -> Run:
    """Runs the command to its end, its output shown on standard error."""
    folder = tempfile.mkdtemp(prefix="glake-ab-")
    environment = dict(os.environ)
    environment.update(activate.variables(environment))
    environment.update(GLAKE_STEPS=folder, GLAKE_STEPS_MOST=str(steps), GLAKE_MODE="on" if glake else "off")
    try:
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []
        for line in child.stdout or ():
            sys.stderr.write(line)
            lines.append(line)
        code = child.wait()
        records = []
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    records.append(json.load(file))
        return Run(glake, code, records, "".join(lines))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def compare(runs: List[Run]) -> Dict:
    """What the runs say, side by side."""
    sides = {name: [r for r in runs if r.glake == on] for name, on in (("off", False), ("on", True))}
    result: Dict = {name: side(of) for name, of in sides.items()}
    result["reserved_ratio"] = ratio_of(result, "peak_reserved_bytes")
    turns = [(statistics.mean(off.steps), statistics.mean(on.steps)) for off, on in zip(sides["off"], sides["on"]) if off.steps and on.steps]
    result["step_ratio"] = interval(turns)
    losses = {tuple(r.losses) for r in runs}
    any_loss = any(r.losses for r in runs)
    result["loss_equal"] = (len(losses) == 1) if any_loss else None
    result["own_losses_differ"] = any_loss and len({tuple(r.losses) for r in sides["off"]}) > 1
    return result


def side(runs: List[Run]) -> Dict:
    """One side's figures."""
    steps = sorted(s for r in runs for s in r.steps)
    return {
        "runs": len(runs),
        "failed": sum(r.code != 0 for r in runs),
        "steps": len(steps),
        "peak_allocated_bytes": max((r.allocated for r in runs), default=0),
        "peak_reserved_bytes": max((r.reserved for r in runs), default=0),
        "ooms": sum(r.ooms for r in runs),
        "step_median_s": statistics.median(steps) if steps else None,
        "step_p95_s": steps[min(len(steps) - 1, int(0.95 * len(steps)))] if steps else None,
        "states": sorted({" ".join(map(str, s)) for r in runs for s in r.states}),
    }


def ratio_of(result: Dict, key: str) -> Optional[float]:
    """On over off."""
    off, on = result["off"][key], result["on"][key]
    return on / off if off and on else None


#: Student's t at 97.5 % by degrees of freedom, 1 to 30.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_STUDENT += (2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def interval(turns: List[Tuple[float, float]]) -> Optional[Dict]:
    """The time per step with GLake over that without, as the geometric mean of the turns, with its 95 % interval by Student's t over
    whole turns: neighbours in time are compared, so that a machine that slows down with the hours says nothing. ``None``: fewer than
    two turns."""
    if len(turns) < 2:
        return None
    logs = [math.log(on / off) for off, on in turns]
    freedom = len(logs) - 1
    half = _STUDENT[min(freedom, len(_STUDENT)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.mean(logs)
    low, high = math.exp(middle - half), math.exp(middle + half)
    claim = "slower" if low > 1 else "faster" if high < 1 else "no difference that the spread of the runs does not hide"
    return {"ratio": math.exp(middle), "low": low, "high": high, "claim": claim}


def text(result: Dict) -> str:
    """For people: the answer first."""
    lines = []
    step, reserved = result["step_ratio"], result["reserved_ratio"]
    memory = "unknown (no GPU memory was reported)" if reserved is None else f"{100 * reserved:.1f} % of the reserved memory"
    time = "unknown (fewer than two runs with steps each way)" if step is None else f"{step['claim']} ({step['ratio']:.4f} [{step['low']:.4f}, {step['high']:.4f}])"
    lines.append(f"WITH GLAKE  memory: {memory}; time per step: {time}")
    loss = {None: "no loss found in the output", True: "equal in every run", False: "not equal"}[result["loss_equal"]]
    if result["own_losses_differ"]:
        loss += " (nor between the runs without GLake: this program is not deterministic)"
    lines.append(f"LOSS        {loss}")
    lines.append(f"{'':12}{'off':>14}{'on':>14}")
    for name, key, show in (
        ("allocated", "peak_allocated_bytes", _gib),
        ("reserved", "peak_reserved_bytes", _gib),
        ("step median", "step_median_s", _ms),
        ("step p95", "step_p95_s", _ms),
        ("steps", "steps", str),
        ("OOMs", "ooms", str),
        ("failed runs", "failed", str),
    ):
        lines.append(f"{name:12}{show(result['off'][key]):>14}{show(result['on'][key]):>14}")
    for state in result["on"]["states"]:
        lines.append(f"GLAKE       {state}")
    lines.append(f"The first {_DROPPED} steps of each run are left out; the interval is over whole runs, turn by turn.")
    return "\n".join(lines)


def _gib(value: Optional[float]) -> str:
    return "unknown" if not value else f"{value / 2**30:.2f} GiB"


def _ms(value: Optional[float]) -> str:
    return "unknown" if value is None else f"{1000 * value:.1f} ms"
