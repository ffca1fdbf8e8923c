"""glake.load_safetensors beside safetensors.torch.load_file on a real GPU: the same tensors, and how fast.

    python weights.py [--gib 4] [--runs 5] [--folder /dev/shm]

Writes a file of that size, loads it by turns, compares every tensor bit by bit, and prints medians and the ratio.
"""

import argparse
import os
import statistics
import time

import torch
from safetensors.torch import load_file, save_file

import glake


def timed(call):
    torch.cuda.synchronize()
    begun, cpu = time.perf_counter(), time.process_time()
    tensors = call()
    torch.cuda.synchronize()
    return tensors, time.perf_counter() - begun, time.process_time() - cpu


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--gib", type=float, default=4.0)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--folder", default=".")
    args = options.parse_args()
    path = os.path.join(args.folder, "weights-test.safetensors")
    layers = max(1, int(args.gib * (1 << 30) / (64 << 20)))
    tensors = {f"layer.{i}.weight": torch.randn(8192, 4096, device="cuda").to(torch.bfloat16) for i in range(layers)}
    tensors |= {f"layer.{i}.norm": torch.randn(4097, device="cuda") for i in range(layers)}
    save_file(tensors, path)
    size = os.path.getsize(path)
    try:
        loaded, first, _ = timed(lambda: glake.load_safetensors(path, device="cuda"))
        for name, wanted in tensors.items():
            assert torch.equal(loaded[name], wanted), name
            assert loaded[name].data_ptr() % 512 == 0, name
        del loaded, tensors
        ours, theirs = [], []
        for _ in range(args.runs):
            for all_runs, call in (
                (theirs, lambda: load_file(path, device="cuda")),
                (ours, lambda: glake.load_safetensors(path, device="cuda")),
            ):
                result, seconds, cpu = timed(call)
                del result
                all_runs.append((size / seconds / 1e9, cpu / (size / 1e9)))
        mine, peer = (statistics.median(r[0] for r in runs) for runs in (ours, theirs))
        print(f"{size / 1e9:.2f} GB, every tensor equal; first call {size / first / 1e9:.1f} GB/s")
        for name, runs, rate in (("glake", ours, mine), ("safetensors", theirs, peer)):
            rates = " ".join(f"{r[0]:.1f}" for r in runs)
            print(f"{name:12} median {rate:.1f} GB/s ({rates})  CPU {statistics.median(r[1] for r in runs):.2f} s a GB")
        print(f"ratio {mine / peer:.2f}")
    finally:
        os.remove(path)


if __name__ == "__main__":
    main()
