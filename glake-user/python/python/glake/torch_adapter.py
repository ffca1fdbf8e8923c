"""PyTorch on GLake: finds torch, builds the adapter for it once, and puts it in the place of torch's allocator.

Three outcomes. "adapter": a C++ class in torch's own place; every call of ``torch.cuda.memory`` goes on working. "off": torch as it was,
with the reason. "pluggable": torch's plain interface for foreign allocators. It needs no compiler and is taken only on request
(``GLAKE_TORCH=pluggable``), because most of ``torch.cuda.memory`` raises there, graphs with pools fail, and ``record_stream`` does nothing
unless it is connected, as is done here: without that, 29 of 30 rounds of a race computed wrong results on an H200.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from dataclasses import dataclass
from typing import Iterator, Optional, Tuple

from . import _core, torch_build

#: The versions of torch (major, minor) whose headers the adapter is compiled against in GLake's tests.
DECLARED = ((2, 8), (2, 9), (2, 10), (2, 11))

#: What torch's plain interface cannot do, whatever stands behind it. Each of these raises or does nothing there.
PLAIN_INTERFACE_LACKS = (
    "torch.cuda.memory_stats, memory_allocated, memory_reserved, memory_summary, their peaks and resets (RuntimeError)",
    "torch.cuda.memory._snapshot, _record_memory_history (RuntimeError)",
    "torch.OutOfMemoryError (another error ends the allocation)",
    "torch.cuda.MemPool, torch.cuda.graph with private pools, cudagraph trees (mode='reduce-overhead')",
    "sharing CUDA tensors with other processes",
    "set_per_process_memory_fraction",
)


@dataclass(frozen=True)
class Outcome:
    """How this process runs: ``how`` is "adapter", "pluggable" or "off", ``why`` one line, ``missing`` what does not work."""

    how: str
    why: str
    missing: Tuple[str, ...] = ()


#: Where a GPU's driver shows itself: servers, WSL, Jetson.
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")

_state: Optional[Outcome] = None
_library: Optional[ctypes.CDLL] = None


def state() -> Optional[Outcome]:
    """What :func:`install` did; None before it was called."""
    return _state


def install() -> Outcome:
    """Puts GLake under this process's torch. Before or after ``torch.cuda.init()``; a second call changes nothing."""
    global _state
    if _state is None:
        _state = _install()
    return _state


def retreat(why: str) -> None:
    """New memory comes from torch's own allocator from now on; what GLake handed out stays valid and is taken back."""
    if _library is not None:
        _library.glake_torch_retreat(why.encode())


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """New memory of this process comes from torch's own allocator inside the block. It nests; other threads are meant too."""
    if _library is None:
        yield
        return
    _library.glake_torch_pause(1)
    try:
        yield
    finally:
        _library.glake_torch_pause(0)


def _install() -> Outcome:
    try:
        import torch
    except ImportError as e:
        return Outcome("off", f"torch cannot be imported: {e}")
    obstacle = _obstacle(torch)
    if obstacle:
        return Outcome("off", obstacle)
    _quiet_nccl()
    if os.environ.get("GLAKE_TORCH") == "pluggable":
        return _install_pluggable(torch)
    version = _version_of(torch.__version__)
    if version not in DECLARED:
        known = ", ".join(f"{a}.{b}" for a, b in DECLARED)
        return Outcome("off", f"torch {torch.__version__} is not among the versions the adapter knows ({known})")
    try:
        library = torch_build.library(torch, version)
    except torch_build.CannotBuild as e:
        return Outcome("off", str(e))
    return _install_adapter(torch, library)


def _install_adapter(torch, library: ctypes.CDLL) -> Outcome:
    global _library
    why = ctypes.create_string_buffer(512)
    library.glake_torch_install.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.glake_torch_install.restype = ctypes.c_int
    library.glake_torch_retreat.argtypes = [ctypes.c_char_p]
    library.glake_torch_retreat.restype = None
    library.glake_torch_pause.argtypes = [ctypes.c_int]
    library.glake_torch_pause.restype = None
    if library.glake_torch_install(_core.api_address(), why, len(why)) != 0:
        return Outcome("off", why.value.decode(errors="replace"))
    _library = library
    return Outcome("adapter", f"torch {torch.__version__}")


