"""Module paths of version 0.1 that have moved: imports of them work for one release, with a warning that names the new place.

The old name stands for the same module object, so that classes and functions are the same by either name. This file goes with
the next release.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

MOVED = {
    "vlhmm.baselines.settings": "vlhmm.training.baseline_settings",
    "vlhmm.checkpoint": "vlhmm.training.checkpoint",
    "vlhmm.decoder": "vlhmm.distillation.decoder",
    "vlhmm.em": "vlhmm.training.em",
    "vlhmm.factored_tiles": "vlhmm.ops.factored_tiles",
    "vlhmm.joint_phase": "vlhmm.training.joint_phase",
    "vlhmm.lvd": "vlhmm.distillation.lvd",
    "vlhmm.recipe": "vlhmm.training.presets",
    "vlhmm.run_folder": "vlhmm.training.run_folder",
    "vlhmm.schedule": "vlhmm.training.schedule",
    "vlhmm.step": "vlhmm.training.step",
    "vlhmm.teacher": "vlhmm.distillation.teachers",
    "vlhmm.train_settings": "vlhmm.training.settings",
}
"""Modules, and packages with all that is in them."""

GONE = {
    # A module of this name would take the place of the function.
    "vlhmm.train": "vlhmm.train is a function; its module is now vlhmm.training.gradient, and the loop is in vlhmm.training.trainer",
    "vlhmm.distill": "vlhmm.distill is a function; its module is now vlhmm.distillation.pipeline",
    "vlhmm.experiments": "vlhmm.experiments is no longer part of the package: it is experiments/ of a checkout, run as `python -m experiments`",
}


class _Finder(MetaPathFinder):
    # `path` is any iterable: that of a namespace package is no Sequence.
    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "vlhmm" or not name:
            return None
        new = new_name(fullname)
        if new is not None:
            return spec_from_loader(fullname, _Loader(new))
        if fullname in GONE:
            raise ModuleNotFoundError(GONE[fullname], name=fullname)
        return None


class _Loader(Loader):
    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        warnings.warn(
            f"{spec.name} has moved and will be gone in the next release: import {self._new}",
            DeprecationWarning,
            # Frames of the import system do not count: this is the line with the import.
            stacklevel=2,
        )
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the old name's there.
        module.__spec__ = self._spec


def new_name(old: str) -> str | None:
    """Where a module is now, if it or the package that it was in has moved."""
    for moved, new in MOVED.items():
        if old == moved or old.startswith(moved + "."):
            return new + old.removeprefix(moved)
    return None


def install() -> None:
    """Comes before the finder of files: by the path of a moved package that one would load its modules a second time."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
