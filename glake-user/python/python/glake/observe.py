"""``GLAKE_MODE=observe``: torch's own allocator serves; at the end GLake says what it would have done.

torch records its allocations without stacks. At exit the recording is replayed by GLake's models, in a process of its own, and three
lines go to standard error.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile

#: Events that torch keeps; about 200 bytes each while the program runs.
_MOST_EVENTS = 2_000_000


def begin() -> str:
    """Begins to record as soon as CUDA is in use; says what it does."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    torch.cuda._lazy_call(_record)
    return "torch's own allocator serves; the report comes at exit"


def _record() -> None:
    import torch

    torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=_MOST_EVENTS)
    atexit.register(_report)


def _report() -> None:
    from . import _core, ranks

    if not ranks.is_first():
        return
    path = None
    try:
        import torch

        handle, path = tempfile.mkstemp(prefix="glake-observe-", suffix=".pickle")
        os.close(handle)
        torch.cuda.memory._dump_snapshot(path)
        for line in summary(path):
            _core.say_once(line, line)
    except Exception as error:  # noqa: BLE001  (the program's end is not ours to spoil)
        _core.say_once("observe", f"observe: no report: {type(error).__name__}: {error}")
    finally:
        if path is not None and os.path.exists(path):
            os.remove(path)


def summary(path: str):
    """Three lines about the recording in ``path``."""
    words = [sys.executable, "-m", "glake", "replay-alloc", path, "--json"]
    environment = dict(os.environ, GLAKE_DISABLE="1")
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr.strip() or f"replay ended with {done.returncode}")
    answer = json.loads(done.stdout)
    models = {model["name"]: model for model in answer["models"]}
    ours = models["glake"]
    yield f"observe: peak allocated {_size(ours['peak_allocated_bytes'])}"
    others = [models[name] for name in ("default", "expandable_segments", "glake") if name in models]
    yield "observe: peak reserved, modelled: " + ", ".join(
        f"{m['name']} {_size(m['peak_reserved_bytes'])} ({100 * (m['allocated_to_reserved_ratio'] or 0):.1f} %)" for m in others
    )
    verdict = answer["verdict"]
    yield f"observe: {verdict if isinstance(verdict, str) else verdict.get('text', json.dumps(verdict))}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
