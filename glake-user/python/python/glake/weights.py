"""Weights between files and torch tensors, through GLake's pinned buffers."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from . import _core

#: From this size on a tensor has memory of its own, so that one that lives on does not keep its file's others.
_OWN = 1 << 20
#: Where tensors begin in memory that they share.
_ALIGN = 512

#: The format's names of element types, and torch's.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


class _Tensor(NamedTuple):
    name: str
    dtype: Any
    shape: Tuple[int, ...]
    file: int
    offset: int
    size: int


def load_safetensors(
    path: Union[str, "os.PathLike[str]"],
    device: Any = "cuda",
    *,
    limit_s: float = 600.0,
) -> Dict[str, Any]:
    """Loads a safetensors file, an index (``*.safetensors.index.json``) or a folder of files; torch tensors by name.

    ``device``: as torch takes it. On a GPU the bytes go from the page cache or the disk through pinned buffers, by the way
    that ``glake copy --explain`` shows; each tensor begins at a multiple of 512 bytes. Returns when all tensors are there, so
    they may be used on any stream. The file is never held in memory a second time.

    Raises ``ValueError`` for a file that is damaged, changed while it was read, or has an element type that this torch has
    not; ``OSError`` for one that cannot be read; ``RuntimeError`` after ``limit_s`` seconds. Then no tensor is given out.
    """
    import torch

    checkpoint = _core.Checkpoint(os.fspath(path))
    tensors = [_described(torch, *entry) for entry in checkpoint.tensors()]
    where = torch.device(device)
    if where.type == "cuda":
        return _to_gpu(torch, checkpoint, tensors, where, limit_s)
    if where.type == "cpu":
        return _to_cpu(torch, checkpoint, tensors)
    raise ValueError(f"device {where} is neither a CUDA GPU nor the CPU")


def save_safetensors(
    tensors: Dict[str, Any],
    path: Union[str, "os.PathLike[str]"],
    metadata: Optional[Dict[str, str]] = None,
    *,
    limit_s: float = 600.0,
) -> None:
    """Saves torch tensors of one GPU to a safetensors file, through pinned buffers.

    The file is written beside, brought to the disk and renamed: under ``path`` appears all of it or, after an error or a crash,
    the older file is as it was. Begins after the current stream's work and returns when the file is on the disk.

    Raises ``ValueError`` that names the tensor for one that is not on a GPU, on another GPU than the rest, not contiguous, or shares
    memory with another one (save one of them, or a copy); ``MemoryError`` when the disk has no room; ``OSError`` for what the disk
    refuses; ``RuntimeError`` after ``limit_s`` seconds.
    """
    import torch

    if not tensors:
        raise ValueError("there are no tensors to save")
    names = {getattr(torch, theirs): ours for ours, theirs in _DTYPES.items() if hasattr(torch, theirs)}
    entries = []
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise ValueError(f"tensor {name!r} is on {tensor.device}, not on a GPU; for the CPU there is safetensors.torch.save_file")
        if not tensor.is_contiguous():
            raise ValueError(f"tensor {name!r} is not contiguous: save {name!r}.contiguous()")
        if tensor.dtype not in names:
            raise ValueError(f"tensor {name!r} has the element type {tensor.dtype}, which the format has not")
        size = tensor.numel() * tensor.element_size()
        entries.append((name, names[tensor.dtype], list(tensor.shape), size, tensor.data_ptr() if size else 0))
    devices = {str(tensor.device): name for name, tensor in tensors.items()}
    if len(devices) > 1:
        raise ValueError("tensors are on several GPUs: " + ", ".join(f"{name!r} on {where}" for where, name in devices.items()))
    _refuse_shared(entries)
    # Wide types first, as the format's own writer does: then every tensor is aligned to its type.
    width = {name: tensor.element_size() for name, tensor in tensors.items()}
    entries.sort(key=lambda e: (-width[e[0]], e[0]))
    index = next(iter(tensors.values())).device.index or 0
    stream = torch.cuda.current_stream(torch.device("cuda", index)).cuda_stream
    _bytes, _seconds, notes = _core.save(os.fspath(path), entries, metadata or {}, index, stream, limit_s)
    for note in notes:
        _core.say_once(f"weights-{note}", note)


def _refuse_shared(entries: List[Tuple[str, str, List[int], int, int]]) -> None:
    """Two tensors over the same bytes would be saved twice and no longer be one when they are loaded."""
    end, before = 0, ""
    for name, _dtype, _shape, size, address in sorted(entries, key=lambda e: e[4]):
        if size and address < end:
            raise ValueError(f"tensors {before!r} and {name!r} share memory: save one of them, or a copy (.clone()) of one")
        if size and address + size > end:
            end, before = address + size, name


def _described(torch: Any, name: str, dtype: str, shape: List[int], file: int, offset: int, size: int) -> _Tensor:
    known = getattr(torch, _DTYPES.get(dtype, ""), None)
    if known is None:
        raise ValueError(f"tensor {name!r} has the element type {dtype}, which torch {torch.__version__} has not")
    return _Tensor(name, known, tuple(shape), file, offset, size)


def _plan(tensors: List[_Tensor]) -> Tuple[List[int], List[Optional[Tuple[int, int]]]]:
    """Sizes of the blocks to take, and for each tensor its block and place in it; ``None`` for one without bytes."""
    blocks: List[int] = []
    places: List[Optional[Tuple[int, int]]] = []
    shared: Dict[int, int] = {}
    for tensor in tensors:
        if tensor.size == 0:
            places.append(None)
        elif tensor.size >= _OWN:
            places.append((len(blocks), 0))
            blocks.append(tensor.size)
        else:
            if tensor.file not in shared:
                shared[tensor.file] = len(blocks)
                blocks.append(0)
            block = shared[tensor.file]
            places.append((block, blocks[block]))
            blocks[block] += -(-tensor.size // _ALIGN) * _ALIGN
    return blocks, places


def _view(torch: Any, block: Any, tensor: _Tensor, at: int) -> Any:
    return block[at : at + tensor.size].view(tensor.dtype).reshape(tensor.shape)


def _to_gpu(torch: Any, checkpoint: Any, tensors: List[_Tensor], where: Any, limit_s: float) -> Dict[str, Any]:
    index = torch.cuda.current_device() if where.index is None else where.index
    where = torch.device("cuda", index)
    sizes, places = _plan(tensors)
    blocks = [torch.empty(size, dtype=torch.uint8, device=where) for size in sizes]
    # The memory may still be in use by earlier work of this stream: the copies begin after it.
    stream = torch.cuda.current_stream(where).cuda_stream
    spans: Dict[int, List[Tuple[int, int, int]]] = {}
    for tensor, place in zip(tensors, places):
        if place is not None:
            address = blocks[place[0]].data_ptr() + place[1]
            spans.setdefault(tensor.file, []).append((tensor.offset, tensor.size, address))
    for file, wanted in spans.items():
        _bytes, _seconds, _route, notes = checkpoint.read(file, wanted, index, stream, limit_s)
        for note in notes:
            _core.say_once(f"weights-{note}", note)
    return {
        t.name: torch.empty(t.shape, dtype=t.dtype, device=where) if p is None else _view(torch, blocks[p[0]], t, p[1])
        for t, p in zip(tensors, places)
    }


def _to_cpu(torch: Any, checkpoint: Any, tensors: List[_Tensor]) -> Dict[str, Any]:
    """Reads straight into the memory that the tensors keep."""
    sizes, places = _plan(tensors)
    memory = [bytearray(size) for size in sizes]
    files = [open(path, "rb", buffering=0) for path in checkpoint.files()]
    try:
        for tensor, place in zip(tensors, places):
            if place is None:
                continue
            view = memoryview(memory[place[0]])[place[1] : place[1] + tensor.size]
            files[tensor.file].seek(tensor.offset)
            got = 0
            while got < tensor.size:
                n = files[tensor.file].readinto(view[got:])
                if not n:
                    raise ValueError(f"{files[tensor.file].name} ended inside tensor {tensor.name!r}: it was cut while it was read")
                got += n
    finally:
        for file in files:
            file.close()
    blocks = [torch.frombuffer(m, dtype=torch.uint8) if m else None for m in memory]
    return {
        t.name: torch.empty(t.shape, dtype=t.dtype) if p is None else _view(torch, blocks[p[0]], t, p[1])
        for t, p in zip(tensors, places)
    }
