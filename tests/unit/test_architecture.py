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
TESTS = ROOT / "tests"
NATIVE = ROOT / "native"

# Whom each part of the package may import, apart from itself.
PYTHON_LAYERS: dict[str, set[str]] = {
    "services": {"autotune.session.online", "core", "live"},
    "bootstrap": set(),
    "uncompiled": set(),
    "version": set(),
    "data": set(),
    "settings": set(),
    "pages": set(),
    "core": {"bootstrap", "settings", "version"},
    "faces": {"core", "settings"},
    "arrays": {"core", "faces", "settings"},
    "elastic": {"core", "settings"},
    "torch": {"core", "elastic", "faces", "settings"},
    "jax": {"arrays", "core", "faces"},
    "mxnet": {"core", "faces"},
    "lightning": {"faces", "torch"},
    "ray": {"core", "launch", "settings"},
    "compute_service": {"core"},
    "tensorflow": {"arrays", "compute_service", "core", "elastic", "faces", "settings"},
    "keras": {"arrays", "core", "elastic", "faces", "jax", "settings", "tensorflow", "torch"},
    "timeline": {"settings", "pages"},
    "live": {"settings", "timeline"},
    "autotune": {"bootstrap", "settings", "pages", "version"},
    "autotune.session.online": {"autotune", "core", "settings"},
    "launch": {"bootstrap", "core", "settings", "version"},
    "spark": {
        *("bootstrap", "compute_service", "core", "keras", "launch", "lightning", "settings"),
        "torch",
    },
    "bench": {"bootstrap", "core", "settings", "launch", "pages", "torch"},
    "alias": {"bootstrap", "launch"},
    "cli": {
        *("alias", "autotune", "bench", "bootstrap", "core", "settings", "launch", "live"),
        *("timeline", "version"),
    },
    "__main__": {"alias", "cli"},
    "_alias": {"cli", "compute_service", "core", "elastic", "faces", "launch", "torch"},
}
MAY_IMPORT_NATIVE = ("core", "autotune.session.online")


# Rooms of a part, in order: each may import those before it. Names without a folder are files.
ROOMS: dict[str, tuple[str, ...]] = {
    "core": (
        *(
            "exceptions",
            "reduce_ops",
            "hooks",
            "topology",
            "world",
            "libraries",
            "driver",
            "meeting",
        ),
        *(
            "observation",
            "memory",
            "process_sets",
            "operations",
            "device_arrays",
            "tables",
            "objects",
        ),
        *("membership", "tuning", "job"),
    ),
    "torch": (
        *("compiled", "compression", "adapter", "async_ops", "autograd", "mpi_ops"),
        *("sync_batch_norm", "tensor_broadcast", "optimizer_state", "functions", "phases"),
        *("optimizer", "elastic"),
    ),
    "jax": (
        *("adapter", "call", "names", "primitive", "gradients", "mpi_ops", "functions"),
        *("compression", "reduced_gradients"),
    ),
    "mxnet": (
        *("compression", "adapter", "mpi_ops", "functions", "gradients", "optimizer", "trainer"),
    ),
    "tensorflow": (
        *("util", "compression", "calls", "mpi_ops", "gradients"),
        *("reductions", "gradient_reduction", "tape", "gradient_aggregation"),
        *("gradient_aggregation_eager", "optimizer", "functions", "elastic", "sync_batch_norm"),
        *("data", "keras"),
    ),
    "ray": (
        *("ray_logger", "utils", "settings", "node_files", "worker", "strategy", "crew"),
        *("recording", "coordinator", "adapter", "static_adapter", "elastic", "runner"),
    ),
    "timeline": (
        *("words", "schema", "record", "structure", "analysis", "replay", "evidence", "advice"),
        *("report", "horovod", "viewers", "api"),
    ),
    "autotune": (
        *("messages", "statistics", "search", "memory", "report", "session", "nccl_tuner"),
    ),
    "launch": (
        *("errors", "interruption", "flags", "config_file", "settings", "allocation", "local"),
        *("remote", "placed", "worker", "workers", "job", "external", "elastic", "start"),
        *("function", "kubernetes", "doctor"),
    ),
    "spark": (
        *("conf", "cluster", "link", "order", "task", "course", "job", "runner", "elastic"),
        *("horovod_runner", "common", "torch", "lightning", "keras"),
    ),
    "bench": (
        *("cuda", "pattern", "arrays", "collectives", "sizes", "memory", "metrics"),
        *("plan", "timing", "workloads", "report", "worker", "runner"),
    ),
}
# What rooms do not need, although they come later.
APART = {("viewers", room) for room in ("evidence", "advice", "report", "horovod")}
MOST_FILES = 15  # of a folder
MOST_LINES = 5  # of a folder's docstring
LISTS = {"cli"}  # one file a verb

