"""What is done once another module has been imported, without importing it."""

import importlib.abc
import importlib.machinery
import sys


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `action` once the module `name` has been imported."""

    def __init__(self, name, action):
        self._name = name
        self._action = action

    def find_spec(self, name, path, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module):
            execute(module)
            self._action()

        spec.loader.exec_module = execute_and_act
        return spec


def after_import(name, action):
    """Calls `action` when the module `name` is there: now, or after its first import."""
    module = sys.modules.get(name)
    # One that is being imported right now runs its own hooks.
    initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    if module is not None and not initializing:
        return action()
    if module is None:
        sys.meta_path.insert(0, _AfterImport(name, action))
