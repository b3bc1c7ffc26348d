"""An estimator's data, checkpoints and logs: in a folder that driver and ranks reach.

`Store.create(prefix)` chooses the class by the prefix. Below the prefix are
`intermediate_train_data`, `intermediate_val_data`, `intermediate_test_data` (Parquet, with a number
for each DataFrame) and `runs/<run_id>`, which has `checkpoint` and `logs`.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RemoteStore:
    """What a rank must know of a store: the paths of one run, and how to upload files."""

    train_data_path: str
    val_data_path: str
    test_data_path: str
    saving_runs: bool
    runs_path: str | None
    run_path: str | None
    checkpoint_path: str | None
    logs_path: str | None
    checkpoint_filename: str
    logs_subdir: str
    storage_options: dict[str, Any]
    get_local_output_dir: Callable[[], contextlib.AbstractContextManager[str]]
    sync: Callable[[str], None]


class Store:
    """A folder for data, checkpoints and logs. A user's own kind of store overrides the methods."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """The contents of a file."""
        raise NotImplementedError

    def write_text(self, path: str, text: str) -> None:
        """Write a text file (UTF-8), and the folders above it."""
        raise NotImplementedError

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether a folder holds Parquet files."""
        raise NotImplementedError

    def get_parquet_dataset(self, path: str) -> Any:
        """The folder as a `pyarrow.parquet.ParquetDataset`."""
        raise NotImplementedError

    def get_train_data_path(self, idx: int | None = None) -> str:
        """The folder of the training data; `idx` is the number of the DataFrame."""
        raise NotImplementedError

    def get_val_data_path(self, idx: int | None = None) -> str:
        """The folder of the validation data."""
        raise NotImplementedError

    def get_test_data_path(self, idx: int | None = None) -> str:
        """The folder of the test data, which estimators don't use."""
        raise NotImplementedError

    def saving_runs(self) -> bool:
        """Whether checkpoints and logs are kept."""
        raise NotImplementedError

    def get_runs_path(self) -> str:
        """The folder of all runs."""
        raise NotImplementedError

    def get_run_path(self, run_id: str) -> str:
        """The folder of one run."""
        raise NotImplementedError

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """The path of a run's checkpoint (a file, for Lightning a folder); None if none is kept."""
        raise NotImplementedError

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The files in a run's checkpoint folder that end in `suffix`, sorted."""
        raise NotImplementedError

    def get_logs_path(self, run_id: str) -> str | None:
        """The folder of a run's logs; None if none are kept."""
        raise NotImplementedError

    def get_checkpoint_filename(self) -> str:
        """The name of checkpoints within their run."""
        raise NotImplementedError

    def get_logs_subdir(self) -> str:
        """The name of the logs' folder within its run."""
        raise NotImplementedError

    def get_full_path(self, path: str) -> str:
        """The path with its protocol, as Spark needs it."""
        raise NotImplementedError

    def get_localized_path(self, path: str) -> str:
        """The path without its protocol, as the file system needs it."""
        raise NotImplementedError

    def get_local_output_dir_fn(
        self, run_id: str
    ) -> Callable[[], contextlib.AbstractContextManager[str]]:
        """A context manager that yields a folder on this machine, where rank 0 writes a run."""
        raise NotImplementedError

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies the contents of such a folder into the run's."""
        raise NotImplementedError

    def copy(self, lpath: str, rpath: str) -> None:
        """Upload a file or folder from this machine."""
        raise NotImplementedError

    def to_remote(self, run_id: str, dataset_idx: int | None) -> RemoteStore:
        """The part of the store that the ranks of a run get."""
        return RemoteStore(
            train_data_path=self.get_train_data_path(dataset_idx),
            val_data_path=self.get_val_data_path(dataset_idx),
            test_data_path=self.get_test_data_path(dataset_idx),
            saving_runs=self.saving_runs(),
            runs_path=self.get_runs_path(),
            run_path=self.get_run_path(run_id),
            checkpoint_path=self.get_checkpoint_path(run_id),
            logs_path=self.get_logs_path(run_id),
            checkpoint_filename=self.get_checkpoint_filename(),
            logs_subdir=self.get_logs_subdir(),
            storage_options=dict(getattr(self, "storage_options", None) or {}),
            get_local_output_dir=self.get_local_output_dir_fn(run_id),
            sync=self.sync_fn(run_id),
        )

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """The store for a prefix: HDFS, then Databricks, then any protocol of fsspec.

        Further arguments are those of the class. Raises ValueError for an unknown protocol.
        """
        path = os.fspath(prefix_path)
        for kind in (HDFSStore, DBFSLocalStore):
            if kind.matches(path):
                return kind(path, *args, **kwargs)
        return FilesystemStore(path, *args, **kwargs)


