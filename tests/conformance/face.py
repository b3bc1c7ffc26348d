"""What a face must say of its framework to be tested. Everything else is written once.

A new face adds one file like ``numpy_face.py`` with a subclass of ``Face`` and a function ``run``,
and one test file with a subclass of ``FaceConformance``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from conformance.reference import DTYPES, held_in

ALLREDUCES = ("allreduce", "allreduce_", "allreduce_async", "allreduce_async_")
BROADCASTS = ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_")
ALLGATHERS = ("allgather", "allgather_async")
ALLTOALLS = ("alltoall", "alltoall_async")
REDUCESCATTERS = ("reducescatter", "reducescatter_async")
GROUPED_ALLREDUCES = tuple(f"grouped_{form}" for form in ALLREDUCES)
GROUPED_ALLGATHERS = tuple(f"grouped_{form}" for form in ALLGATHERS)
GROUPED_REDUCESCATTERS = tuple(f"grouped_{form}" for form in REDUCESCATTERS)

GROUPED = (*GROUPED_ALLREDUCES, *GROUPED_ALLGATHERS, *GROUPED_REDUCESCATTERS)
ALL_REDUCING = (*ALLREDUCES, *GROUPED_ALLREDUCES)
SCATTERING = (*REDUCESCATTERS, *GROUPED_REDUCESCATTERS)
REDUCING = (*ALL_REDUCING, *SCATTERING)
GATHERING = (*ALLGATHERS, *GROUPED_ALLGATHERS)
SINGLE = (*ALLREDUCES, *ALLGATHERS, *BROADCASTS, *ALLTOALLS, *REDUCESCATTERS)
FORMS = (*SINGLE, *GROUPED)
DIFFERENTIABLE = (
    *("allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast"),
    *("alltoall", "reducescatter", "grouped_reducescatter"),
)


def family(form: str) -> str:
    """The operation as wire names have it: "grouped_allreduce" of "grouped_allreduce_async_"."""
    return form.rstrip("_").removesuffix("_async")


def operation(form: str) -> str:
    """The operation itself: "allreduce" of "grouped_allreduce_async_"."""
    return family(form).removeprefix("grouped_")


class Face:
    """One framework's tensors, and what its face of hvdtune has."""

    name: str
    hvd: Any
    """The module with the collectives."""
    kind: type
    """The class of the tensors that collectives return."""
    dtypes: tuple[str, ...] = DTYPES
    forms: tuple[str, ...] = FORMS
    takes: tuple[str, ...] = ()
    """The mistakes that are none here."""
    autodiff = False
    of_mistakes: tuple[str, ...] = (
        "automatic_names",
        "disagreements",
        "mistakes",
        "names_in_flight",
    )
    """The blocks of mistakes that it goes through; the others have tests of its own."""
    narrow = False
    """Whether the quick table has fewer shapes and numbers of ranks: the face hands them on as they
    are, and its framework takes long for each."""
    training = False
    """Whether it has an optimizer, and broadcasts parameters and the optimizer's state."""

    def tensor(self, values: np.ndarray, dtype: str) -> Any:
        """A new tensor with the values, that may be written. See ``reference`` of bfloat16."""
        raise NotImplementedError

    def values(self, tensor: Any) -> np.ndarray:
        """The values of a tensor."""
        raise NotImplementedError

    def dtype(self, tensor: Any) -> str:
        """The name of its type."""
        raise NotImplementedError

    def strided(self, values: np.ndarray) -> Any:
        """A tensor that is not contiguous, or None if the framework has none."""
        return None

    def read_only(self, values: np.ndarray) -> Any:
        """A tensor that cannot be written to, or None if the framework has none."""
        return None

    def container(self, form: str) -> type:
        """What the blocking or in-place form of a group returns. Asynchronous ones give tuples."""
        return list if form in ("grouped_allreduce", "grouped_reducescatter") else tuple

    def raised(self, cause: str, kind: str) -> str:
        """The class of an error that its ``cause`` has here; ``kind`` is that of other faces."""
        return kind

    def words(self, text: str) -> str:
        """An error's text without what the framework puts around it."""
        return text

    def pull_back(
        self,
        call: Callable[[list[Any]], Sequence[Any]],
        inputs: Sequence[Any],
        weights: Callable[[int, tuple[int, ...]], np.ndarray],
    ) -> list[np.ndarray]:
        """The gradients of the inputs of ``call``, where ``weights`` arrive at its outputs.

        ``weights(i, shape)`` is what arrives at output ``i``. Only faces with ``autodiff``.
        """
        raise NotImplementedError

    def descend(
        self,
        parameters: Sequence[np.ndarray],
        gradients: Sequence[Sequence[np.ndarray]],
        rate: float,
        passes: int = 1,
        **options: Any,
    ) -> list[np.ndarray]:
        """The parameters after plain gradient descent with a DistributedOptimizer.

        ``gradients[i]`` are this rank's of backward pass ``i``; there is a step after every
        ``passes`` of them. Only faces with ``training``.
        """
        raise NotImplementedError

    def broadcast_parameters(
        self, parameters: Mapping[str, np.ndarray], root: int
    ) -> dict[str, np.ndarray]:
        """The parameters after ``broadcast_parameters``. Only faces with ``training``."""
        raise NotImplementedError

    def broadcast_state(self, momentum: np.ndarray, rate: float, root: int) -> tuple[Any, float]:
        """Momentum and rate of an optimizer after a broadcast of its state.

        The optimizer had these before. Only faces with ``training``.
        """
        raise NotImplementedError

    # ---- what follows from these ----

    @property
    def in_flight(self) -> tuple[str, ...]:
        """The forms that return while the other ranks may still be awaited."""
        return tuple(form for form in self.forms if "_async" in form)

    def finish(self, started: Any) -> None:
        """Wait for what a form of ``in_flight`` has returned."""
        self.hvd.synchronize(started)

    @property
    def asynchronous(self) -> bool:
        """Whether it has handles."""
        return any("_async" in form for form in self.forms)

    def ones(self, *shape: int, dtype: str = "float32") -> Any:
        """A tensor of ones."""
        return self.tensor(np.ones(shape, held_in(dtype)), dtype)

    def group(self, rows: int = 6) -> list[Any]:
        """Tensors that every form takes at up to 3 ranks; single forms take the last."""
        return [self.ones(rows), self.ones(rows, 2)]

    def call(self, form: str, tensors: Any, **arguments: Any) -> Any:
        """Call a form: Sum where there is an operator, the first rank as the root."""
        if form in REDUCING and "average" not in arguments:
            arguments.setdefault("op", self.hvd.Sum)
        if form in BROADCASTS and "root_rank" not in arguments:
            members = getattr(arguments.get("process_set"), "ranks", None) or [0]
            arguments["root_rank"] = members[0]
        return getattr(self.hvd, form)(tensors if form in GROUPED else tensors[-1], **arguments)

    def complete(self, form: str, tensors: Any, **arguments: Any) -> Any:
        """``call``, and wait for the result of asynchronous forms."""
        result = self.call(form, tensors, **arguments)
        return self.hvd.synchronize(result) if "_async" in form else result
