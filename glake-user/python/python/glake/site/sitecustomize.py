"""Installs GLake when this process imports torch. Put first on PYTHONPATH by ``glake exec``; costs an import hook, nothing more.

The sitecustomize that this one hides (a distribution's, a cluster's) is run as well.
"""

import os
import sys


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    from importlib.machinery import PathFinder

    paths = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        spec.loader.exec_module(module_from_spec(spec))


def _wanted() -> bool:
    disabled = os.environ.get("GLAKE_DISABLE", "") not in ("", "0", "false")
    serves = not disabled and os.environ.get("GLAKE_MODE", "") in ("on", "observe")
    return serves or bool(os.environ.get("GLAKE_STEPS"))


class _AfterTorch:
    """Finds nothing itself: sees that torch is asked for, and has GLake installed once torch has run."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_install(module):
            run(module)
            _install()

        spec.loader.exec_module = run_and_install
        return spec


def _install() -> None:
    # Whatever goes wrong here, the program runs as it would without GLake.
    try:
        home = os.environ.get("GLAKE_HOME")
        if home and home not in sys.path:
            sys.path.append(home)
        import glake
        from glake import steps

        steps.begin()
        glake.init()
    except Exception as error:  # noqa: BLE001
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"glake: off, it cannot start: {type(error).__name__}: {error}\n")


if _wanted():
    sys.meta_path.insert(0, _AfterTorch())
_run_hidden()
