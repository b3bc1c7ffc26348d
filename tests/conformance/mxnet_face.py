"""The MXNet face: ``import hvdtune.mxnet``."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from conformance import program
from conformance.face import (
    ALL_REDUCING,
    ALLGATHERS,
    ALLREDUCES,
    ALLTOALLS,
    BROADCASTS,
    GROUPED,
    GROUPED_ALLGATHERS,
    GROUPED_ALLREDUCES,
    GROUPED_REDUCESCATTERS,
    REDUCESCATTERS,
    Face,
)

import hvdtune.mxnet

mx.util.set_np_shape(True)  # else nothing has no dimension or no element
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
AT_ONCE = (*ALL_REDUCING, *BROADCASTS)  # what MXNet's engine runs


class MxnetFace(Face):
    name = "mxnet"
    hvd = hvdtune.mxnet
    kind = mx.nd.NDArray
    narrow = True
    dtypes = (
        "uint8",
        "int8",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "bool",
    )
    forms = tuple(
        form
        for form in (
            *(*ALLREDUCES, *ALLGATHERS, *BROADCASTS, *ALLTOALLS, *REDUCESCATTERS),
            *(*GROUPED_ALLREDUCES, *GROUPED_ALLGATHERS, *GROUPED_REDUCESCATTERS),
        )
        if "_async" not in form
    )
    takes = ("complex",)  # there are no such NDArrays

    def tensor(self, values: np.ndarray, dtype: str) -> Any:
        if dtype == "bfloat16":
            return mx.nd.array(values, dtype="float32").astype(BFLOAT16)
        return mx.nd.array(values, dtype=dtype)

    def values(self, tensor: Any) -> np.ndarray:
        tensor.wait_to_read()  # MXNet does not wait for an array without elements
        return (tensor.astype("float32") if tensor.dtype == BFLOAT16 else tensor).asnumpy()

    def dtype(self, tensor: Any) -> str:
        return "bfloat16" if tensor.dtype == BFLOAT16 else np.dtype(tensor.dtype).name

    def container(self, form: str) -> type:
        return list

    def raised(self, cause: str, kind: str) -> str:
        if "reducescatter" in cause and kind == "HorovodInternalError" and "down" not in cause:
            return "ValueError"  # an operator that it does not have
        return "MXNetError" if cause in ("disagreement", "joined", "integers") else kind

    def words(self, text: str) -> str:
        return text.removeprefix("MXNetError: ")

    @property
    def in_flight(self) -> tuple[str, ...]:
        return tuple(form for form in self.forms if form in AT_ONCE)

    def finish(self, started: Any) -> None:
        for one in started if isinstance(started, list) else [started]:
            one.wait_to_read()

    def call(self, form: str, tensors: Any, **arguments: Any) -> Any:
        try:
            return super().call(form, tensors, **arguments)
        except hvdtune.mxnet.mpi_ops.InvalidAlltoallError as error:  # both kinds
            raise ValueError(str(error)) from None

    def complete(self, form: str, tensors: Any, **arguments: Any) -> Any:
        """Errors of the ranks together are raised where a result is read."""
        result = super().complete(form, tensors, **arguments)
        if form in AT_ONCE:
            for one in result if form in GROUPED else [result]:
                one.wait_to_read()
        return result


FACE = MxnetFace()


def run(blocks: tuple[str, ...], thorough: bool = False) -> Any:
    """The rank program."""
    return program.run(FACE, blocks, thorough)
