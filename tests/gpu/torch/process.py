"""What a process may do with GLake in it beside allocating: die, end with tensors alive, start late, pause; and what an allocation costs.

usage: process.py       needs a GPU, torch, and the package `glake` on PYTHONPATH
"""
import os
import signal
import subprocess
import sys
import time

HEAD = """
import os, sys, time, torch
from glake import torch_adapter
def start():
    outcome = torch_adapter.install()
    assert outcome.how == "adapter", outcome
"""


def child(body, kill_after=None, timeout=40):
    process = subprocess.Popen([sys.executable, "-c", HEAD + body], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if kill_after is not None:
        line = process.stdout.readline()
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        return line.strip()
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, (process.returncode, out[-600:])
    return out.strip()


def used():
    import ctypes

    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    return memory[2]


def case(name, body):
    began = time.perf_counter()
    try:
        print(f"ok   {name}: {body()}  [{time.perf_counter() - began:.1f} s]", flush=True)
    except Exception as e:  # noqa: BLE001 - the next case shall run
        print(f"FAIL {name}: {type(e).__name__}: {str(e)[:900]}", flush=True)


def killed():
    before = used()
    said = child(
        """
start()
keep = [torch.ones(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(40)]
torch.cuda.synchronize()
print("running", flush=True)
while True:
    keep[int(time.time() * 1e6) % 40] = torch.ones((200 << 20) + int(time.time() * 1e6) % (100 << 20), dtype=torch.uint8, device="cuda")
""",
        kill_after=0.5,
    )
    for _ in range(50):
        if used() <= before + (64 << 20):
            break
        time.sleep(0.1)
    after = used()
    assert said == "running" and after <= before + (64 << 20), (said, before, after)
    return f"10 GiB held, killed while it allocated: the GPU's memory in use is {after >> 20} MiB as before ({before >> 20})"


def exit_order():
    return child(
        """
start()
class Late:
    def __init__(self, t): self.t = t
    def __del__(self): self.t = None
import builtins
builtins.kept = Late(torch.ones(64 << 20, device="cuda"))
side = torch.cuda.Stream()
other = torch.ones(64 << 20, device="cuda")
with torch.cuda.stream(side): other.mul_(2)
other.record_stream(side)
print("ended with tensors in builtins and on a side stream")
"""
    )


def late():
    return child(
        """
a = torch.ones(1 << 20, device="cuda")
b = torch.randn(1024, 1024, device="cuda")
before = torch.cuda.memory_allocated()
start()
assert torch.cuda.memory_allocated() == before
c = b @ b + a[0]
import glake
glake.init(quiet=True)
with glake.disabled():
    d = torch.ones(50 << 20, device="cuda")
e = torch.ones(50 << 20, device="cuda")
shown = {s["address"]: s["is_expandable"] for s in torch.cuda.memory_snapshot()}
def ours(t): return any(x and a <= t.data_ptr() for a, x in shown.items() if a <= t.data_ptr() < a + (1 << 40) and a == max(k for k in shown if k <= t.data_ptr()))
assert not ours(d) and ours(e)
del a, b, c, d, e
assert torch.cuda.memory_allocated() < before + (32 << 20)
print("tensors from before live on; glake.disabled() gives torch's memory inside")
"""
    )


SPEED = """
torch.cuda.init()
if {glake}: start()
def rate(size):
    for _ in range(2000): torch.empty(size, dtype=torch.uint8, device="cuda")
    best = 1e9
    for _ in range(5):
        t = time.perf_counter()
        for _ in range(20000): torch.empty(size, dtype=torch.uint8, device="cuda")
        best = min(best, (time.perf_counter() - t) / 20000)
    return round(best * 1e9)
print({{n: rate(n) for n in (4096, 1 << 20, 32 << 20)}})
"""


def speed():
    plain, glake = (child(SPEED.format(glake=g)) for g in (False, True))
    return f"torch.empty and its free, ns by size: torch {plain}, GLake {glake}"


for name, body in [
    ("kill -9 while allocating", killed),
    ("tensors alive at exit", exit_order),
    ("installed after tensors exist", late),
    ("cost of an allocation", speed),
]:
    case(name, body)
