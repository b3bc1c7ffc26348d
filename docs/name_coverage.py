"""Finds the tests that use a name of Horovod's interface, by reading the tests' source.

A *use* is an attribute of a module (``hvd.allreduce``) or an imported name, in a test file, in a
rank program, in an example, or in a program that a test holds as text. A use *counts on two ranks*
when it is in a rank program or text that a test function refers to which starts ranks, with a
number above one in the call or in what the test is parametrized with; or in an example that a test
file names (examples are run on several ranks); or in tests/conformance, which does the same with
every face.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PROGRAMS = TESTS / "rank_programs"
CONFORMANCE = TESTS / "conformance"
EXAMPLES = ROOT / "examples"

# hvdtune's modules under Horovod's names.
HOROVOD_NAMES = {
    "hvdtune.torch": "horovod.torch",
    "hvdtune.torch.mpi_ops": "horovod.torch",
    "hvdtune.torch.elastic": "horovod.torch.elastic",
    "hvdtune.torch.elastic.state": "horovod.torch.elastic.state",
    "hvdtune.torch.elastic.sampler": "horovod.torch.elastic",
    "hvdtune.elastic": "horovod.common.elastic",
    "hvdtune.core.exceptions": "horovod.common.exceptions",
    "hvdtune.core.process_sets": "horovod.common.process_sets",
    "hvdtune.core.membership": "horovod.common.process_sets",
}

# What starts ranks in tests: functions that take their number first, those that take a command, and
# keywords of `hvdtune.run`.
RANKS_FIRST = ("run_ranks", "start_ranks", "run_checks_on", "run_once", "mpirun_command")
COMMANDS = ("hvdtune_command", "launch")
RANKS_KEYWORDS = ("num_proc", "np")

Use = tuple[str, str]  # Horovod's module, and the name in it


def horovod_name(module: str) -> str:
    """The name under which Horovod has a module."""
    return HOROVOD_NAMES.get(module, module)


def _bound_names(tree: ast.AST) -> dict[str, str]:
    """The modules that names of a program stand for."""
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    bound[alias.asname] = alias.name
                else:
                    first = alias.name.partition(".")[0]
                    bound[first] = first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound


def _dotted(node: ast.expr, bound: dict[str, str]) -> str | None:
    """``hvd.elastic.run`` as ``hvdtune.torch.elastic.run``."""
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, bound)
        return f"{base}.{node.attr}" if base else None
    return None


def uses_in(tree: ast.AST) -> set[Use]:
    """What a program uses of hvdtune or Horovod."""
    bound = _bound_names(tree)
    dotted = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = _dotted(node, bound)
            if name and name.partition(".")[0] in ("hvdtune", "horovod"):
                dotted.add(name)
    uses = set()
    for name in dotted:
        module, _, last = name.rpartition(".")
        uses.add((horovod_name(module), last))
    return uses


def texts_in(tree: ast.AST) -> Iterator[ast.AST]:
    """The programs that a test holds as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = textwrap.dedent(node.value)
            if "import " in text and ("hvdtune" in text or "horovod" in text):
                try:
                    yield ast.parse(text)
                except SyntaxError:
                    continue


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def _imported_programs(path: Path) -> frozenset[str]:
    """The rank programs that a file imports."""
    found = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module == "rank_programs":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            package, _, name = node.module.partition(".")
            if package == "rank_programs":
                found.add(name)
    return frozenset(found)


@cache
def _program_uses(name: str) -> frozenset[Use]:
    """What a rank program uses, with the programs that it imports."""
    path = PROGRAMS / f"{name}.py"
    uses = uses_in(_parsed(path))
    for other in _imported_programs(path) - {name}:
        uses |= _program_uses(other)
    return frozenset(uses)


def _called(call: ast.Call) -> str:
    """The last part of the name that is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_several(node: ast.AST, constants: Mapping[str, ast.expr]) -> bool:
    """Whether a number of ranks above one is in it: 2, "4", [1, 2, 3], or a constant like SIZE."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            inner = constants.get(inner.id, inner)
        if isinstance(inner, ast.Constant) and not isinstance(inner.value, bool):
            value = inner.value
            if isinstance(value, str) and value.isdigit():
                value = int(value)
            if isinstance(value, int) and 2 <= value <= 16:
                return True
    return False