class FilesystemStore(Store):
    """A store on any file system of fsspec: `/folder`, `file://`, `s3://`, `memory://`, ….

    prefix_path: a folder or URL. train_path, val_path, test_path, runs_path: other paths for parts
    of it. save_runs: whether checkpoints and logs are kept. storage_options: arguments of fsspec's
    file system, such as credentials.
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise TypeError(
                f"{type(self).__name__} has no argument {next(iter(kwargs))!r}; it takes "
                "prefix_path, train_path, val_path, test_path, runs_path, save_runs and "
                "storage_options."
            )
        self.storage_options = dict(storage_options or {})
        self.prefix_path = self.get_full_path(os.fspath(prefix_path))
        self._fs: Any = None
        self._check()
        self._train_path = self._place(train_path, "intermediate_train_data")
        self._val_path = self._place(val_path, "intermediate_val_data")
        self._test_path = self._place(test_path, "intermediate_test_data")
        self._runs_path = self._place(runs_path, "runs")
        self._save_runs = save_runs

    def _check(self) -> None:
        """Open the file system now, so that an error is raised where the mistake is."""
        try:
            assert self.fs is not None
        except (ValueError, ImportError) as error:
            raise ValueError(
                f"Store {self.prefix_path!r} cannot be used: {error}. Give a folder or a URL whose "
                "protocol fsspec has here."
            ) from error

    def _place(self, given: str | None, name: str) -> str:
        if given is not None:
            return self.get_full_path(os.fspath(given))
        return f"{self.prefix_path.rstrip('/')}/{name}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fs": None}

    @property
    def fs(self) -> Any:
        """The file system, from fsspec."""
        if self._fs is None:
            from fsspec.core import url_to_fs

            self._fs, _ = url_to_fs(self.prefix_path, **self.storage_options)
        return self._fs

    def get_full_path(self, path: str) -> str:
        """The path with its protocol; a path without one is on this machine."""
        if "://" in path:
            return path
        return f"file://{os.path.abspath(path.removeprefix('file:'))}"

    def get_localized_path(self, path: str) -> str:
        """The path as `fs` needs it."""
        return str(self.fs._strip_protocol(path))

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        return bool(self.fs.exists(self.get_localized_path(path)))

    def read(self, path: str) -> bytes:
        """The contents of a file."""
        with self.fs.open(self.get_localized_path(path), "rb") as file:
            return bytes(file.read())

    def write_text(self, path: str, text: str) -> None:
        """Write a text file (UTF-8), and the folders above it."""
        place = self.get_localized_path(path)
        self.fs.makedirs(posixpath.dirname(place), exist_ok=True)
        with self.fs.open(place, "w", encoding="utf-8") as file:
            file.write(text)

    def copy(self, lpath: str, rpath: str) -> None:
        """Upload a file, or the contents of a folder."""
        place = self.get_localized_path(rpath)
        if not os.path.isdir(lpath):
            self.fs.makedirs(posixpath.dirname(place), exist_ok=True)
            self.fs.put_file(lpath, place)
            return
        self.fs.makedirs(place, exist_ok=True)
        for name in sorted(os.listdir(lpath)):
            self.copy(os.path.join(lpath, name), posixpath.join(place, name))

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether a folder holds Parquet files."""
        try:
            return len(self.get_parquet_dataset(path).files) > 0
        except (OSError, ValueError):
            return False

    def get_parquet_dataset(self, path: str) -> Any:
        """The folder as a `pyarrow.parquet.ParquetDataset`."""
        import pyarrow.parquet

        return pyarrow.parquet.ParquetDataset(self.get_localized_path(path), filesystem=self.fs)

    def get_train_data_path(self, idx: int | None = None) -> str:
        """The folder of the training data; `idx` is the number of the DataFrame."""
        return _numbered(self._train_path, idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """The folder of the validation data."""
        return _numbered(self._val_path, idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """The folder of the test data, which estimators don't use."""
        return _numbered(self._test_path, idx)

    def saving_runs(self) -> bool:
        """Whether checkpoints and logs are kept."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """The folder of all runs."""
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        """The folder of one run."""
        return f"{self._runs_path}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """The path of a run's checkpoint (a file, for Lightning a folder); None if none is kept."""
        place = f"{self.get_run_path(run_id)}/{self.get_checkpoint_filename()}"
        return place if self._save_runs else None

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """The files in a run's checkpoint folder that end in `suffix`, sorted."""
        folder = self.get_checkpoint_path(run_id)
        if folder is None or not self.exists(folder):
            return []
        names = self.fs.ls(self.get_localized_path(folder), detail=False)
        return sorted(name for name in names if name.endswith(suffix))

    def get_logs_path(self, run_id: str) -> str | None:
        """The folder of a run's logs; None if none are kept."""
        place = f"{self.get_run_path(run_id)}/{self.get_logs_subdir()}"
        return place if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        """The name of checkpoints within their run."""
        return "checkpoint"

    def get_logs_subdir(self) -> str:
        """The name of the logs' folder within its run."""
        return "logs"

    def is_local(self) -> bool:
        """Whether the store is on a file system of the operating system."""
        return self.prefix_path.startswith("file://")

    def get_local_output_dir_fn(
        self, run_id: str
    ) -> Callable[[], contextlib.AbstractContextManager[str]]:
        """The run's own folder if the store is local; else one that is removed afterwards."""
        here = self.get_localized_path(self.get_run_path(run_id)) if self.is_local() else None

        @contextlib.contextmanager
        def local_run_path() -> Iterator[str]:
            if here is not None:
                os.makedirs(here, mode=0o755, exist_ok=True)
                yield here
            else:
                with tempfile.TemporaryDirectory(prefix="hvdtune-run-") as folder:
                    yield folder

        return local_run_path

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies the contents of a folder into the run's."""
        run_path, is_local = self.get_run_path(run_id), self.is_local()

        def sync(local_run_path: str) -> None:
            if not is_local:
                self.copy(local_run_path, run_path)

        return sync

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether `Store.create` makes a store of this class for the path."""
        return not HDFSStore.matches(path) and not DBFSLocalStore.matches(path)


class LocalStore(FilesystemStore):
    """The old name of `FilesystemStore`."""

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "LocalStore is deprecated, use FilesystemStore instead",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(prefix_path, *args, **kwargs)


class HDFSStore(FilesystemStore):
    """A store on HDFS, through pyarrow's client, which needs `libhdfs` and Hadoop's classes.

    prefix_path: `hdfs://host:port/folder`, `hdfs://nameservice/folder`, `hdfs:///folder` (the
    cluster of Hadoop's configuration) or a path without a protocol. host, port: of the name node,
    if the path has none. user: the user that writes. kerb_ticket: a Kerberos ticket cache.
    extra_conf: further settings of Hadoop. driver, temp_dir: ignored; there is one client, and
    rank 0's temporary folder is that of the operating system.
    """

    _PREFIX = "hdfs://"
    _URL = re.compile(r"^(?:hdfs://)?(?P<host>[^/:]*)(?::(?P<port>\d+))?(?P<path>/.*)$")

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: dict[str, str] | None = None,
        temp_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        found = self._parsed(os.fspath(prefix_path))
        named, at = found["host"] or None, int(found["port"]) if found["port"] else None
        for what, of_url, given in (("host", named, host), ("port", at, port)):
            if of_url is not None and given is not None and of_url != given:
                raise ValueError(
                    f"HDFSStore: {prefix_path!r} names the {what} {of_url!r}, but {what}={given!r} "
                    "was given; they must agree, or leave one out."
                )
        self._host, self._port = named or host, at or port
        options = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        options = {name: value for name, value in options.items() if value is not None}
        given_options = kwargs.pop("storage_options", None) or {}
        super().__init__(found["path"], storage_options={**options, **given_options}, **kwargs)

    @classmethod
    def _parsed(cls, path: str) -> dict[str, Any]:
        found = cls._URL.match(path)
        if found is None or (found["host"] and not path.startswith(cls._PREFIX)):
            raise ValueError(
                f"{path!r} is not a path on HDFS; accepted are hdfs://host:port/folder, "
                "hdfs://nameservice/folder, hdfs:///folder and /folder."
            )
        return found.groupdict()

    def _check(self) -> None:
        """Does nothing: the cluster is contacted only when it is needed."""

    @property
    def fs(self) -> Any:
        """The file system (fsspec's, on `pyarrow.fs.HadoopFileSystem`)."""
        if self._fs is None:
            import fsspec

            self._fs = fsspec.filesystem(
                "hdfs", host=self._host or "default", port=self._port or 0, **self.storage_options
            )
        return self._fs

    def path_prefix(self) -> str:
        """`hdfs://host:port`, as far as these are known."""
        port = f":{self._port}" if self._host and self._port else ""
        return f"{self._PREFIX}{self._host or ''}{port}"

    def get_full_path(self, path: str) -> str:
        """The path with its protocol and name node."""
        return path if self.matches(path) else f"{self.path_prefix()}{path}"

    def get_localized_path(self, path: str) -> str:
        """The path without protocol and name node."""
        return str(self._parsed(path)["path"]) if self.matches(path) else path

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether a path begins with hdfs://."""
        return path.startswith(cls._PREFIX)


class DBFSLocalStore(FilesystemStore):
    """A store on Databricks' file system, which is mounted at /dbfs.

    prefix_path: `/dbfs/folder`, `dbfs:/folder`, `dbfs:///folder` or `file:///dbfs/folder`.
    """

    _WAIT = "DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS"
    _INTERVAL = "DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS"
    # Longest first: "dbfs:/" is a prefix of "dbfs:///".
    _PREFIXES = ("file:///dbfs/", "file:/dbfs/", "dbfs:///", "dbfs:/", "/dbfs/")

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(self.normalize_path(os.fspath(prefix_path)), *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Whether a path is on Databricks' file system."""
        return f"{path.rstrip('/')}/".startswith(cls._PREFIXES)

    matches_dbfs = matches

    @classmethod
    def normalize_path(cls, path: str) -> str:
        """The path below /dbfs. Raises ValueError for a path that is not Databricks'."""
        for prefix in cls._PREFIXES:
            if path.startswith(prefix):
                return f"/dbfs/{path[len(prefix) :].lstrip('/')}"
        if path == "/dbfs":
            return path
        raise ValueError(
            f"{path!r} is not a path on Databricks' file system; accepted are /dbfs/…, dbfs:/…, "
            "dbfs:///… and file:///dbfs/…"
        )

    def get_full_path(self, path: str) -> str:
        """The path with its protocol."""
        return super().get_full_path(self.normalize_path(path) if self.matches(path) else path)

    def get_checkpoint_filename(self) -> str:
        """The name of checkpoints within their run; this one is Horovod's on Databricks."""
        return "checkpoint.tf"

    def get_parquet_dataset(self, path: str) -> Any:
        """The folder, after waiting until the mount shows it (30 s, or the environment's value)."""
        ends = time.monotonic() + float(os.environ.get(self._WAIT, "30"))
        while not self.exists(path) and time.monotonic() < ends:
            time.sleep(float(os.environ.get(self._INTERVAL, "0.1")))
        return super().get_parquet_dataset(path)


def _numbered(path: str, idx: int | None) -> str:
    return path if idx is None else f"{path}.{idx}"
