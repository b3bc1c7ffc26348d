"""The import rules of docs/architecture.md, checked on the source itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hvdtune"
NATIVE = ROOT / "native"

# Whom each part of the package may import, apart from itself.
PYTHON_LAYERS: dict[str, set[str]] = {
    "bootstrap": set(),
    "uncompiled": set(),
    "knobs": set(),
    "pages": set(),
    "core": {"bootstrap", "knobs"},
    "arrays": {"core", "knobs"},
    "elastic": {"core", "knobs"},
    "torch": {"arrays", "core", "elastic", "knobs"},
    "lightning": {"torch"},
    "timeline": {"knobs", "pages"},
    "live": {"knobs", "timeline"},
    "autotune": {"bootstrap", "knobs", "pages"},
    "autotune.online": {"autotune", "core", "knobs"},
    "launch": {"bootstrap", "core", "knobs"},
    "bench": {"arrays", "bootstrap", "core", "knobs", "launch", "pages", "torch"},
    "alias": {"bootstrap", "launch"},
    "cli": {
        *("alias", "autotune", "bench", "bootstrap", "core", "knobs", "launch", "live"),
        "timeline",
    },
    "__main__": {"alias", "cli"},
    "_alias": {"cli", "core", "elastic", "launch", "torch"},
}
MAY_IMPORT_NATIVE = ("core", "autotune.online")

# Whom each native directory may include, apart from itself.
NATIVE_LAYERS: dict[str, set[str]] = {
    "base": set(),
    "device": {"base"},
    "wire": {"base"},
    "transport": {"base", "wire"},
    "collective": {"base", "device", "wire", "transport"},
    "backend": {"base", "wire", "transport", "collective"},
    "observe": {"base"},
    "engine": {"base", "device", "wire", "transport", "collective", "backend", "observe"},
    "python": {
        *("base", "device", "wire", "transport", "collective", "backend", "observe", "engine"),
    },
}

HEAVY = ("numpy", "pandas", "plotly", "skopt", "sklearn", "torch", "yaml", "cloudpickle")
LONGEST_FILE = 600  # lines
IMPORT_CALL = re.compile(r"(^|\.)(import_module|__import__)$")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def native_files() -> list[Path]:
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in {".h", ".cc"})


def module_name(path: Path) -> str:
    """The module's dotted name below `hvdtune`; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name, `hvdtune` included, of every import in a file, however it is written.

    A `from` import gives the module and module.name for every name, since a name may be a module.
    """
    package = ("hvdtune." + module_name(path)).rstrip(".").split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, source
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"
        elif isinstance(node, ast.Call) and IMPORT_CALL.search(ast.unparse(node.func)):
            # importlib.import_module("hvdtune.…")
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def layer_of(module: str) -> str:
    """The key of PYTHON_LAYERS that a module below `hvdtune` belongs to."""
    if module == "autotune.online" or module.startswith("autotune.online."):
        return "autotune.online"
    layer = module.split(".")[0]
    return "knobs" if layer in ("knob_values", "spelling", "variables") else layer


def layers_used(path: Path) -> Iterator[tuple[int, str, str]]:
    for line, name in imported_modules(path):
        if name.startswith("hvdtune."):
            module = name.removeprefix("hvdtune.")
            layer = layer_of(module)
            if layer in PYTHON_LAYERS:
                yield line, layer, module


def test_python_imports_go_downwards():
    faults = []
    for path in python_files():
        own = layer_of(module_name(path))
        if own == "":
            continue  # hvdtune/__init__.py re-exports, lazily
        assert own in PYTHON_LAYERS, f"{relative(path)} belongs to no layer of the architecture"
        allowed = PYTHON_LAYERS[own] | {own}
        faults += [
            f"{relative(path)}:{line}: hvdtune.{own} must not import hvdtune.{module}"
            for line, layer, module in layers_used(path)
            if layer not in allowed
        ]
    assert not faults, "\n".join(faults)


def test_only_core_and_the_tuning_session_touch_the_native_module():
    faults = [
        f"{relative(path)}:{line}"
        for path in python_files()
        if layer_of(module_name(path)) not in MAY_IMPORT_NATIVE
        for line, name in imported_modules(path)
        if name == "hvdtune._native" or name.startswith("hvdtune._native.")
    ]
    assert not faults, "hvdtune._native is imported in " + ", ".join(faults)


def test_the_rules_see_every_way_to_write_an_import(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "timeline").mkdir()
    module = tmp_path / "timeline" / "reader.py"
    for source in (
        "import hvdtune._native",
        "from hvdtune import _native",
        "from .. import _native",
        "def f():\n    from hvdtune._native import Engine",
        "import importlib\nimportlib.import_module('hvdtune._native')",
    ):
        module.write_text(source)
        assert "hvdtune._native" in {name for _, name in imported_modules(module)}, source
    module.write_text("from ..core import world\nfrom . import model")
    assert {layer for _, layer, _ in layers_used(module)} == {"core", "timeline"}


def test_native_includes_go_downwards():
    faults = []
    for path in native_files():
        own = path.relative_to(NATIVE).parts[0]
        assert own in NATIVE_LAYERS, f"{relative(path)} belongs to no layer of the architecture"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if not match:
                continue
            target = match[1].split("/")[0]
            if target not in NATIVE_LAYERS[own] | {own}:
                faults.append(f"{relative(path)}:{number}: {own} must not include {match[1]}")
    assert not faults, "\n".join(faults)


def test_native_code_reads_no_environment_variable():
    faults = [
        relative(path)
        for path in native_files()
        if re.search(
            r"\b(?:secure_)?getenv\b|\benviron\b", COMMENT.sub("", path.read_text(encoding="utf-8"))
        )
    ]
    assert not faults, "settings reach native code in a struct, not by getenv: " + ", ".join(faults)


def test_files_stay_short():
    folders = ("hvdtune", "native", "tests", "benchmarks", "examples", "docs")
    faults = []
    for path in sorted(p for folder in folders for p in (ROOT / folder).rglob("*")):
        if path.suffix in {".py", ".pyi", ".cc", ".h"}:
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > LONGEST_FILE:
                faults.append(f"{relative(path)} has {lines} lines")
    assert not faults, f"more than {LONGEST_FILE} lines: " + ", ".join(faults)


@pytest.mark.parametrize(
    "module", ["hvdtune", "hvdtune.core.world", "hvdtune.elastic", "hvdtune.cli.main"]
)
def test_importing_hvdtune_loads_no_heavy_package(module):
    code = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.split() == []
