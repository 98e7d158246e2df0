"""The stubs that type checkers read name what the package has: nothing less, and nothing else."""

import ast
import inspect
import os
import re
import sys
import textwrap
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

import fabricshm  # noqa: E402
from fabricshm import _fabricshm  # noqa: E402

FOLDER = Path(fabricshm.__file__).parent
# Of a binding's line: `name(self: type, first: type, second: Dict[str, int]) -> type`.
ARGUMENT = re.compile(r"[(,]\s*(\w+): ")


def parsed(name):
    return ast.parse((FOLDER / name).read_text())


def classes_of(tree):
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def functions_of(tree):
    """By name; of a property with a setter, what stands first."""
    return {node.name: node for node in reversed(tree.body) if isinstance(node, ast.FunctionDef)}


def variables_of(tree):
    return {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}


def exported_of(tree):
    """What a checker sees of a package: its own classes and functions, and `import x as x`."""
    imported = (each for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names)
    names = {each.name for each in imported if each.asname == each.name}
    return names | set(classes_of(tree)) | set(functions_of(tree))


def choices_of(tree, alias):
    """The texts of `alias = Literal["first", "second"]`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == alias:
            return {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    raise AssertionError(f"the stub has no {alias}")


def public(names):
    return {name for name in names if not name.startswith("_")}


def is_private(node):
    return node.name.startswith("_")


def is_property(node):
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def arguments_of(node):
    """Names, each with whether it may be left out."""
    given = node.args.posonlyargs + node.args.args
    defaults = [False] * (len(given) - len(node.args.defaults)) + [True] * len(node.args.defaults)
    pairs = [(each.arg, default) for each, default in zip(given, defaults)]
    pairs += [(each.arg, default is not None)
              for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults)]  # fmt: skip
    return [pair for pair in pairs if pair[0] != "self"]


def arguments_in_python(function):
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [(each.name, each.default is not each.empty)
            for each in inspect.signature(function).parameters.values()
            if each.name != "self" and each.kind not in stars]  # fmt: skip


def members_of(kind):
    """Public ones, with those of its base classes in this package."""
    own = (each for each in kind.__mro__ if each.__module__.startswith("fabricshm"))
    return public(name for each in own for name in vars(each))


def assigned_in(kind):
    """What its methods store in `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return public(node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self")


def bases_of(node, classes):
    """The class and its base classes in the same stub."""
    yield node
    for base in node.bases:
        if base.id in classes:
            yield from bases_of(classes[base.id], classes)


class BindingTest(unittest.TestCase):
    tree = parsed("_fabricshm.pyi")

    def test_every_class_and_function_is_named(self):
        named = set(classes_of(self.tree)) | set(functions_of(self.tree)) | variables_of(self.tree)
        self.assertEqual(named, public(vars(_fabricshm)))

    def test_every_member_of_a_class_is_named(self):
        for name, node in classes_of(self.tree).items():
            with self.subTest(name):
                named = public(functions_of(node)) | variables_of(node)
                self.assertEqual(named, members_of(getattr(_fabricshm, name)))

    def test_arguments_have_the_names_that_the_binding_takes(self):
        functions = [(_fabricshm, node) for node in functions_of(self.tree).values()]
        for name, node in classes_of(self.tree).items():
            functions += [(getattr(_fabricshm, name), each) for each in functions_of(node).values()
                          if not is_property(each)]  # fmt: skip
        for home, node in functions:
            with self.subTest(f"{home.__name__}.{node.name}"):
                line = getattr(home, node.name).__doc__.splitlines()[0]
                taken = [each for each in ARGUMENT.findall(line) if each != "self"]
                self.assertEqual([each for each, _ in arguments_of(node)], taken)


class PackageTest(unittest.TestCase):
    tree = parsed("__init__.pyi")

    def test_what_the_package_exports_is_what_a_checker_sees(self):
        self.assertEqual(public(exported_of(self.tree)), set(fabricshm.__all__))

    def test_every_member_of_a_class_is_named(self):
        classes = classes_of(self.tree)
        for name, node in classes.items():
            if is_private(node):
                continue
            with self.subTest(name):
                kind = getattr(fabricshm, name)
                named = {each for part in bases_of(node, classes)
                         for each in public(functions_of(part)) | variables_of(part)}  # fmt: skip
                self.assertEqual(named, members_of(kind) | assigned_in(kind))

    def test_arguments_are_those_of_the_functions(self):
        functions = [(fabricshm, node) for node in functions_of(self.tree).values()]
        for name, node in classes_of(self.tree).items():
            if not is_private(node):
                functions += [(getattr(fabricshm, name), each) for each in functions_of(node).values()
                              if not is_property(each)]  # fmt: skip
        for home, node in functions:
            with self.subTest(f"{home.__name__}.{node.name}"):
                self.assertEqual(arguments_of(node), arguments_in_python(getattr(home, node.name)))

    def test_the_words_to_choose_from_are_those_of_the_library(self):
        self.assertEqual(choices_of(self.tree, "Op"), set(_fabricshm.OPS))
        self.assertEqual(choices_of(self.tree, "Optimiser"), set(_fabricshm.OPTIMISERS))


if __name__ == "__main__":
    fabric_test.main()
