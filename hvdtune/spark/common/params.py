"""The parameters of estimators and models: tables, with generated setters and getters.

A table's entry `batch_size` gives a class the Spark ML parameter `batch_size`, its default,
`setBatchSize` and `getBatchSize`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.ml.param import Param, Params

Check = Callable[[Any], Any]


@dataclass(frozen=True)
class Entry:
    """One parameter: its default, its meaning, its check, further method names."""

    name: str
    default: Any
    doc: str
    check: Check | None = None
    also: tuple[str, ...] = ()


def whole(lowest: int) -> Check:
    """Accepts whole numbers, `lowest` or more."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < lowest:
            raise ValueError(f"a whole number, {lowest} or more")
        return int(value)

    return check


def truth(value: Any) -> bool:
    """Accepts True and False."""
    if not isinstance(value, (bool, numbers.Integral)):
        raise ValueError("True or False")
    return bool(value)


def text(value: Any) -> str:
    """Accepts texts."""
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def function(value: Any) -> Any:
    """Accepts callables."""
    if not callable(value):
        raise ValueError("a function")
    return value


def items(value: Any) -> list[Any]:
    """Accepts lists and tuples, or a single item."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return [value]


def texts(value: Any) -> list[str]:
    """Accepts lists of texts, or a single text."""
    found = items(value)
    if not all(isinstance(one, str) for one in found):
        raise ValueError("a list of column names")
    return found


def weights(value: Any) -> list[float]:
    """Accepts lists of numbers."""
    found = items(value)
    if not all(isinstance(one, numbers.Real) for one in found):
        raise ValueError("a list of numbers, one for each label")
    return [float(one) for one in found]


def fraction_or_column(value: Any) -> Any:
    """Accepts numbers in [0, 1) and texts."""
    if isinstance(value, str) or (
        isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 <= float(value) < 1
    ):
        return value
    raise ValueError("a fraction of the rows, 0 ≤ fraction < 1, or the name of a column")


def pool_type(value: Any) -> str:
    """Accepts petastorm's kinds of readers; all read in threads here."""
    if value not in ("thread", "process", "dummy"):
        raise ValueError("'thread', 'process' or 'dummy'")
    return str(value)


def instance_of(*names: str) -> Check:
    """Accepts objects that have all these methods."""

    def check(value: Any) -> Any:
        if not all(callable(getattr(value, name, None)) for name in names):
            raise ValueError(f"an object with {', '.join(f'{name}()' for name in names)}")
        return value

    return check


ESTIMATOR = (
    Entry("num_proc", None, "ranks to train with; by default as many as tasks can run", whole(1)),
    Entry("backend", None, "where ranks run (a Backend)", instance_of("run", "num_processes")),
    Entry("store", None, "data, checkpoints, logs (a Store)", instance_of("get_train_data_path")),
    Entry("model", None, "the model to train"),
    Entry("optimizer", None, "the optimizer, made for the model"),
    Entry("loss", None, "the loss function, or one for each label"),
    Entry("loss_weights", None, "the weight of each label's loss; by default equal", weights),
    Entry("sample_weight_col", None, "the column with the weight of each row", text),
    Entry("metrics", [], "functions or names of metrics, computed each epoch", items),
    Entry("feature_cols", None, "columns that the model gets, in order", texts),
    Entry("label_cols", None, "columns that the model must predict, in order", texts),
    Entry("continuous_cols", None, "names of continuous features; not used by training", texts),
    Entry("categorical_cols", None, "names of categorical features; not used by training", texts),
    Entry(
        "validation",
        None,
        "the rows for validation: a fraction of all rows, or a column that is true, or above "
        "0, for them",
        fraction_or_column,
    ),
    Entry("gradient_compression", None, "how gradients are sent: hvd.Compression.fp16, …"),
    Entry("compress_sparse_cols", False, "keep sparse vectors sparse in the store", truth),
    Entry("batch_size", 32, "rows of a training step on each rank", whole(1)),
    Entry("val_batch_size", None, "rows of a validation step; by default batch_size", whole(1)),
    Entry("epochs", 1, "passes over the data", whole(1)),
    Entry("verbose", 1, "0: silent, 1: a line an epoch, 2: more", whole(0)),
    Entry("callbacks", [], "the framework's callbacks", items),
    Entry("random_seed", None, "makes training repeatable", whole(0)),
    Entry(
        "shuffle_buffer_size",
        None,
        "rows from which the next ones are drawn; by default as many as fit in 256 MB",
        whole(0),
        ("ShufflingBufferSize",),
    ),
    Entry("shuffle", True, "whether training rows get a new order each epoch", truth),
    Entry("partitions_per_process", 10, "files to write for each rank", whole(1)),
    Entry("run_id", None, "the run's name; an earlier one continues from its checkpoint", text),
    Entry(
        "train_steps_per_epoch",
        None,
        "steps of an epoch; by default all rows / (batch_size × ranks)",
        whole(1),
    ),
    Entry(
        "validation_steps_per_epoch",
        None,
        "steps of a validation; by default all rows / (val_batch_size × ranks)",
        whole(1),
    ),
    Entry(
        "transformation_fn",
        None,
        "a function from a row group's pandas DataFrame to the one to train with",
        function,
    ),
    Entry(
        "transformation_edit_fields",
        None,
        "columns that transformation_fn makes or changes: (name, dtype, shape, nullable)",
        items,
    ),
    Entry("transformation_removed_fields", None, "columns that transformation_fn drops", texts),
    Entry(
        "train_reader_num_workers",
        2,
        "0: read training data between steps; more: read ahead in a thread",
        whole(0),
        ("TrainReaderNumWorker",),
    ),
    Entry(
        "val_reader_num_workers",
        2,
        "the same for validation data",
        whole(0),
        ("ValReaderNumWorker",),
    ),
    Entry("reader_pool_type", "thread", "accepted; data are read in threads", pool_type),
    Entry("label_shapes", None, "the shape of a batch of each label, such as [-1, 2]", items),
    Entry(
        "inmemory_cache_all",
        False,
        "keep each rank's rows in its memory after the first epoch",
        truth,
        ("InMemoryCacheAll",),
    ),
    Entry("use_gpu", True, "train on a GPU if there is one", truth),
    Entry("mp_start_method", None, "accepted; no process is started for reading"),
    Entry("backward_passes_per_step", 1, "batches whose gradients are added up", whole(1)),
    Entry(
        "tensorflow_dataset_prefetch_buffer_size",
        0,
        "accepted; row groups are read ahead instead of batches",
        whole(-1),
    ),
)