class _Starts:
    """The calls of a test file that start ranks, through its own helper functions too."""

    def __init__(self, tree: ast.Module, constants: Mapping[str, ast.expr]) -> None:
        self._constants = constants
        self._helpers = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_")
        }

    def on_several(self, node: ast.AST, outer: tuple[str, ...] = ()) -> bool:
        """Whether a function or program starts ranks and says that they are more than one."""
        calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
        starts = [call for call in calls if self._is_start(call, outer)]
        numbers: list[ast.AST] = []
        for call in starts:
            first = _called(call) in RANKS_FIRST
            numbers += call.args[:1] if first else [*call.args, *call.keywords]
        for call in calls:
            if _called(call) == "parametrize":
                numbers += call.args[1:] if starts else []
            numbers += [word for word in call.keywords if word.arg in RANKS_KEYWORDS]
        if any(_is_several(number, self._constants) for number in numbers):
            return True
        return any(
            self.on_several(self._helpers[name], (*outer, name))
            for name in {_called(call) for call in starts} & self._helpers.keys() - set(outer)
        )

    def _is_start(self, call: ast.Call, outer: tuple[str, ...]) -> bool:
        name = _called(call)
        if name in RANKS_FIRST or name in COMMANDS:
            return True
        if name not in self._helpers or name in outer:
            return False
        inner = (node for node in ast.walk(self._helpers[name]) if isinstance(node, ast.Call))
        return any(self._is_start(one, (*outer, name)) for one in inner)


def _names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _started_on_several(path: Path) -> set[Use]:
    """What the programs use that the tests of a file start on several ranks."""
    tree = _parsed(path)
    programs = {
        name: target.removeprefix("rank_programs.").partition(".")[0]
        for name, target in _bound_names(tree).items()
        if target.startswith("rank_programs.")
    }
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    starts = _Starts(tree, constants)
    uses: set[Use] = set()
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test_"):
            continue
        names = _names_in(function)
        several = starts.on_several(function)
        if several:
            for name in names & programs.keys():
                uses |= _program_uses(programs[name])
        for node in [function, *(constants[name] for name in names & constants.keys())]:
            for text in texts_in(node):
                if several or starts.on_several(text):
                    uses |= uses_in(text)
    return uses | _uses_of_examples(path) | _uses_of_conformance(path)


def _uses_of_conformance(path: Path) -> set[Use]:
    """What a face's conformance tests use: every form, and what their programs take from it."""
    if path.parent != CONFORMANCE or path.stem != "test_torch_face":
        return set()
    sys.path.insert(0, str(TESTS))
    from conformance.face import FORMS

    names = set(FORMS)
    for program in CONFORMANCE.glob("*.py"):
        for node in ast.walk(_parsed(program)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("hvd"):
                names.add(node.attr)
    return {(horovod_name("hvdtune.torch"), name) for name in names}


def _uses_of_examples(path: Path) -> set[Use]:
    """What the examples use that a test file names."""
    text = path.read_text(encoding="utf-8")
    named = [example for example in sorted(EXAMPLES.glob("*.py")) if f'"{example.name}"' in text]
    return set().union(*(uses_in(_parsed(example)) for example in named))


def test_files() -> list[Path]:
    """All files with tests in Python, but for the one that tests this module by examples."""
    return sorted(path for path in TESTS.rglob("test_*.py") if path.stem != "test_compatibility")


@cache
def tests_on_several_ranks() -> dict[Use, list[str]]:
    """For every name in use, the test files that use it on two ranks or more."""
    found: dict[Use, list[str]] = {}
    for path in test_files():
        for use in _started_on_several(path):
            found.setdefault(use, []).append(str(path.relative_to(TESTS)))
    return found


@cache
def tests_in_one_process() -> dict[Use, list[str]]:
    """For every name in use, the test files that use it in any way."""
    found: dict[Use, list[str]] = {}
    for path in test_files():
        tree = _parsed(path)
        uses = uses_in(tree).union(*(uses_in(text) for text in texts_in(tree)))
        for program in _imported_programs(path):
            uses |= _program_uses(program)
        for use in uses:
            found.setdefault(use, []).append(str(path.relative_to(TESTS)))
    return found
