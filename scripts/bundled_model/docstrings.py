"""Docstrings of CPython: those in the standard library's sources, and of built-in modules."""

import ast
import importlib
import inspect
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

# Excluded sources: tests, vendored code, tools, packages removed from later Pythons, and repetitive ones.
SKIPPED_PACKAGES = frozenset(
    [
        "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "distutils", "ensurepip", "pydoc_data",
        "encodings", "site-packages", "dist-packages", "__pycache__", "msilib", "lib-dynload", "_sysconfigdata",
    ]
)  # fmt: skip
# C modules without Python source that exist in every build and can be imported without side effects.
BUILTIN_MODULES = ("builtins", "itertools", "math", "cmath", "time", "sys", "operator", "_thread", "_collections")
# Public names of modules whose Python source has another name.
PUBLIC_NAMES = {
    "_pydecimal": "decimal", "_pyio": "io", "posixpath": "os.path", "_collections_abc": "collections.abc",
    "_weakrefset": "weakref", "_collections": "collections", "builtins": "",
}  # fmt: skip
# Packages that re-export the names of their submodules: asyncio.tasks.sleep is asyncio.sleep.
FLATTENED_PACKAGES = ("asyncio", "concurrent.futures", "json", "unittest")
HELD_OUT_ONE_IN = 50


@dataclass(frozen=True, slots=True)
class Documented:
    """A module, class or function with a docstring."""

    module: str
    name: str  # dotted, as a user writes it: json.dumps
    kind: str  # module, class, method, function
    arguments: tuple[str, ...]
    members: tuple[str, ...]  # public functions, classes or methods of a module or class
    text: str

    @property
    def is_public(self) -> bool:
        """Whether no part of the name starts with an underscore."""
        return not any(part.startswith("_") for part in self.name.split("."))

    @property
    def is_held_out(self) -> bool:
        """Whether the text is held out for evaluation; decided by the text alone, so that copies are held out too."""
        digest = blake2b(" ".join(self.text.split()).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % HELD_OUT_ONE_IN == 0


def collect_documented() -> list[Documented]:
    """Return all documented objects, each text once, in a deterministic order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, Documented] = {}
    sources = (item for path in sorted(root.rglob("*.py")) for item in _read_source(path, root))
    builtin = (item for name in BUILTIN_MODULES for item in _read_builtin(importlib.import_module(name)))
    for item in (*builtin, *sources):
        found.setdefault(" ".join(item.text.split()), item)
    return list(found.values())


def _read_source(path: Path, root: Path) -> Iterator[Documented]:
    relative = path.relative_to(root)
    parts = list(relative.with_suffix("").parts)
    if any(part in SKIPPED_PACKAGES or part.startswith("_sysconfigdata") for part in parts):
        return
    if parts[-1] == "__init__":
        parts.pop()
    module = ".".join(parts)
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # a few library files are invalid on purpose
        return
    module = PUBLIC_NAMES.get(module, module)
    yield from _read_node(tree, module, module, "module")


def _read_node(node: ast.AST, module: str, name: str, kind: str) -> Iterator[Documented]:
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    children = [item for item in node.body if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    text = ast.get_docstring(node)
    if text:
        members = tuple(dict.fromkeys(child.name for child in children if not child.name.startswith("_")))
        yield Documented(module, name, kind, _arguments(node), members if kind in ("module", "class") else (), text)
    if kind == "module":
        yield from _read_aliases(children, node.body, module, name)
    if kind in ("module", "class"):
        for child in children:
            inner = "class" if isinstance(child, ast.ClassDef) else "function" if kind == "module" else "method"
            prefix = name
            if kind == "module" and name.rpartition(".")[0] in FLATTENED_PACKAGES:
                prefix = name.rpartition(".")[0]
            yield from _read_node(child, module, f"{prefix}.{child.name}", inner)


def _read_aliases(
    children: Sequence[ast.AST], body: Sequence[ast.stmt], module: str, name: str
) -> Iterator[Documented]:
    """Yield methods of a private instance that a module exports as functions, as in `choice = _inst.choice`."""
    methods = {
        method.name: method
        for owner in children
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.FunctionDef)
    }
    for item in body:
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Attribute) and item.value.attr in methods:
            method = methods[item.value.attr]
            text = ast.get_docstring(method)
            if text and isinstance(item.targets[0], ast.Name):
                yield Documented(module, f"{name}.{item.targets[0].id}", "function", _arguments(method), (), text)


def _arguments(node: ast.AST) -> tuple[str, ...]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ()
    named = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
    if node.args.vararg:
        named.append(f"*{node.args.vararg.arg}")
    named += [item.arg for item in node.args.kwonlyargs]
    if node.args.kwarg:
        named.append(f"**{node.args.kwarg.arg}")
    return tuple(name for name in named if name not in ("self", "cls") and not name.startswith("_"))


def _read_builtin(module: ModuleType) -> Iterator[Documented]:
    public = PUBLIC_NAMES.get(module.__name__, module.__name__)
    if public and module.__doc__:
        functions = tuple(name for name, value in sorted(vars(module).items()) if name[0] != "_" and callable(value))
        yield Documented(public, public, "module", (), functions, inspect.cleandoc(module.__doc__))
    for name, value in sorted(vars(module).items()):
        text = inspect.getdoc(value)
        if name.startswith("_") or not callable(value) or not text:
            continue
        full = f"{public}.{name}" if public else name
        is_class = isinstance(value, type)
        own = [key for key, item in sorted(vars(value).items()) if not key.startswith("_") and callable(item)] \
            if is_class else []  # fmt: skip
        yield Documented(public or "builtins", full, "class" if is_class else "function", (), tuple(own), text)
        for key in own:
            if inner := inspect.getdoc(getattr(value, key)):
                yield Documented(public or "builtins", f"{full}.{key}", "method", (), (), inner)
