"""The rules of the house that source text shows: floors, cycles, lazy imports, sizes, names."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import source

FLOORS = {
    "options": 0, "kernels": 0, "text": 0,
    "nn": 1,
    "models": 2, "quant": 2, "distributed": 2,
    "weights": 3, "cache": 3,
    "engine": 4, "finetune": 4,
    "llm": 5,
}  # fmt: skip
TOP = 6  # every other module: server and the verbs
VERB_HOST = "umlm.cli"
WITHOUT_MLX = (
    "umlm", "umlm.options", "umlm.text",
    "umlm.cache.pool", "umlm.cache.prefix",
    "umlm.engine.request", "umlm.engine.scheduler", "umlm.engine.deferral", "umlm.engine.allowance",
    "umlm.engine.service",
)  # fmt: skip
# slow to load and not always needed, or optional
LAZY = {
    "asyncio", "gguf", "huggingface_hub", "importlib", "llguidance", "mlx_lm", "mpi4py", "peft", "rich",
    "sentencepiece", "torch", "transformers",
}  # fmt: skip
BANNED_NAMES = {"utils", "common", "manager", "base", "helpers"}
MAX_LINES = 400


def floor(module: str) -> int:
    package, *rest = module.split(".")[1:]
    return TOP if rest == ["__main__"] else FLOORS.get(package, TOP)


def package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def inner_imports() -> list[source.Import]:
    """Imports of one part of umlm by another; umlm/__init__.py belongs to no floor."""
    return [i for i in source.imports() if i.target.startswith("umlm.") and i.module != "umlm"]


def where(i: source.Import) -> str:
    return f"{i.module} line {i.line} imports {i.target}"


def is_verb(module: str) -> bool:
    body = source.tree(source.modules()[module]).body
    return module != VERB_HOST and any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in body)


def allowed(i: source.Import) -> bool:
    """Downwards, within one package; on the top floor also what is no verb, and the verbs' host everything."""
    if package(i.module) == package(i.target) or floor(i.target) < floor(i.module):
        return True
    return floor(i.target) == floor(i.module) == TOP and (i.module == VERB_HOST or not is_verb(i.target))


def test_the_reader_of_imports_sees_them() -> None:
    found = {(i.module, i.target) for i in source.imports()}
    assert ("umlm.kernels.rope", "umlm.kernels.backends") in found
    assert ("umlm.cache.store", "umlm.kernels") in found
    assert "mlx.core" in source.loads("umlm.cache.store")


def test_lower_floors_never_import_higher_ones() -> None:
    assert [where(i) for i in inner_imports() if not allowed(i)] == []


def test_no_circular_imports() -> None:
    graph: dict[str, set[str]] = {module: set() for module in source.modules()}
    for i in inner_imports():
        if not i.for_types and i.target != package(i.module):
            graph[i.module].add(i.target)
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_a_package_s_modules_do_not_import_through_their_own_package() -> None:
    assert [where(i) for i in inner_imports() if i.target == package(i.module) != i.module] == []


def test_imports_in_functions_are_of_slow_or_optional_libraries() -> None:
    hidden = [i for i in source.imports() if i.in_function and i.target.split(".")[0] not in LAZY]
    assert [where(i) for i in hidden] == []


@pytest.mark.parametrize("name", WITHOUT_MLX)
def test_decision_code_and_text_load_no_mlx(name: str) -> None:
    modules = [m for m in source.modules() if m == name or (name != "umlm" and m.startswith(f"{name}."))]
    assert modules, f"{name} is gone"
    for module in modules:
        assert sorted(m for m in source.loads(module) if m.split(".")[0] == "mlx") == [], module


def python_files() -> list[Path]:
    return [path for folder in ("umlm", "tests", "benchmarks") for path in (source.ROOT / folder).rglob("*.py")]


def test_no_file_is_long() -> None:
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [str(path) for path in python_files() if path.stem in BANNED_NAMES] == []


def compares_model_type(node: ast.AST) -> bool:
    if isinstance(node, ast.Match):
        return "model_type" in ast.dump(node.subject)
    tested = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], tested) and "model_type" in ast.dump(node.left)


def test_only_the_registry_asks_for_the_model_type() -> None:
    found = [
        f"{module} line {node.lineno}"  # type: ignore[attr-defined]
        for module, path in source.modules().items()
        for node in ast.walk(source.tree(path))
        if module != "umlm.models.registry" and compares_model_type(node)
    ]
    assert found == []
