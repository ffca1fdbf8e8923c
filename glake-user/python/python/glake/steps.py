"""The steps of a training run, as ``glake ab`` wants to know them: their times, and at the end the memory's peaks.

Does nothing unless ``GLAKE_STEPS`` names a folder. A step ends when the first optimiser of the process has stepped, or where the
program calls ``glake.step()``; after ``GLAKE_STEPS_MOST`` steps the process ends itself with exit code 0.
"""

import atexit
import json
import os
import sys
import time

_folder = os.environ.get("GLAKE_STEPS", "")
_most = int(os.environ.get("GLAKE_STEPS_MOST", "0") or 0)
_times = []
_first_optimizer = None
_began = False


def begin() -> None:
    """Starts to watch, once torch is there."""
    global _began
    if not _folder or _began:
        return
    _began = True
    atexit.register(_write)
    try:
        from torch.optim.optimizer import register_optimizer_step_post_hook
    except ImportError:
        return
    register_optimizer_step_post_hook(_after_optimizer)


def _after_optimizer(optimizer, args, kwargs) -> None:
    global _first_optimizer
    if _first_optimizer is None:
        _first_optimizer = id(optimizer)
    if _first_optimizer == id(optimizer):
        mark()


def mark() -> None:
    """A step ends now."""
    if not _folder:
        return
    if not _began:
        begin()
    _times.append(time.perf_counter())
    if _most and len(_times) >= _most:
        sys.exit(0)


def _memory():
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    peaks = {}
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        if stats.get("reserved_bytes.all.peak", 0) == 0:
            continue
        peaks[str(device)] = {
            "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
            "peak_requested_bytes": stats.get("requested_bytes.all.peak", 0),
            "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
            "ooms": stats.get("num_ooms", 0),
        }
    return peaks


def _write() -> None:
    from . import ranks, state

    how = state()
    record = {
        "rank": ranks.rank(),
        "step_seconds": [b - a for a, b in zip(_times, _times[1:])],
        "gpus": _memory(),
        "state": list(how[:3]) if how else None,
    }
    path = os.path.join(_folder, f"{os.getpid()}.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(path + ".part", path)