def _install_pluggable(torch) -> Outcome:
    if torch.cuda.is_initialized():
        return Outcome("off", "CUDA is in use already: torch's plain interface must be chosen before")
    plain = torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, "glake_malloc", "glake_free")
    missing = list(PLAIN_INTERFACE_LACKS)
    # torch's Python class never connects these; without the first, record_stream would silently do nothing.
    for symbol, connect, loss in (
        ("glake_record_stream", "set_record_stream_fn", "record_stream (does nothing: synchronize before freeing)"),
        ("glake_empty_cache", "set_reset_fn", "torch.cuda.empty_cache (does nothing)"),
    ):
        if not _connect(plain.allocator(), symbol, connect):
            missing.append(loss)
    torch.cuda.memory.change_current_allocator(plain)
    return Outcome("pluggable", "GLAKE_TORCH=pluggable", tuple(missing))


def _connect(allocator, symbol: str, connect: str) -> bool:
    try:
        function = getattr(ctypes.CDLL(_core.__file__), symbol)
        getattr(allocator, connect)(ctypes.cast(function, ctypes.c_void_p).value)
    except AttributeError:
        return False
    return True


def _version_of(text: str) -> Tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _settings() -> str:
    # torch 2.10 and newer read the first name, older ones the second; both are in use.
    return ",".join(os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))


def _obstacle(torch) -> str:
    """Why GLake stays out of this process; empty if nothing stands against it."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    # Not by asking CUDA: that would keep this process from forking workers that use it.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") != "" and any(map(os.path.exists, _DRIVERS))
    if not visible and os.environ.get("GLAKE_DEVICE") != "host":  # the host GPU of the tests has no driver
        return "no NVIDIA GPU is visible to this process"
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        return "PYTORCH_NO_CUDA_MEMORY_CACHING is set: every tensor shall be a cudaMalloc of its own"
    if re.search(r"backend\s*:\s*cudaMallocAsync", _settings()):
        return "torch's allocator backend is cudaMallocAsync: unset backend: in PYTORCH_ALLOC_CONF to use GLake"
    if "torch_memory_saver" in os.environ.get("LD_PRELOAD", ""):
        return "torch_memory_saver is preloaded: it replaces the same memory calls"
    if torch.cuda.memory.get_allocator_backend() != "native":
        return f"another allocator is installed already: {torch.cuda.memory.get_allocator_backend()}"
    return ""


def settings_without_effect() -> Tuple[str, ...]:
    """Settings of torch's allocator that are set and mean nothing for GLake's memory (they still hold for torch's pools)."""
    names = ("max_split_size_mb", "roundup_power2_divisions", "garbage_collection_threshold", "expandable_segments")
    return tuple(name for name in names if re.search(rf"\b{name}\s*:", _settings()))


def _quiet_nccl() -> None:
    """Keeps NCCL from registering memory that lies on several physical handles, of which it maps only the first.

    Both are optimisations of NCCL; without them it copies through its own buffers. Set before a communicator exists.
    """
    if os.environ.setdefault("NCCL_GRAPH_REGISTER", "0") != "0":
        _core.say_once("nccl-graph-register", "NCCL_GRAPH_REGISTER is set: buffers in captured collectives must lie in a MemPool")
    hook = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
    if os.environ.get(hook, "0").lower() not in ("", "0", "false", "off", "n", "no"):
        os.environ[hook] = "0"
        _core.say_once("nccl-hook", f"{hook} was set and is now 0: NCCL cannot register GLake's memory as a whole")


def describe() -> str:
    """One line for people: on, off, and why."""
    outcome = state()
    if outcome is None:
        return "not installed"
    if outcome.how == "adapter":
        return f"on, {outcome.why}"
    if outcome.how == "pluggable":
        return f"on by torch's plain interface ({outcome.why}); missing: {'; '.join(outcome.missing)}"
    return f"off: {outcome.why}"


if __name__ == "__main__":  # python -m glake.torch_adapter: build it now, so that no job has to
    install()
    print(describe())
    print(f"built adapters lie in {torch_build.folder()}")