# Whom each native directory may include, apart from itself.
NATIVE_LAYERS: dict[str, set[str]] = {
    "base": set(),
    "device": {"base"},
    "pmix": set(),
    "wire": {"base"},
    "transport": {"base", "wire"},
    "collective": {"base", "device", "wire", "transport"},
    "backend": {"base", "wire", "transport", "collective"},
    "observe": {"base"},
    "engine": {"base", "device", "wire", "transport", "collective", "backend", "observe"},
    "faces": {"base", "wire", "engine"},
    "python": {
        *("base", "device", "wire", "transport", "collective", "backend", "observe", "engine"),
        "faces",
    },
}

# Rooms of a native directory: which folders of NATIVE_ROOMS each may include, apart from itself.
# Other directories may include all rooms of base.
NATIVE_ROOMS: dict[str, set[str]] = {
    "base": set(),
    "base/cpu": {"base"},
    "base/threads": {"base"},
    "base/memory": {"base"},
    "device/libraries": set(),
    "device": {"device/libraries"},
    "device/kernels": {"device", "device/libraries"},
    "observe/trace": set(),
    "observe/capture": {"observe/trace"},
    "observe/stragglers": set(),
    "observe/status": {"observe/trace", "observe/stragglers"},
    "transport/arena": set(),
    "transport/sockets": set(),
    "transport/messengers": set(),
    "transport/meeting": {"transport/arena", "transport/sockets"},
    "transport/control": {"transport/arena", "transport/sockets", "transport/meeting"},
    "collective/kernels": set(),
    # The files that lie in no room: what all rooms below implement, or need.
    "collective": {"collective/kernels", "transport/meeting"},
    "collective/shm": {"collective", "collective/kernels", "transport/arena"},
    "collective/sockets": {"collective", "collective/kernels", "transport/sockets"},
    "collective/messages": {
        *("collective", "collective/kernels", "transport/messengers", "transport/sockets"),
    },
    "collective/hierarchy": {"collective", "collective/kernels", "collective/shm"},
    "collective/gpu": {"collective", "transport/meeting", "device", "device/kernels"},
    "engine/job": {"transport/arena", "transport/meeting", "observe/status"},
    "engine/operation": {
        *("collective/kernels", "collective/shm", "transport/arena", "device", "device/libraries"),
    },
    "engine/execution": {
        *("collective", "collective/gpu", "collective/kernels", "collective/shm"),
        *("engine/job", "engine/operation", "device/kernels", "observe/trace"),
    },
    "engine/submission": {
        *("collective", "collective/kernels", "collective/shm", "transport/arena"),
        *("engine/job", "engine/operation"),
    },
    "engine/recording": {
        *("engine/job", "engine/operation", "engine/execution", "engine/submission"),
        *("observe/capture", "observe/trace"),
    },
    "engine/coordination": {
        *("collective", "transport/arena", "transport/control", "transport/meeting"),
        *("observe/status", "observe/stragglers"),
        *("engine/job", "engine/operation", "engine/recording"),
    },
    "engine/watch": {
        *("transport/control", "engine/job", "engine/operation", "engine/submission"),
        *("engine/recording", "engine/coordination", "observe/status", "observe/trace"),
    },
    "engine/schedule": {
        *("collective", "engine/job", "engine/operation", "engine/execution"),
        *("engine/submission", "engine/recording", "engine/watch", "observe/status"),
    },
    "engine/drive": {
        *("engine/job", "engine/operation", "engine/submission", "engine/recording"),
        *("engine/coordination", "engine/watch", "engine/schedule"),
    },
    # The engine itself, which owns parts of all rooms.
    "engine": {
        *("collective", "transport/arena", "transport/meeting", "engine/job", "engine/operation"),
        *("engine/submission", "engine/execution", "engine/recording", "engine/coordination"),
        *("engine/watch", "engine/schedule", "engine/drive"),
        *("observe/status", "observe/stragglers"),
    },
    "python/tensors": {"engine"},
    "python/calls": {"python/tensors", "engine", "engine/operation"},
    "python": {
        *("python/calls", "python/tensors", "engine", "observe/capture", "transport/arena"),
        *("transport/control", "transport/meeting", "transport/messengers"),
    },
}
MOST_NATIVE_NAMES = 12  # of a room: a .h and its .cc have one name

