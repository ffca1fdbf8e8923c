"""Each API of torch.cuda that touches memory, with GLake below it. One line per API: "ok NAME: how it was seen" or "FAIL NAME: why".

usage: api.py [PART...]     needs a GPU, torch, and the package `glake` on PYTHONPATH
"""
import gc
import os
import subprocess
import sys
import threading
import time

START = time.perf_counter()
import torch

from glake import torch_adapter

MIB = 1 << 20
failed = []


def case(name):
    def run(body):
        # A spawned child imports this file for `receiver` alone.
        if __name__ != "__main__" or (len(sys.argv) > 1 and name not in sys.argv[1:]):
            return body
        began = time.perf_counter()
        try:
            how = body()
            print(f"ok   {name}: {how}  [{time.perf_counter() - began:.2f} s]", flush=True)
        except BaseException as e:  # noqa: B902 - the next case shall run
            failed.append(name)
            text = str(e).replace("\n", " ")
            at = e.__traceback__
            while at.tb_next is not None:
                at = at.tb_next
            print(f"FAIL {name}: {type(e).__name__} at line {at.tb_lineno}: {text[:600]}", flush=True)
        gc.collect()
        return body

    return run


def clean():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def is_glakes(tensor):
    return core_owns(tensor.data_ptr())


def core_owns(address):
    # A snapshot shows GLake's memory as expandable segments; here torch's own allocator runs without them.
    return any(
        s["is_expandable"] and s["address"] <= address < s["address"] + s["total_size"] for s in torch.cuda.memory_snapshot()
    )


@case("install")
def _():
    outcome = torch_adapter.install()
    assert outcome.how == "adapter", outcome
    torch.cuda.init()
    x = torch.ones(1 << 20, device="cuda")
    assert is_glakes(x)
    return f"{outcome}, {time.perf_counter() - START:.1f} s since start"


@case("memory_stats")
def _():
    clean()
    before = torch.cuda.memory_allocated()
    a = torch.empty(100 * MIB + 1, dtype=torch.uint8, device="cuda")
    s = torch.cuda.memory_stats()
    assert torch.cuda.memory_allocated() - before == 100 * MIB + 512, torch.cuda.memory_allocated() - before
    b = torch.empty(1000, dtype=torch.uint8, device="cuda")
    s = torch.cuda.memory_stats()
    assert s["allocated_bytes.all.current"] - before == 100 * MIB + 512 + 1024
    assert s["allocation.all.current"] >= 2
    assert s["requested_bytes.all.allocated"] == 100 * MIB + 1 + 1000, s["requested_bytes.all.allocated"]
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del a, b
    assert torch.cuda.memory_allocated() == before
    return "allocated, requested, counts equal what was asked for, to the byte"


@case("peaks and resets")
def _():
    clean()
    base = torch.cuda.memory_allocated()
    a = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    del a
    assert torch.cuda.max_memory_allocated() == base + 200 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == base
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] == 0
    return "max_memory_allocated exact before and after reset"


@case("mem_get_info agrees")
def _():
    clean()
    free0, total = torch.cuda.mem_get_info()
    reserved0 = torch.cuda.memory_reserved()
    a = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    free1, _ = torch.cuda.mem_get_info()
    grown = torch.cuda.memory_reserved() - reserved0
    assert abs((free0 - free1) - grown) <= 0.01 * grown, (free0 - free1, grown)
    del a
    return f"the driver lost {(free0 - free1) / MIB:.0f} MiB, memory_reserved grew {grown / MIB:.0f} MiB"


@case("memory_summary")
def _():
    text = torch.cuda.memory_summary()
    assert "Allocated memory" in text and "GPU reserved memory" in text
    return "prints"


@case("torch.accelerator")
def _():
    a = torch.empty(MIB, device="cuda")
    seen = torch.accelerator.memory_allocated()
    assert seen == torch.cuda.memory_allocated(), (seen, torch.cuda.memory_allocated())
    return "the same figures by torch.accelerator"


