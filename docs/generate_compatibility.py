"""Writes docs/compatibility.md: `python docs/generate_compatibility.py [--check]`.

Reads Horovod's interface and the differences from the compatibility tables, and the functions from
hvdtune itself. Ends with an error if the code contradicts a table, or if a name is missing without
a reason. Names that need TensorFlow, MXNet or Ray are compared only if it can be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compatibility_mxnet_table as mxnet_table
import compatibility_ray_table as ray_table
import compatibility_table as table
import compatibility_tensorflow_table as tensorflow_table
import generated_page
import public_imports_table

import hvdtune
import hvdtune.torch as hvd

sys.path.insert(0, str(Path(hvdtune.__file__).with_name("_alias")))  # so that horovod is hvdtune

PAGE = Path(__file__).with_name("compatibility.md")
MISSING = object()
#: The tables of what needs a framework, by its module.
FRAMEWORKS = {"tensorflow": tensorflow_table, "mxnet": mxnet_table, "ray": ray_table}
INTRODUCTION = """\
# Compatibility with Horovod

<!-- Made by docs/generate_compatibility.py from docs/compatibility_table.py,
docs/compatibility_tensorflow_table.py, docs/compatibility_mxnet_table.py,
docs/compatibility_ray_table.py and hvdtune: edit those, not this page. -->

