"""Matrix products (cuBLAS, bf16) on stitched against contiguous memory.

usage: matmul_stitched.py [SIDE...]

Two square matrices and their product lie in one range of device memory: plain memory as cudaMalloc gives it, or a
reserved range in which handles of one size are mapped in shuffled order. The times are taken by events in the order
A B B A, 20 times; printed are the mean of the ratio B / A and its 95 % interval.
"""

import ctypes
import random
import statistics
import sys

import torch

TURNS = 20
# Student's t for 19 degrees of freedom, two-sided 95 %.
T95 = 2.093
MIB = 1 << 20
HANDLES = (2 * MIB, 16 * MIB, 64 * MIB, 1024 * MIB)


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp of cuda.h."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("requested", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code != 0:
        raise RuntimeError(f"{name} answered {code}")


# CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
DEVICE = Location(1, 0)
PROPERTIES = Properties(type=1, requested=0, location=DEVICE)
ACCESS = Access(DEVICE, 3)


class Stitched:
    """A range of shuffled handles."""

    def __init__(self, size, handle):
        self.size = -(-size // handle) * handle
        self.at = ctypes.c_uint64()
        u64, sized = ctypes.c_uint64, ctypes.c_size_t
        call("cuMemAddressReserve", ctypes.byref(self.at), sized(self.size), sized(0), u64(0), u64(0))
        self.handles = []
        for _ in range(self.size // handle):
            one = u64()
            call("cuMemCreate", ctypes.byref(one), sized(handle), ctypes.byref(PROPERTIES), u64(0))
            self.handles.append(one)
        random.Random(7).shuffle(self.handles)
        for i, one in enumerate(self.handles):
            call("cuMemMap", u64(self.at.value + i * handle), sized(handle), sized(0), one, u64(0))
        call("cuMemSetAccess", self.at, sized(self.size), ctypes.byref(ACCESS), sized(1))

    def close(self):
        torch.cuda.synchronize()
        call("cuMemUnmap", self.at, ctypes.c_size_t(self.size))
        for one in self.handles:
            call("cuMemRelease", one)
        call("cuMemAddressFree", self.at, ctypes.c_size_t(self.size))


class Bytes:
    """Device memory as torch takes it."""

    def __init__(self, at, size):
        self.__cuda_array_interface__ = {"data": (at, False), "shape": (size,), "typestr": "|u1", "version": 2}


def matrices(at, side):
    size = side * side * 2
    flat = torch.as_tensor(Bytes(at, 3 * size), device="cuda").view(torch.bfloat16)
    return [flat[i * side * side : (i + 1) * side * side].view(side, side) for i in range(3)]


def seconds(three):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.matmul(three[0], three[1], out=three[2])
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def compare(side, handle):
    size = 3 * side * side * 2
    plain_bytes = torch.empty(size, dtype=torch.uint8, device="cuda")
    plain = matrices(plain_bytes.data_ptr(), side)
    stitched_bytes = Stitched(size, handle)
    stitched = matrices(stitched_bytes.at.value, side)
    torch.manual_seed(1)
    for a, b in zip(plain[:2], stitched[:2]):
        a.normal_()
        b.copy_(a)
    for three in (plain, stitched, plain, stitched):
        seconds(three)
    equal = torch.equal(plain[2], stitched[2])
    ratios, times = [], []
    for _ in range(TURNS):
        a, b, c, d = seconds(plain), seconds(stitched), seconds(stitched), seconds(plain)
        ratios.append((b + c) / (a + d))
        times += [a, d]
    half = T95 * statistics.stdev(ratios) / TURNS**0.5
    tflops = 2 * side**3 / statistics.median(times) / 1e12
    print(
        f"matmul {side:>6} {size / 2**30:6.2f} GiB {handle // MIB:>5} MiB handles: {statistics.mean(ratios):.4f} +- "
        f"{half:.4f}, {tflops:.0f} TFLOP/s, results {'equal' if equal else 'DIFFER'}",
        flush=True,
    )
    del plain, stitched
    stitched_bytes.close()
    return equal


def main():
    sides = [int(a) for a in sys.argv[1:]] or [16384, 26624]
    torch.empty(1, device="cuda")
    same = [compare(side, handle) for side in sides for handle in HANDLES]
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
