"""Which of several processes this is, as torchrun, DeepSpeed, accelerate, Slurm and MPI tell it."""

import os
import sys

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_COUNT = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def _first_number(names, default):
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default


def rank() -> int:
    """This process's rank; 0 where nobody says."""
    return _first_number(_RANK, 0)


def is_first() -> bool:
    """Whether this process speaks for all."""
    return rank() == 0


def count() -> int:
    """How many processes work together; 1 where nobody says."""
    return _first_number(_COUNT, 1)


def torch_version() -> str:
    """The version of torch that is loaded."""
    torch = sys.modules.get("torch")
    return getattr(torch, "__version__", "not loaded")
