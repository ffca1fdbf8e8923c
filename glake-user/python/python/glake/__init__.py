"""GLake in a Python process: PyTorch's GPU memory from a stitching allocator.

    import glake
    glake.init()

Works without torch and without a GPU; then there is simply nothing to serve. ``GLAKE_DISABLE=1`` turns everything off, whatever
the program says. All sizes are bytes.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Union

from . import _core
from .weights import load_safetensors, save_safetensors

__version__: str = _core.__version__

__all__ = [
    "State",
    "defragment",
    "disabled",
    "get_fragmentation_ratio",
    "get_memory_stats",
    "get_option",
    "init",
    "load_safetensors",
    "options",
    "save_safetensors",
    "set_option",
    "snapshot",
    "state",
    "step",
]


class State(NamedTuple):
    """What GLake does in this process."""

    mode: str
    """``"on"``: GLake serves. ``"observe"``: torch's own allocator serves, GLake reports. ``"off"``: nothing."""
    how: str
    """``"adapter"``, ``"pluggable"`` (some of torch's API is missing then), or ``"none"``."""
    why: str
    """The reason, in words."""
    missing: tuple
    """What of torch's API does not work."""


_lock = threading.RLock()
_state: Optional[State] = None


def init(*, quiet: bool = False) -> State:
    """Puts GLake under PyTorch in this process, once; later calls answer the same.

    May be called before or after the first CUDA call. Tensors that exist stay where they are. Nothing fails: where GLake
    cannot serve, the state says why and torch goes on as before. Raises ``ValueError`` for a wrong ``GLAKE_MODE``.
    """
    global _state
    with _lock:
        if _state is None:
            _state = _begin()
            if not quiet:
                _announce(_state)
        return _state


def _begin() -> State:
    mode, why = _core.mode()
    if mode == "off":
        return State("off", "none", why, ())
    if mode == "observe":
        from . import observe

        return State("observe", "none", observe.begin(), ())
    if get_option("allocator.enabled") != "true":
        return State("off", "none", "allocator.enabled is false", ())
    try:
        from . import torch_adapter
    except ImportError as error:
        return State("off", "none", f"torch cannot be imported: {error}", ())
    try:
        outcome = torch_adapter.install()
    except Exception as error:  # noqa: BLE001  (an odd torch is no reason for the program to end)
        _core.fell_back(f"the torch adapter failed: {type(error).__name__}: {error}")
        return State("off", "none", f"the torch adapter failed: {type(error).__name__}: {error}", ())
    if outcome.how == "off":
        return State("off", "none", outcome.why, ())
    return State("on", outcome.how, outcome.why, tuple(outcome.missing))


def _announce(state: State) -> None:
    from . import ranks

    if not ranks.is_first():
        return
    words = [state.mode]
    if state.how != "none":
        words.append(f"torch {ranks.torch_version()}")
    if ranks.count() > 1:
        words.append(f"{ranks.count()} ranks")
    if state.mode != "on" or state.how == "pluggable":
        words.append(state.why)
    if state.missing:
        words.append("missing: " + ", ".join(state.missing))
    if state.mode == "on":
        words.append("off: GLAKE_DISABLE=1")
    _core.say_once("state", ", ".join(words))


def state() -> Optional[State]:
    """What :func:`init` found; ``None`` before it."""
    return _state


def set_option(name: str, value: Union[str, int, float, bool]) -> None:
    """Sets an option, by its name or its alias (``gmlake.enabled``).

    Heaps that exist follow ``allocator.max_bytes`` at once; other options hold for GPUs that are first used later. Raises
    ``ValueError`` that names the nearest option, or what the option takes. An option of a part of GLake that does not
    exist yet is kept, and a line on standard error says that nothing follows it.
    """
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not _core.set_option(name, text):
        _core.say_once(f"later-{name}", f"option {name} is kept, but the part that would follow it does not exist yet")


def get_option(name: str) -> str:
    """An option's value as text; sizes in bytes. Raises ``ValueError`` for an unknown name."""
    return _core.get_option(name)


def options() -> List[Dict[str, Any]]:
    """Every option: ``name``, ``alias``, ``value``, ``takes``, ``variable`` (its ``GLAKE_*`` name), ``works``."""
    return _core.options()


def get_memory_stats(device: Optional[int] = None) -> Dict[str, Any]:
    """GLake's own counters of one GPU's heap (default: the first that is in use; empty where none is).

    ``allocated``, ``requested``, ``active`` and ``reserved`` are bytes with ``current``, ``peak``, ``allocated`` and ``freed``, as
    torch means them; ``blocks`` is a number. ``remapped_bytes``: physical memory moved, ever. ``zombie_bytes``: address space mapped
    twice. ``fragmentation_ratio``: 0 to 1. ``fallbacks``: times torch's own allocator served instead. What torch reports
    (``torch.cuda.memory_stats``) has torch's own pools in it as well.
    """
    every = json.loads(_core.stats())
    if device is None:
        device = min((int(d) for d in every), default=0)
    stats = every.get(str(device))
    if stats is None:
        return {}
    stats["fallbacks"] = _core.fallbacks()
    return stats


def get_fragmentation_ratio(device: Optional[int] = None) -> float:
    """``1 - largest free range / free bytes`` of the mapped memory: 0.0 when all of it is one range, or there is none."""
    return float(get_memory_stats(device).get("fragmentation_ratio", 0.0))


def defragment(device: int = 0) -> int:
    """Remaps the free memory of each stream into one range, without copying; the bytes remapped.

    Costs driver time for every physical handle; allocations do as much of it as they need by themselves. Raises
    ``RuntimeError`` while a CUDA graph is captured.
    """
    return _core.defragment(device)[2]


def snapshot(device: int = 0) -> Dict[str, Any]:
    """The address map of a GPU's heap: ``ranges`` (stream, start, size, what for, handles under it) and ``handles``.

    For tensors and their stacks use ``torch.cuda.memory._snapshot()``, which works under GLake.
    """
    return json.loads(_core.map(device))


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """New tensors come from torch's own allocator inside; tensors that exist stay where they are."""
    if _state is None or _state.how != "adapter":
        yield
        return
    from . import torch_adapter

    with torch_adapter.paused():
        yield


def step() -> None:
    """Marks the end of a training step, for ``glake ab``. Optimisers of torch do it by themselves."""
    from . import steps

    steps.mark()
