"""Installs the alias in an environment, and removes exactly what it installed.

It is installed as an ordinary distribution named horovod, with a RECORD of its files: pip lists it,
and `pip uninstall horovod` removes it just as `hvdtune alias remove` does.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import importlib.metadata
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hvdtune.alias.files import INSTALLER, METADATA_FOLDER, command_text, package_files

COMMAND = "horovodrun"


class AliasError(Exception):
    """The alias cannot be installed or removed; the text is a sentence that says why."""


@dataclass(frozen=True)
class Place:
    """An environment's folders for packages and for commands."""

    packages: Path
    commands: Path

    @property
    def metadata(self) -> Path:
        """The folder of the distribution's metadata, if the alias is installed here."""
        return self.packages / METADATA_FOLDER

    @property
    def installed(self) -> bool:
        """Whether `install` has put the alias here."""
        try:
            text = (self.metadata / "INSTALLER").read_text(encoding="utf-8")
        except OSError:
            return False
        return text.strip() == INSTALLER


def root() -> Path:
    """The folder that holds this very package."""
    return Path(__file__).resolve().parents[2]


def environment_place() -> Place:
    """The folders of the environment that this Python belongs to."""
    return _place(sysconfig.get_default_scheme())


def user_place() -> Place | None:
    """The user's own folders (`pip install --user`), or None if Python does not look there."""
    if not site.ENABLE_USER_SITE:
        return None
    return _place(sysconfig.get_preferred_scheme("user"))


def default_place() -> Place:
    """The user's folders if hvdtune itself is there, else the environment's."""
    user = user_place()
    return user if user is not None and user.packages == root() else environment_place()


def _place(scheme: str) -> Place:
    paths = sysconfig.get_paths(scheme)
    return Place(Path(paths["purelib"]), Path(paths["scripts"]))


# ---- what is installed ----


def real_horovod(place: Place) -> str | None:
    """Where another Horovod is, in words, or None.

    Looks for a package on sys.path, a distribution's metadata, and a command in the place's folder.
    """
    for distribution in importlib.metadata.distributions(name="horovod"):
        if (distribution.read_text("INSTALLER") or "").strip() != INSTALLER:
            return f"a distribution horovod is installed in {distribution.locate_file('')}"
    package = horovod_package()
    if package is not None and not is_ours(package):
        return f"there is a package horovod at {package}"
    command = place.commands / COMMAND
    if os.path.lexists(command) and not place.installed:
        return f"there is a command at {command}"
    return None


def horovod_package() -> Path | None:
    """The file that `import horovod` runs, or None; not a folder without Python files."""
    spec = importlib.util.find_spec("horovod")
    return Path(spec.origin) if spec is not None and spec.origin else None


def is_ours(package: Path) -> bool:
    """Whether a horovod/__init__.py is hvdtune's: its own, or one that `install` placed."""
    folder = package.parent.parent
    return folder.parts[-2:] == ("hvdtune", "_alias") or Place(folder, folder).installed


# ---- install ----


def install(place: Place) -> None:
    """Write the package, the command and their metadata, also over an earlier installation.

    Raises `AliasError` if there is a real Horovod, or if a folder cannot be written; then nothing
    remains of the attempt.
    """
    there = real_horovod(place)
    if there is not None:
        raise AliasError(f"{there}: uninstall it first, hvdtune does not overwrite it.")
    if place.installed:
        remove(place)
    texts = {place.packages / name: text for name, text in package_files(root()).items()}
    texts[place.commands / COMMAND] = command_text(root(), sys.executable)
    texts[place.metadata / "RECORD"] = _record(place, texts)
    with _undone_on_failure() as written:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
        (place.commands / COMMAND).chmod(0o755)


@contextlib.contextmanager
def _undone_on_failure() -> Iterator[list[Path]]:
    """If the block fails, delete the files in the list that the block gets."""
    written: list[Path] = []
    try:
        yield written
    except BaseException as error:
        for path in written:
            path.unlink()
        _remove_empty({path.parent for path in written})
        if not isinstance(error, OSError):
            raise
        hint = "use a virtual environment, or --user"
        if not site.ENABLE_USER_SITE:
            hint = "use an environment of your own"
        raise AliasError(f"{error.filename} cannot be written: {error.strerror}; {hint}.") from None


def _record(place: Place, texts: dict[Path, str]) -> str:
    """The distribution's list of files: path, hash, size."""
    rows = [
        f"{_recorded(place, path)},{_hash(text.encode())},{len(text.encode())}"
        for path, text in texts.items()
    ]
    return "\n".join([*rows, f"{METADATA_FOLDER}/RECORD,,", ""])


def _recorded(place: Place, path: Path) -> str:
    name = os.path.relpath(path, place.packages)
    return f'"{name}"' if "," in name else name


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={digest}"


# ---- remove ----


def remove(place: Place) -> None:
    """Delete what `install` wrote there and its compiled forms, nothing else.

    A file that anyone has changed since stays. Raises `AliasError` naming it, or a file that
    cannot be deleted, after deleting everything else.
    """
    kept = []
    folders = set()
    with open(place.metadata / "RECORD", encoding="utf-8", newline="") as record:
        rows = list(csv.reader(record))
    for name, digest, _size in rows:
        path = Path(os.path.normpath(place.packages / name))
        folders.add(path.parent)
        try:
            if digest and path.exists() and _hash(path.read_bytes()) != digest:
                kept.append(f"{path} has been changed since it was installed")
                continue
            path.unlink(missing_ok=True)
            _remove_compiled(path)
        except OSError as error:
            kept.append(f"{path} cannot be deleted: {error.strerror}")
    _remove_empty(folders - {place.commands, place.packages})
    if kept:
        raise AliasError(f"{'; '.join(kept)}; it stays.")


def _remove_compiled(path: Path) -> None:
    if path.suffix == ".py":
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (path.parent / "__pycache__").rmdir()


def _remove_empty(folders: set[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty, or never made
            folder.rmdir()