@case("snapshot")
def _():
    keep = [torch.empty(n * 700001, dtype=torch.uint8, device="cuda") for n in range(1, 30)]
    del keep[::3]
    segments = torch.cuda.memory_snapshot()
    allocated = sum(b["size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated")
    assert allocated == torch.cuda.memory_allocated(), (allocated, torch.cuda.memory_allocated())
    for s in segments:
        assert sum(b["size"] for b in s["blocks"]) == s["total_size"]
    mapped = sum(s["total_size"] for s in segments)
    assert mapped <= torch.cuda.memory_reserved() * 1.0001 + MIB, (mapped, torch.cuda.memory_reserved())
    return f"{len(segments)} segments, blocks sum to memory_allocated; mapped {mapped / MIB:.0f} of {torch.cuda.memory_reserved() / MIB:.0f} MiB reserved"


@case("history with stacks")
def _():
    torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python")

    def a_function_with_a_name():
        return torch.empty(33 * MIB, dtype=torch.uint8, device="cuda")

    x = a_function_with_a_name()
    snap = torch.cuda.memory._snapshot()
    block = next(b for s in snap["segments"] for b in s["blocks"] if b["requested_size"] == 33 * MIB and b["state"] == "active_allocated")
    assert any(f["name"] == "a_function_with_a_name" for f in block["frames"]), block["frames"][:3]
    address = x.data_ptr()
    del x
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    mine = [e["action"] for e in trace if e.get("addr") == address]
    assert mine == ["alloc", "free_requested", "free_completed"], mine
    entry = next(e for e in trace if e.get("addr") == address)
    assert any(f["name"] == "a_function_with_a_name" for f in entry["frames"])
    times = [e["time_us"] for e in trace]
    assert times == sorted(times) and abs(times[-1] / 1e6 - time.time()) < 5
    torch.cuda.memory._dump_snapshot("/tmp/snap.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)
    return f"block and trace carry the Python stack; {len(trace)} entries in time order; dump {os.path.getsize('/tmp/snap.pickle')} bytes"


@case("OutOfMemoryError")
def _():
    clean()
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *a: seen.append(a))
    ooms = torch.cuda.memory_stats()["num_ooms"]
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        raise AssertionError("1 TiB was handed out")
    except torch.OutOfMemoryError as e:
        text = str(e)
    assert text.startswith("CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of"), text
    assert "is allocated by PyTorch, and" in text
    assert len(seen) == 1 and torch.cuda.memory_stats()["num_ooms"] == ooms + 1, (seen, torch.cuda.memory_stats()["num_ooms"])
    assert torch.ones(10, device="cuda").sum().item() == 10
    return text.replace("\n", " ")


@case("record_stream race")
def _():
    side = torch.cuda.Stream()
    wrong = 0
    for round in range(30):
        x = torch.full((16 * MIB,), 1.0, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            total = x.sum()
            x.record_stream(side)
        del x
        for _ in range(4):  # the memory must not come back while `side` reads it
            torch.full((16 * MIB,), 3.0, device="cuda")
        side.synchronize()
        wrong += total.item() != 16 * MIB
    assert wrong == 0, f"{wrong} of 30 sums are wrong"
    return "30 rounds of reading on a side stream while the tensor is freed and rewritten: every sum right"


@case("same stream reuse under run-ahead")
def _():
    wrong = 0
    for round in range(40):
        x = torch.full((64 * MIB,), float(round), device="cuda")
        y = x * 2
        del x
        z = torch.full((80 * MIB,), -1.0, device="cuda")
        wrong += not bool((y == 2.0 * round).all())
        del y, z
    assert wrong == 0
    return "40 rounds of 256 to 320 MiB freed and taken while the GPU is behind"


@case("two streams")
def _():
    streams = [torch.cuda.Stream() for _ in range(2)]
    out = [None, None]

    def work(i):
        with torch.cuda.stream(streams[i]):
            total = torch.zeros((), device="cuda", dtype=torch.float64)
            for n in range(150):
                a = torch.full(((n % 13 + 1) * MIB,), float(i + 1), device="cuda")
                total += a.double().mean()
            streams[i].synchronize()
            out[i] = total.item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert out == [150.0, 300.0], out
    return "two threads on two streams, 150 tensors each, sums exact"


@case("empty_cache")
def _():
    clean()
    a = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    free, _ = torch.cuda.mem_get_info()
    del a
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info()
    assert after - free >= 7.9 * (1 << 30), (after - free) / MIB
    return f"{(after - free) / MIB:.0f} of 8192 MiB are the driver's again; reserved {torch.cuda.memory_reserved() / MIB:.0f} MiB"


@case("set_per_process_memory_fraction")
def _():
    clean()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        a = torch.empty(int(total * 0.09), dtype=torch.uint8, device="cuda")
        try:
            torch.empty(int(total * 0.05), dtype=torch.uint8, device="cuda")
            raise AssertionError("more than the fraction was handed out")
        except torch.OutOfMemoryError as e:
            assert "allowed; " in str(e), str(e)
        del a
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            b = torch.empty(int(total * 0.06), dtype=torch.uint8, device="cuda")
        try:
            torch.empty(int(total * 0.06), dtype=torch.uint8, device="cuda")
            raise AssertionError("pool and heap together passed the fraction")
        except torch.OutOfMemoryError:
            pass
        del b, pool
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(int(total * 0.3), dtype=torch.uint8, device="cuda")
    return "one budget for GLake's memory and torch's pools"


@case("MemPool")
def _():
    clean()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = torch.full((128 * MIB // 4,), 2.0, device="cuda")
    b = torch.full((128 * MIB // 4,), 3.0, device="cuda")
    assert not is_glakes(a) and is_glakes(b)
    assert (a + b).sum().item() == 5.0 * (128 * MIB // 4)
    assert sum(s["total_size"] for s in pool.snapshot()) >= 128 * MIB
    held = torch.cuda.memory_allocated()
    del a
    assert held - torch.cuda.memory_allocated() == 128 * MIB
    del pool
    return "its tensors are torch's, the others GLake's; both in memory_allocated"


@case("graph capture")
def _():
    clean()
    n = 64 * MIB  # 256 MiB tensors
    a = torch.full((n,), 1.0, device="cuda")
    g = torch.cuda.CUDAGraph()
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        (a * 2 + 1).sum()
    torch.cuda.current_stream().wait_stream(s)
    freed = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.graph(g):
        b = a * 2
        c = b + 1
        del freed  # a free of GLake's memory under capture
        out = c.sum()
    assert not is_glakes(b) and is_glakes(a)
    for value in (3.0, 5.0):
        a.fill_(value)
        junk = [torch.full((n,), -1.0, device="cuda") for _ in range(4)]
        g.replay()
        torch.cuda.synchronize()
        assert abs(out.item() - (value * 2 + 1) * n) < 1e-3 * n, out.item()
        del junk
    before = torch.cuda.memory_reserved()
    del b, c, out, g
    clean()
    assert torch.cuda.memory_reserved() < before
    return f"256 MiB tensors: captured, replayed twice amid other work, released ({(before - torch.cuda.memory_reserved()) / MIB:.0f} MiB back)"


@case("torch.compile")
def _():
    f = torch.compile(lambda z: torch.relu(z) * 2 + z.sin())
    x = torch.randn(8 * MIB, device="cuda")
    assert torch.allclose(f(x), torch.relu(x) * 2 + x.sin(), atol=1e-5)
    return "default mode"


@case("cudagraph trees")
def _():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 2048)).cuda()
    fast = torch.compile(net, mode="reduce-overhead")
    x = torch.randn(8192, 2048, device="cuda")  # 64 MiB
    want = None
    for step in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        y = fast(x)
        loss = y.square().mean()
        loss.backward()
        got = (loss.item(), net[0].weight.grad.double().sum().item())
        net.zero_grad(set_to_none=True)
        want = want or got
        assert abs(got[0] - want[0]) < 1e-6 and abs(got[1] - want[1]) < 1e-2, (got, want)
        del y, loss
    return f"mode='reduce-overhead', forward and backward, 6 steps, loss {want[0]:.6f} each"


@case("profiler")
def _():
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        keep = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    seen = max(e.device_memory_usage for e in p.key_averages())
    assert seen == 5 * MIB, seen
    return "profile_memory sees the tensor's bytes"


def receiver(q, back, with_glake):
    if with_glake:
        assert torch_adapter.install().how == "adapter"
    for _ in range(2):
        try:
            t = q.get(timeout=40)
            back.put((t.numel(), t.double().sum().item()))
            t.add_(1)
            torch.cuda.synchronize()
            del t
            gc.collect()
            back.put("done")
        except BaseException as e:  # noqa: B902
            back.put(f"{type(e).__name__}: {e}")
            return


def share(with_glake):
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    q, back = context.Queue(), context.Queue()
    child = context.Process(target=receiver, args=(q, back, with_glake))
    child.start()
    seen = []
    for n in (1000, 512 * MIB // 4):
        t = torch.full((n,), 2.0, device="cuda")
        q.put(t)
        got = back.get(timeout=60)
        seen.append(got)
        if isinstance(got, str):
            break
        assert got == (n, 2.0 * n), got
        assert back.get(timeout=40) == "done"
        torch.cuda.synchronize()
        assert t[0].item() == 3.0 and t[-1].item() == 3.0
    child.join(30)
    if child.is_alive():
        child.kill()
    return seen


@case("CUDA IPC")
def _():
    return f"a small and a 512 MiB tensor read and changed by another process: {share(True)}"


@case("CUDA IPC to a torch without GLake")
def _():
    seen = share(False)
    assert isinstance(seen[-1], str), seen
    return f"refused there: {seen[-1][:200]}"


@case("fork after init")
def _():
    x = torch.ones(MIB, device="cuda")
    pid = os.fork()
    if pid == 0:
        del x
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    assert x.sum().item() == MIB
    return "the child drops its tensors and ends; the parent goes on"


# Last: torch's random generators stay in capture mode after a capture that failed, with any allocator.
@case("a failed capture")
def _():
    g = torch.cuda.CUDAGraph()
    a = torch.ones(MIB, device="cuda")
    try:
        with torch.cuda.graph(g):
            b = a * 2
            b.sum().item()  # not allowed under capture
        raise AssertionError("the capture did not fail")
    except RuntimeError:
        pass
    del g
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del x
    assert torch.cuda.memory_allocated() <= before
    reserved = torch.cuda.memory_reserved()
    for _ in range(50):
        x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del x
    assert torch.cuda.memory_reserved() <= reserved + 64 * MIB
    return "frees go on coming back"


if __name__ == "__main__":
    print("all passed" if not failed else "failed: " + ", ".join(failed), flush=True)
    keep_until_exit = torch.ones(64 * MIB, device="cuda")  # a tensor that outlives everything
    sys.exit(1 if failed else 0)
