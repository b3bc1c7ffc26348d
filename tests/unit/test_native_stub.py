"""hvdtune/_native.pyi describes the module that was compiled."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

STUB = Path(__file__).resolve().parents[2] / "hvdtune" / "_native.pyi"

Signatures = dict[str, list[str]]


def stub_signatures(body: list[ast.stmt]) -> Signatures:
    """Names of a module's or a class's functions, each with its parameters' names."""
    return {
        node.name: [
            argument.arg
            for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if argument.arg != "self"
        ]
        for node in body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def stub_classes(tree: ast.Module) -> dict[str, Signatures]:
    return {n.name: stub_signatures(n.body) for n in tree.body if isinstance(n, ast.ClassDef)}


def native_parameters(function: Any) -> list[str]:
    """Parameter names from the signature that pybind11 writes in the docstring's first line."""
    inside = re.match(r"\w+\((.*)\) -> ", function.__doc__.splitlines()[0])
    assert inside, function.__doc__
    # Only names at the beginning or behind a comma outside of brackets are followed by ": ".
    names = re.findall(r"(?:^|, )(\w+): ", re.sub(r"\[[^\[\]]*\]", "", inside[1]))
    return [name for name in names if name != "self"]


def native_signatures(owner: Any) -> Signatures:
    functions = {
        name: member
        for name, member in vars(owner).items()
        if callable(member) and not isinstance(member, type) and not name.startswith("_")
    }
    return {name: native_parameters(function) for name, function in functions.items()}


@pytest.fixture(scope="module")
def native() -> Any:
    from hvdtune import _native

    return _native


@pytest.fixture(scope="module")
def tree() -> ast.Module:
    return ast.parse(STUB.read_text(encoding="utf-8"))


def test_functions_are_the_same(native, tree):
    assert stub_signatures(tree.body) == native_signatures(native)


def test_classes_are_the_same(native, tree):
    compiled = {
        name: native_signatures(member)
        for name, member in vars(native).items()
        if isinstance(member, type)
    }
    described = {
        name: {method: names for method, names in signatures.items() if method != "__init__"}
        for name, signatures in stub_classes(tree).items()
    }
    assert described == compiled


def test_constants_are_the_same(native, tree):
    described = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    compiled = {
        name
        for name, member in vars(native).items()
        if not callable(member) and not name.startswith("_")
    }
    assert described == compiled


def test_engine_options_take_exactly_what_the_stub_lists(native, tree):
    """Every field of the stub is accepted, and leaving out any one of them fails."""
    options = next(
        n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "EngineOptions"
    )
    init = next(n for n in options.body if isinstance(n, ast.FunctionDef))
    samples = {"str": "", "int": 1, "float": 1.0, "bool": True}
    samples |= {"Sequence[str]": [], "Sequence[Sequence[int]]": [], "Cancellation | None": None}
    values = {
        argument.arg: samples[ast.unparse(argument.annotation)] for argument in init.args.kwonlyargs
    }
    values["writing"] = "auto"  # a text of which not every one is accepted
    native.EngineOptions(**values)
    with pytest.raises(ValueError, match="auto, cached or streamed"):
        native.EngineOptions(**{**values, "writing": "fast"})
    for name in values:
        with pytest.raises((KeyError, RuntimeError, TypeError)):
            native.EngineOptions(**{key: value for key, value in values.items() if key != name})
