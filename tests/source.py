"""The package's source as syntax trees: which module imports which, and where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Import:
    """`module` imports `target` (the dotted name of a module) in this line of its file.

    in_function  inside a function's body
    for_types    under `if TYPE_CHECKING`: does not run
    """

    module: str
    target: str
    line: int
    in_function: bool
    for_types: bool


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of all modules and packages of umlm."""
    found = {}
    for path in sorted((ROOT / "umlm").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def imports() -> list[Import]:
    """Every import statement of umlm, with the module that it really loads."""
    return [found for module, path in modules().items() for found in _imports(module, tree(path), False, False)]


def _imports(module: str, node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            for target in _targets(module, child):
                yield Import(module, target, child.lineno, in_function, for_types)
        inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types = for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
        yield from _imports(module, child, inside, types)


def _targets(module: str, node: ast.Import | ast.ImportFrom) -> list[str]:
    """`from package import name` loads package.name where that is a module of ours, else package."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = _absolute(module, node)
    names = [f"{base}.{alias.name}" for alias in node.names]
    return [name if name in modules() else base for name in names]


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if modules()[module].name == "__init__.py" else module.split(".")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def with_parents(module: str) -> list[str]:
    """Importing a.b.c runs a and a.b before it."""
    parts = module.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def loads(module: str) -> set[str]:
    """Everything that importing `module` loads, our own modules and others' by their dotted names."""
    seen: set[str] = set()
    left = with_parents(module)
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += [parent for target in _direct(name) for parent in with_parents(target)]
    return seen


def _direct(module: str) -> list[str]:
    return [i.target for i in imports() if i.module == module and not i.in_function and not i.for_types]
