"""Plays the allocations of torch memory snapshots through torch's own allocators on the GPU of this machine.

usage: torch_replay.py SNAPSHOT.pickle[.xz]...

For each snapshot and each of torch's allocators (default, expandable segments, cudaMallocAsync) one process allocates
and frees the recorded sizes in the recorded order, as fast as it goes, and prints a line of JSON: peak allocated and
reserved bytes as torch counts them, and the time. No data is read from the snapshot but numbers and strings.
"""

import json
import lzma
import os
import pickle
import subprocess
import sys
import time

ALLOCATORS = {
    "default": "",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}


class Plain(pickle.Unpickler):
    """Snapshots hold dicts, lists, strings and numbers; a file that wants to import anything is refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"the snapshot wants to import {module}.{name}")


def events(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rb") as file:
        traces = Plain(file).load()["device_traces"]
    trace = max(traces, key=len)
    ids, plan = {}, []
    for entry in trace:
        if entry["action"] == "alloc":
            ids[entry["addr"]] = len(plan)
            plan.append((len(plan), entry["size"]))
        elif entry["action"] == "free_completed":
            block = ids.pop(entry["addr"], None)
            if block is not None:
                plan.append((block, None))
    return plan


def play(path, name):
    import torch

    plan = events(path)
    torch.empty(1, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    live = {}
    failed = None
    start = time.perf_counter()
    try:
        for block, size in plan:
            if size is None:
                live.pop(block, None)
            else:
                live[block] = torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        failed = str(error)[:200]
    seconds = time.perf_counter() - start
    stats = torch.cuda.memory_stats()
    allocated = stats.get("requested_bytes.all.peak") or stats["allocated_bytes.all.peak"]
    reserved = stats["reserved_bytes.all.peak"]
    line = {
        "trace": os.path.basename(path).split(".")[0],
        "allocator": name,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "allocated_to_reserved_ratio": round(allocated / reserved, 4),
        "seconds": round(seconds, 3),
        "failed": failed,
    }
    print(json.dumps(line), flush=True)


def main():
    if os.environ.get("GLAKE_REPLAY"):
        play(sys.argv[1], os.environ["GLAKE_REPLAY"])
        return
    for path in sys.argv[1:]:
        for name, settings in ALLOCATORS.items():
            env = dict(os.environ, GLAKE_REPLAY=name, PYTORCH_ALLOC_CONF=settings)
            env.pop("PYTORCH_CUDA_ALLOC_CONF", None)
            if not settings:
                env.pop("PYTORCH_ALLOC_CONF")
            subprocess.run([sys.executable, __file__, path], env=env, timeout=120, check=False)


if __name__ == "__main__":
    main()
