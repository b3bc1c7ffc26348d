"""Saves estimators and models as Spark ML does, including values that JSON does not support."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import cloudpickle
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)


def encoded(value: Any) -> str:
    """A value as text: pickled, including functions and classes of the program."""
    return base64.b64encode(cloudpickle.dumps(value)).decode("ascii")


def decoded(value: str) -> Any:
    """The value that `encoded` was given. This runs code: read only what you trust."""
    return pickle.loads(base64.b64decode(value))


class Persistent(MLReadable[Any], MLWritable):
    """`save`, `write`, `load` and `read` of Spark ML, for a class with a table of parameters.

    A subclass may convert values with `to_saved` and `from_saved`. Loading runs pickled code: load
    only what you trust.
    """

    def write(self) -> MLWriter:
        """The object that saves this one: `write().overwrite().save(path)`."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """The object that loads one of this class."""
        return _Reader(cls)

    def to_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values to pickle, by parameter name."""
        return values

    def from_saved(self, values: dict[str, Any]) -> dict[str, Any]:
        """The parameters, from the pickled values."""
        return values


class _Writer(MLWriter):
    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:
        """Write the folder; `save` has already removed an old one if it should."""
        instance = self._instance
        values = {param.name: value for param, value in instance._paramMap.items()}
        saved = {name: encoded(value) for name, value in instance.to_saved(values).items()}
        DefaultParamsWriter.saveMetadata(instance, path, self.sparkSession, paramMap=saved)


class _Reader(MLReader[Any]):
    def __init__(self, cls: Any) -> None:
        super().__init__()
        self._cls = cls

    def load(self, path: str) -> Any:
        """The object that was saved in a folder. Raises ValueError if it is of another class."""
        cls = self._cls
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        if metadata["class"] != f"{cls.__module__}.{cls.__name__}":
            raise ValueError(
                f"{path} holds a {metadata['class']}, not a {cls.__module__}.{cls.__name__}: load "
                "it with that class."
            )
        instance = cls()
        instance._resetUid(metadata["uid"])
        saved = {name: decoded(value) for name, value in metadata["paramMap"].items()}
        instance.set_values(instance.from_saved(saved))
        return instance