HEAVY = ("jax", "numpy", "pandas", "plotly", "skopt", "sklearn", "torch", "yaml", "cloudpickle")
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


#: Modules that belong to another layer than their folder: Horovod has two names for its Keras face.
ELSEWHERE = {
    "autotune.session.online": "autotune.session.online",
    "tensorflow.keras": "keras",
    "tensorflow.sync_batch_norm": "keras",
}


def layer_of(module: str) -> str:
    """The key of PYTHON_LAYERS that a module below `hvdtune` belongs to."""
    for place, layer in ELSEWHERE.items():
        if module == place or module.startswith(f"{place}."):
            return layer
    return module.split(".")[0]


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


def rooms_used(path: Path, part: str) -> Iterator[tuple[int, str]]:
    for line, name in imported_modules(path):
        words = name.split(".")
        if words[:2] == ["hvdtune", part] and len(words) > 2 and words[2] in ROOMS[part]:
            yield line, words[2]


@pytest.mark.parametrize("part", ROOMS)
def test_rooms_know_only_those_before_them(part: str):
    faults = []
    order = ROOMS[part]
    for path in sorted((PACKAGE / part).rglob("*.py")):
        own = path.relative_to(PACKAGE / part).with_suffix("").parts[0]
        if own == "__init__":
            continue
        assert own in order, f"{relative(path)} belongs to no room of {part}"
        faults += [
            f"{relative(path)}:{line}: {own} must not import {room}"
            for line, room in rooms_used(path, part)
            if order.index(room) > order.index(own) or (own, room) in APART
        ]
    assert not faults, "\n".join(faults)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of names that lead to each other (strongly connected, more than one)."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        found, left = set(), [name]
        while left:
            for after in graph.get(left.pop(), set()) - found:
                found.add(after)
                left.append(after)
        reached[name] = found
    alike = {
        tuple(sorted(other for other in reached[name] if name in reached.get(other, set())))
        for name in graph
        if name in reached[name]
    }
    return [list(one) for one in sorted(alike)]


def test_every_face_passes_the_conformance_tests():
    faces = {part: part for part in PYTHON_LAYERS} | {"arrays": "numpy"}
    # Keras and Lightning have no operations of their own: those of the faces on which they stand.
    no_faces = {"keras", "lightning", "_alias"}
    own = {part for part, may in PYTHON_LAYERS.items() if "faces" in may}
    for part in sorted(own - no_faces):
        assert (ROOT / f"tests/conformance/test_{faces[part]}_face.py").exists(), part


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "e2"}, "e2": {"e"}}
    assert circles(graph) == [["b", "c"], ["e", "e2"]]


def test_no_python_files_import_each_other():
    """Neither at the top nor within a function. Types alone may be imported from above.

    Nor does what `import hvdtune` imports take anything from hvdtune itself; the native module,
    which no file here is, comes by `import hvdtune._native as _native`.
    """
    names = {("hvdtune." + module_name(path)).rstrip("."): path for path in python_files()}
    graph = {}
    for name, path in names.items():
        lines = type_checking_lines(path)
        imported = [(line, one) for line, one in imported_modules(path) if line not in lines]
        graph[name] = {one for _, one in imported if one in names and one != name}
        # The packages that it lies in are imported before it, whatever it takes from them.
        words = name.split(".")
        graph[name] -= {".".join(words[:end]) for end in range(1, len(words))}
        if takes_from_the_whole(imported, {*names}):
            graph[name].add("hvdtune")
    assert circles(graph) == []


