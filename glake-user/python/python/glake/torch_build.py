"""Builds the torch adapter with the host's C++ compiler, once per version of torch and of the sources, and loads it.

Needs a C++17 compiler and the headers that come with torch and with the CUDA runtime: no nvcc, no ninja, no pybind. The result lies in
``$GLAKE_TORCH_CACHE``, by default ``~/.cache/glake/torch``; deleting the folder costs a build of some ten seconds, nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator, List, Tuple

#: A compiler that takes longer hangs; the process then goes on without the adapter.
LONGEST_BUILD = 600


class CannotBuild(Exception):
    """Why there is no adapter, in one line, with what to do about it."""


def library(torch, version: Tuple[int, int]) -> ctypes.CDLL:
    """The adapter for this torch, loaded. Builds it if no build of the same sources for the same torch lies in the cache."""
    command = _command(torch, version)
    built = folder() / f"torch-{torch.__version__}-{_key(command)}.so"
    if not built.exists():
        _build(command, built)
    try:
        return ctypes.CDLL(str(built))
    except OSError as e:
        # A cache that came from another machine (a shared home): what it was built against lies elsewhere here.
        built.unlink(missing_ok=True)
        raise CannotBuild(f"the built adapter cannot be loaded and was deleted: {e}") from e


def folder() -> Path:
    """Where built adapters lie; made if need be, and only this user may write there."""
    wanted = os.environ.get("GLAKE_TORCH_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    last = os.path.join(tempfile.gettempdir(), f"glake-torch-{os.getuid()}")
    for place in [wanted] if wanted else [os.path.join(home, "glake", "torch"), last]:
        path = Path(place)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = path.stat()
        except OSError:
            continue
        # A library that others could have put there must not be loaded.
        if about.st_uid == os.getuid() and not about.st_mode & 0o022 and os.access(path, os.W_OK):
            return path
    raise CannotBuild("no folder for the built adapter: set GLAKE_TORCH_CACHE to one that only you can write")


def sources() -> Path:
    """The adapter's sources, which travel inside the package."""
    place = Path(__file__).resolve().parent / "adapter"
    if (place / "adapter.cpp").is_file():
        return place
    raise CannotBuild("the adapter's sources are missing in this installation of glake")


def _compiler() -> List[str]:
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return [name]
    raise CannotBuild("no C++ compiler: install g++ (or set CXX), and the adapter is built at the next start")


def _loaded(name: str) -> Path:
    """The file of a library this process has loaded: the one torch uses, whatever else lies on the host."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith(name):
                return Path("/" + path)
    raise CannotBuild(f"{name} is not loaded: this build of torch links CUDA in another way")


def _cuda_headers(runtime: Path) -> List[str]:
    near = [runtime.parent.parent / "include", runtime.parent.parent.parent / "include"]
    named = [Path(os.environ[v]) / "include" for v in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX") if v in os.environ]
    usual = [Path("/usr/local/cuda/include"), Path("/usr/include")]
    for place in near + named + usual:
        if (place / "cuda_runtime_api.h").is_file():
            return [str(place)]
    raise CannotBuild("the CUDA runtime's headers are missing: pip install nvidia-cuda-runtime, or set CUDA_HOME")


def _command(torch, version: Tuple[int, int]) -> List[str]:
    """The compiler call, without the output file. Flags that decide the binary interface come from torch."""
    root = Path(torch.__file__).resolve().parent
    runtime = _loaded("libcudart.so")
    at = sources()
    includes = [str(root / "include"), *_cuda_headers(runtime)]
    return [
        *_compiler(),
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        f"-DGLAKE_TORCH={version[0] * 100 + version[1]}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *[f"-isystem{place}" for place in includes],
        # Last resort for two small headers of CUDA that the runtime's package leaves out.
        f"-idirafter{at / 'cuda'}",
        str(at / "adapter.cpp"),
        str(root / "lib" / "libc10.so"),
        str(root / "lib" / "libc10_cuda.so"),
        str(runtime),
        # The C++ library torch runs on, before the compiler's own: two of them in one process do not share their state.
        str(_loaded("libstdc++.so")),
        "-ldl",
    ]


def _key(command: List[str]) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    for source in sorted(sources().rglob("*")):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build(command: List[str], built: Path) -> None:
    with _only_one(built.with_suffix(".lock")):
        if built.exists():  # another rank was first
            return
        part = built.with_suffix(f".part{os.getpid()}")
        try:
            done = subprocess.run(
                [*command, "-o", str(part)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LONGEST_BUILD, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise CannotBuild(f"the compiler did not run: {e}") from e
        if done.returncode != 0:
            log = built.with_suffix(".log")
            log.write_bytes(" ".join(command).encode() + b"\n" + done.stdout)
            part.unlink(missing_ok=True)
            raise CannotBuild(f"the adapter does not compile here, see {log}")
        _prove(part)
        os.rename(part, built)


def _prove(part: Path) -> None:
    """Loads a fresh build in a process of its own and lets it throw: better there than in a job of three days."""
    script = "import ctypes, sys, torch; sys.exit(ctypes.CDLL(sys.argv[1]).glake_torch_selftest())"
    environment = dict(os.environ, GLAKE_DISABLE="1")
    proof = [sys.executable, "-c", script, str(part)]
    done = subprocess.run(proof, env=environment, stderr=subprocess.PIPE, timeout=LONGEST_BUILD, check=False)
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise CannotBuild(f"the adapter that {_compiler()[0]} built does not work (try another by CXX): {last[0]}")


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
