"""``glake exec -- COMMAND``: a program with GLake on, without a change to it, in every process it starts.

Workers of torchrun, DeepSpeed, accelerate, Slurm and Ray are not always children of the shell, but they get its environment. So the
switch is two variables: ``GLAKE_MODE`` says that GLake is wanted, and ``PYTHONPATH`` begins with a folder whose ``sitecustomize``
installs GLake when the process imports torch, and only then.
"""

import os
import sys
from typing import List, Mapping, MutableMapping

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


def variables(environment: Mapping[str, str]) -> MutableMapping[str, str]:
    """What is to be set so that every Python process below has GLake on. A mode that is set already stays."""
    paths = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p and p != FOLDER]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    changed = {"PYTHONPATH": os.pathsep.join([FOLDER, *paths]), "GLAKE_HOME": home}
    if not environment.get("GLAKE_MODE"):
        changed["GLAKE_MODE"] = "on"
    return changed


def execute(words: List[str]) -> int:
    """Replaces this process by the command; returns only where it cannot be started."""
    if words and words[0] == "--":
        words = words[1:]
    if not words or words[0] in ("-h", "--help"):
        print(
            "Runs a command with GLake under PyTorch in every process it starts.\n\n"
            "Usage: glake exec -- COMMAND [ARGUMENT ...]\n\n"
            "Examples:\n"
            "  glake exec -- python train.py\n"
            "  glake exec -- torchrun --nproc-per-node 8 train.py\n"
            "  GLAKE_MODE=observe glake exec -- python train.py   only report what it would do\n"
            "  GLAKE_DISABLE=1 glake exec -- python train.py      exactly the old behaviour",
            file=sys.stdout if words else sys.stderr,
        )
        return 0 if words else 2
    environment = dict(os.environ)
    environment.update(variables(environment))
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        print(f"glake: cannot start {words[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