def takes_from_the_whole(imported: list[tuple[int, str]], modules: set[str]) -> bool:
    """Whether a line imports hvdtune itself, or something of it that is none of its modules."""
    by_line: dict[int, set[str]] = {}
    for line, one in imported:
        by_line.setdefault(line, set()).add(one)
    parts = [found - {"hvdtune"} for found in by_line.values() if "hvdtune" in found]
    return any(not found or bool(found - modules) for found in parts)


def type_checking_lines(path: Path) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for one in node.body:
                found |= set(range(one.lineno, (one.end_lineno or one.lineno) + 1))
    return found


def included_files(path: Path) -> Iterator[tuple[int, str]]:
    """Line and path below `native` of every #include of our own."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if match:
            yield number, match[1]


def test_no_native_files_include_each_other():
    graph = {
        str(path.relative_to(NATIVE)): {name for _, name in included_files(path)}
        for path in native_files()
    }
    assert circles(graph) == []


def test_native_rooms_know_only_those_named():
    faults = []
    with_rooms = {room.partition("/")[0] for room in NATIVE_ROOMS}
    for path in native_files():
        own = str(path.parent.relative_to(NATIVE))
        if own.partition("/")[0] not in with_rooms:
            continue
        assert own in NATIVE_ROOMS, f"{relative(path)} belongs to no room"
        for number, name in included_files(path):
            room = name.rpartition("/")[0]
            if room.startswith("base") and not own.startswith("base"):
                continue
            if room in NATIVE_ROOMS and room not in NATIVE_ROOMS[own] | {own}:
                faults.append(f"{relative(path)}:{number}: {own} must not include {name}")
    assert not faults, "\n".join(faults)


def test_native_rooms_do_not_know_each_other_in_circles():
    assert circles(NATIVE_ROOMS) == []


def test_native_rooms_hold_a_dozen_names():
    faults = []
    for room in NATIVE_ROOMS:
        names = {path.stem for path in (NATIVE / room).glob("*.*")}
        if not names or len(names) > MOST_NATIVE_NAMES:
            faults.append(f"native/{room} has {len(names)} names")
    assert not faults, ", ".join(faults)


def test_folders_hold_a_dozen_files():
    faults = []
    others = (TESTS / "support", ROOT / "benchmarks")
    programs = [*python_files(), *(path for folder in others for path in folder.rglob("*.py"))]
    for folder in sorted({path.parent for path in programs} - {PACKAGE}):
        count = sum(path.suffix == ".py" for path in folder.iterdir())
        name = relative(folder).removeprefix("hvdtune/")
        if name not in LISTS and not name.startswith("_alias") and count > MOST_FILES:
            faults.append(f"{relative(folder)} has {count} files")
    assert not faults, ", ".join(faults)


def test_what_tests_share_has_its_rooms():
    assert [path.name for path in TESTS.glob("*.py")] == ["conftest.py"]


def test_every_folder_says_what_is_inside_and_whom_it_may_know():
    faults = []
    for path in [*python_files(), *(TESTS / "support").rglob("*.py")]:
        if path.name == "__init__.py" and "_alias" not in path.parts:
            told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            if not 1 <= len(told.splitlines()) <= MOST_LINES:
                faults.append(f"{relative(path)} has {len(told.splitlines())} lines")
            within = PACKAGE in path.parents and path.parent != PACKAGE
            if within and not re.search(r"\bknows?\b", told, re.IGNORECASE):
                faults.append(f"{relative(path)} does not say whom it may know")
    assert not faults, "docstrings of folders: " + ", ".join(faults)


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
        for number, name in included_files(path):
            if name.split("/")[0] not in NATIVE_LAYERS[own] | {own}:
                faults.append(f"{relative(path)}:{number}: {own} must not include {name}")
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
