"""When torch.compile is told to leave hvdtune alone: not before it is there, and once."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hvdtune.torch import compiled


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """A compiler that can be imported; for each time it is told, whether it was complete."""
    (tmp_path / "a_compiler.py").write_text("complete = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    others = [one for one in sys.meta_path if not isinstance(one, compiled._CompilerFinder)]
    monkeypatch.setattr(sys, "meta_path", others)
    monkeypatch.setattr(compiled, "_COMPILER", "a_compiler")
    monkeypatch.delitem(sys.modules, "a_compiler", raising=False)
    seen: list[bool] = []

    def tell() -> None:
        seen.append(sys.modules["a_compiler"].complete)

    monkeypatch.setattr(compiled, "_skip_package", tell)
    return seen


def test_a_compiler_that_comes_later_is_told_then(told: list[bool]) -> None:
    finders = list(sys.meta_path)
    compiled.leave_alone(())
    assert "a_compiler" not in sys.modules
    importlib.import_module("json")
    assert told == []
    importlib.import_module("a_compiler")
    assert told == [True]
    assert sys.meta_path == finders
    del sys.modules["a_compiler"]
    importlib.import_module("a_compiler")
    assert told == [True]


def test_a_compiler_that_is_there_is_told_at_once(told: list[bool]) -> None:
    importlib.import_module("a_compiler")
    finders = list(sys.meta_path)
    compiled.leave_alone(())
    assert told == [True]
    assert sys.meta_path == finders


def test_functions_are_the_same_but_for_their_marks(told: list[bool]) -> None:
    def collective() -> int:
        return 1

    compiled.leave_alone([collective])
    assert collective() == 1
    assert collective._torchdynamo_disable is True  # type: ignore[attr-defined]
    assert "fullgraph=True" in collective._torchdynamo_disable_msg  # type: ignore[attr-defined]
