"""A package `torch` of a few lines for tests without a GPU: torch's headers and its two libraries of allocation, over a CUDA runtime of host
memory. It is copied to `torch/__init__.py` beside links to `include` and `lib`; `TEST_CUDART` names the runtime."""

import ctypes
import os
from types import SimpleNamespace

__version__ = os.environ["TEST_TORCH"]
_here = os.path.dirname(os.path.abspath(__file__))
for _library in (os.environ["TEST_CUDART"], f"{_here}/lib/libc10.so", f"{_here}/lib/libc10_cuda.so"):
    ctypes.CDLL(_library, mode=ctypes.RTLD_GLOBAL)
version = SimpleNamespace(cuda="13.0")
_C = SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
cuda = SimpleNamespace(
    memory=SimpleNamespace(get_allocator_backend=lambda: "native"),
    is_initialized=lambda: False,
)