MODEL = (
    Entry("history", None, "the metrics of each epoch"),
    Entry("model", None, "the trained model"),
    Entry("feature_columns", None, "columns that are the model's inputs, in order", texts),
    Entry("label_columns", None, "columns that it was trained to predict, in order", texts),
    Entry("output_cols", None, "names of the columns of predictions", texts),
    Entry("run_id", None, "the run that trained it", text),
    Entry("_metadata", None, "types and shapes of the training columns"),
    Entry("batch_size", 1024, "rows to predict at once", whole(1)),
)


class TableParams(Params):
    """A class whose parameters are in a table, `entries`; keyword arguments only.

    Raises TypeError for an argument that is not a parameter, and TypeError or ValueError for a
    value that a parameter does not accept; each error says what is accepted.
    """

    entries: ClassVar[tuple[Entry, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for entry in cls.entries:
            check = functools.partial(checked, entry)
            setattr(cls, entry.name, Param(Params._dummy(), entry.name, entry.doc, check))
            for name in (_camel(entry.name), *entry.also):
                for method, of in ((f"set{name}", _setter), (f"get{name}", _getter)):
                    if method not in cls.__dict__:
                        setattr(cls, method, of(entry))
        if cls.entries:
            cls.__signature__ = inspect.Signature(
                [
                    inspect.Parameter(
                        entry.name, inspect.Parameter.KEYWORD_ONLY, default=entry.default
                    )
                    for entry in cls.entries
                ]
            )

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._setDefault(**{entry.name: _fresh(entry.default) for entry in self.entries})
        self.set_values(values)

    def set_values(self, values: dict[str, Any]) -> None:
        """Set parameters by name, all checked; None means the default."""
        known = {entry.name: entry for entry in self.entries}
        for name, value in values.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}"
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}{hint}")
            self._put(known[name], value)

    def _put(self, entry: Entry, value: Any) -> None:
        if value is None:
            self.clear(self.getParam(entry.name))
        else:
            self._set(**{entry.name: value})

    def value(self, name: str) -> Any:
        """A parameter's value or default."""
        return self.getOrDefault(self.getParam(name))


def checked(entry: Entry, value: Any) -> Any:
    """The value in the form to keep. Raises ValueError saying what is accepted."""
    if entry.check is None:
        return value
    try:
        return entry.check(value)
    except ValueError as error:
        raise ValueError(f"{entry.name}={value!r} is not accepted: give {error}.") from None


def replaced(table: Iterable[Entry], *entries: Entry) -> tuple[Entry, ...]:
    """A table with entries added, or replacing those with the same name."""
    found = {entry.name: entry for entry in (*table, *entries)}
    return tuple(found.values())


def _fresh(default: Any) -> Any:
    return default.copy() if isinstance(default, (list, dict)) else default


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _setter(entry: Entry) -> Callable[[Any, Any], Any]:
    def method(self: Any, value: Any) -> Any:
        self._put(entry, value)
        return self

    method.__name__ = method.__qualname__ = f"set{_camel(entry.name)}"
    method.__doc__ = f"Set {entry.name}: {entry.doc}. Returns this object."
    return method


def _getter(entry: Entry) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        return self.value(entry.name)

    method.__name__ = method.__qualname__ = f"get{_camel(entry.name)}"
    method.__doc__ = f"{entry.name}: {entry.doc}."
    return method