This page lists what Horovod 0.28.1 exports for PyTorch, TensorFlow, Keras, MXNet and Ray, and how
much of it hvdtune has.
Under `hvdtune run`, and in the ways that [the alias's page](horovod-alias.md) describes,
`import horovod.torch` imports `hvdtune.torch`, and the other packages work in the same way.

- **same**: the same signature, results and errors.
- **superset**: that and more; programs for Horovod see no difference, unless Horovod crashes,
  hangs, loses data or refuses valid calls.
- **partial**: a part has no effect, or is refused with an error that says so.

In a fork of a rank, such as a worker of a `DataLoader`, `rank()`, `size()` and all other functions
that only read return what they return under Horovod. Collectives and `init()` raise a `ValueError`
there that says where to call them; under Horovod a collective hangs, and `init()` does nothing.

All of this holds for tensors on the CPU; for tensors on GPUs, see [GPUs](gpu.md).
"""

IMPORTS = """\
## What public code imports

The table lists imports from public repositories and what each does here. If hvdtune has nothing
sensible to import, it raises a `ModuleNotFoundError` (an `ImportError`), whose sentence is shown.

"""


class Contradiction(Exception):
    """The table contradicts the code."""


@dataclass(frozen=True)
class Row:
    """One name of the page."""

    name: str
    status: str
    difference: str


def _evaluated(text: str) -> Any:
    """The value of an expression in the table."""
    names = {name: getattr(hvd, name) for name in ("Compression", "global_process_set", "Average")}
    return eval(text, {"__builtins__": {}}, names)


def wanted_parameters(signature: str) -> list[inspect.Parameter]:
    """The parameters that a signature of the table has."""
    function = _evaluated(f"lambda {signature[1:-1]}: None")
    return list(inspect.signature(function).parameters.values())


def added_parameters(what: str, signature: str, function: Any) -> list[str]:
    """The parameters that ``function`` has beyond ``signature``.

    Raises Contradiction if it does not have those of the signature, in the same places, with the
    same names and defaults, or if an additional one is not optional.
    """
    wanted = wanted_parameters(signature)
    found = list(inspect.signature(function).parameters.values())
    for place, parameter in enumerate(wanted):
        other = found[place] if place < len(found) else None
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            other = next((p for p in found if p.kind is parameter.kind), None)
            if other is None:
                raise Contradiction(f"{what} takes no further keywords, Horovod's does")
            continue
        if other is None or other.name != parameter.name or other.kind is not parameter.kind:
            raise Contradiction(f"{what}: parameter {place} is {other}, Horovod's is {parameter}")
        if not _equal(other.default, parameter.default):
            raise Contradiction(f"{what}: {other.name} defaults to {other.default!r}")
    names = {parameter.name for parameter in wanted}
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    added = [
        p for p in found if p.name not in names and p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    for parameter in added:
        if parameter.default is inspect.Parameter.empty and parameter.kind not in optional:
            raise Contradiction(f"{what} needs {parameter.name}, which Horovod's does not have")
    return [parameter.name for parameter in added]


def _equal(found: Any, wanted: Any) -> bool:
    return found is wanted or (type(found) is type(wanted) and bool(found == wanted))


def stated(module: str, name: str) -> tuple[str, str]:
    """Status and difference of one name, as the tables say. Raises Contradiction for two."""
    said = [
        (status, sentences[module][name])
        for one in (table, *FRAMEWORKS.values())
        for status, sentences in (
            ("superset", one.SUPERSET),
            ("partial", one.PARTIAL),
            ("not available", one.NOT_AVAILABLE),
        )
        if name in sentences.get(module, {})
    ]
    if len(said) > 1:
        raise Contradiction(f"{module}.{name} has two statuses: {said}")
    return said[0] if said else ("same", "")


def judge(module: str, name: str, signature: str | None, found: Any) -> tuple[str, str]:
    """Status and difference of one name, whose object is ``found``.

    Raises Contradiction if the table does not describe the object.
    """
    what = f"{module}.{name}"
    if module in table.CONTRACT and getattr(hvd, name, None) is found:
        module = "horovod.torch"  # the same thing, under a second name
    status, sentence = stated(module, name)
    if (found is MISSING) != (status == "not available"):
        there = "is missing" if found is MISSING else "exists"
        raise Contradiction(f"{what} {there}, but the table says: {status}")
    if found is MISSING or signature is None:
        return status, sentence
    if not signature.startswith("("):
        if not _equal(found, _evaluated(signature)):
            raise Contradiction(f"{what} is {found!r}, Horovod's is {signature}")
        return status, sentence
    added = added_parameters(what, signature, found)
    told = status in ("superset", "partial")
    if added and not (told and all(f"`{one}`" in sentence for one in added)):
        raise Contradiction(
            f"{what} has {added}, of which its difference in the table says nothing"
        )
    return status, sentence


def rows(module: str, names: Mapping[str, str | None]) -> list[Row]:
    """The page's table for one of Horovod's modules, compared with the code."""
    found_in = importlib.import_module(module)
    result = []
    for name, signature in names.items():
        try:
            found = operator.attrgetter(name)(found_in)
        except AttributeError:
            found = MISSING
        status, difference = judge(module, name, signature, found)
        result.append(Row(name, status, difference))
    return result


def check_additions(module: str, contract: Mapping[str, Any], said: Mapping[str, str]) -> None:
    """Raise Contradiction unless ``said`` is what a module has beyond Horovod's."""
    added = {name for name in importlib.import_module(module).__all__ if name not in contract}
    if added != said.keys():
        raise Contradiction(f"{module} adds {added}, the table says {set(said)}")


def framework_rows(framework: str) -> dict[str, list[Row]]:
    """The page's tables for a framework; compared with the code if that can be loaded."""
    if importlib.util.find_spec(framework) is not None:
        return compared_rows(framework)
    return {
        module: [Row(name, *stated(module, name)) for name in names]
        for module, names in FRAMEWORKS[framework].CONTRACT.items()
    }


def compared_rows(framework: str) -> dict[str, list[Row]]:
    """The same. Raises ImportError without the framework, Contradiction if its table is wrong."""
    every = FRAMEWORKS[framework].CONTRACT
    for module, said in FRAMEWORKS[framework].ADDED.items():
        contract = {
            name
            for other, names in every.items()
            if other.startswith(module.replace("hvdtune", "horovod"))
            for name in names
        }
        check_additions(module, dict.fromkeys(contract), said)
    return {module: rows(module, names) for module, names in every.items()}


def _signature_words(signature: str | None) -> str:
    return f" = {signature}" if signature and not signature.startswith("(") else ""


def outcome(statement: str) -> str:
    """The effect of an import of Horovod's here: "works", or the text of its ImportError."""
    try:
        exec(statement, {})
    except ImportError as error:
        return str(error)
    return "works"


def public_imports() -> list[str]:
    """The table's lines. Raises Contradiction if an import works that should fail, or fails."""
    lines = ["| Import | What happens |", "|---|---|"]
    lines += [f"| `{one}` | works with TensorFlow |" for one in public_imports_table.TENSORFLOW]
    lines += [f"| `{one}` | works with MXNet |" for one in public_imports_table.MXNET]
    lines += [f"| `{one}` | works with Ray |" for one in public_imports_table.RAY]
    lines += [f"| `{one}` | works with Spark |" for one in public_imports_table.SPARK]
    for statements, works in (
        (public_imports_table.WORKS, True),
        (public_imports_table.REFUSED, False),
    ):
        for statement in statements:
            found = outcome(statement)
            if (found == "works") != works:
                raise Contradiction(f"{statement}: {found}")
            lines.append(f"| `{statement}` | {found} |")
    return lines


def page() -> str:
    """The whole page."""
    check_additions("hvdtune.torch", table.TORCH, table.ADDED)
    by_module = {module: rows(module, names) for module, names in table.CONTRACT.items()}
    contract, added = dict(table.CONTRACT), {"hvdtune.torch": table.ADDED}
    for framework, its_table in FRAMEWORKS.items():
        by_module |= framework_rows(framework)
        contract |= its_table.CONTRACT
        added |= its_table.ADDED
    parts = [INTRODUCTION]
    for module, every in by_module.items():
        lines = ["| Name | Status | Difference |", "|---|---|---|"]
        for row in every:
            name = f"`{row.name}`{_signature_words(contract[module][row.name])}"
            lines.append(f"| {name} | {row.status} | {row.difference} |")
        parts.append(f"## {module}\n\n" + "\n".join(lines) + "\n")
    for module, said in added.items():
        lines = ["| Name | What it is |", "|---|---|"]
        lines += [f"| `{name}` | {what} |" for name, what in said.items()]
        parts.append(f"## Only in {module}\n\n" + "\n".join(lines) + "\n")
    parts.append(IMPORTS + "\n".join(public_imports()) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Write the page, or with --check say whether it is up to date."""
    try:
        text = page()
    except Contradiction as error:
        print(f"docs/compatibility_table.py: {error}")
        return 1
    return generated_page.write(PAGE, text, __file__)


if __name__ == "__main__":
    sys.exit(main())
