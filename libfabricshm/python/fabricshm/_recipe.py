"""A name for what a function does: of its code, of what that refers to, and of the libraries' versions."""

import functools
import hashlib
import importlib.metadata
import platform
import sys
import types

_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


def name_of(function):
    """32 hexadecimal digits, the same in each process that has the same function. ValueError: it refers to
    something of which that can't be said; it is to be named by the program then."""
    recipe = _Recipe()
    recipe.add(function)
    return recipe.digest()


def _version_of(module):
    """Of the library that a module belongs to; None: it is no library's."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return platform.python_version()
    version = getattr(sys.modules.get(top), "__version__", None)
    if version is None:
        try:
            version = importlib.metadata.version(top)
        except importlib.metadata.PackageNotFoundError:
            return None
    return str(version)


class _Recipe:
    def __init__(self):
        self._sum = hashlib.blake2b(digest_size=16)
        self._seen = set()
        self._note("python", platform.python_version())

    def digest(self):
        return self._sum.hexdigest()

    def _note(self, *words):
        for word in words:
            raw = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")
            self._sum.update(len(raw).to_bytes(8, "little") + raw)

    def add(self, value, name="prep"):
        if isinstance(value, _SIMPLE):
            return self._note(type(value).__name__, repr(value))
        if isinstance(value, (tuple, list)):
            self._note(type(value).__name__, len(value))
            for each in value:
                self.add(each, name)
            return None
        if isinstance(value, frozenset):
            return self._note("frozenset", *sorted(map(repr, value)))
        if isinstance(value, dict):
            self._note("dict", len(value))
            for key in value:
                self.add(key, name)
                self.add(value[key], name)
            return None
        if isinstance(value, functools.partial):
            self._note("partial")
            self.add((value.func, value.args, value.keywords), name)
            return None
        if isinstance(value, types.CodeType):
            return self._add_code(value, {})
        if isinstance(value, types.ModuleType):
            return self._add_library("module", value.__name__, "", name)
        if isinstance(value, types.FunctionType) and _version_of(value.__module__ or "") is None:
            return self._add_function(value, name)
        place = getattr(value, "__module__", None) or type(value).__module__
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            return self._add_library("object", place, value.__qualname__, name)
        if type(value).__name__ in ("dtype", "ufunc"):  # of NumPy and PyTorch
            return self._add_library("value", type(value).__module__, repr(value), name)
        raise ValueError(f"what {name} does does not follow from its code, as it is a {type(value).__name__}: "
                         "give prep_name, another one for each change of what it makes")

    def _add_library(self, kind, module, what, name):
        version = _version_of(module)
        if version is None:
            raise ValueError(f"{name} is of {module}, which has no version: give prep_name, another one for "
                             "each change of what prep makes")
        self._note(kind, module, what, version)

    def _add_function(self, function, name):
        self._note("function")
        if function.__code__ in self._seen:
            return
        self._seen.add(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__), name)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:
                continue  # empty: a later definition, which it can't have used
            if content is not function:
                self.add(content, variable)
        self._add_code(function.__code__, function.__globals__)

    def _add_code(self, code, names):
        self._note("code", code.co_code, code.co_varnames, code.co_argcount, code.co_flags)
        self._note(*code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant, names)
            else:
                self.add(constant, "a constant")
        for word in code.co_names:
            if word in names:
                self.add(names[word], word)
