"""``python -m glake SCRIPT ...`` runs a program with GLake on; ``python -m glake COMMAND ...`` is the ``glake`` command."""

import os
import runpy
import sys

from . import _core


def _is_program(word: str) -> bool:
    return word == "-m" or word.endswith(".py") or os.path.isfile(word) or os.path.isdir(word)


def _run_program(words) -> None:
    # Workers that the program starts are reached as well.
    from . import activate

    os.environ.update(activate.variables(os.environ))
    import glake

    glake.init()
    if words[0] == "-m":
        if len(words) < 2:
            sys.exit("glake: python -m glake -m needs the name of a module")
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


def command_line() -> None:
    """The ``glake`` command of the wheel."""
    words = sys.argv[1:]
    if words and words[0] == "exec":
        from . import activate

        sys.exit(activate.execute(words[1:]))
    if words and words[0] == "ab":
        from . import ab

        sys.exit(ab.main(words[1:]))
    sys.exit(_core.cli(["glake", *words]))


if __name__ == "__main__":
    if len(sys.argv) > 1 and _is_program(sys.argv[1]):
        _run_program(sys.argv[1:])
    else:
        command_line()
