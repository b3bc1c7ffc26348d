"""Rank program: runs random programs through hvdtune.torch and compares every result."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from support.models.random_inputs import (
    Expected,
    difference,
    entries_of,
    expected,
    expected_entries,
    input_of,
    splits_of,
)
from support.models.random_programs import SETS, Operation, Program, actions_of, generate
from support.models.reference_model import BOOL, FLOATS, INTEGERS

import hvdtune.torch as hvd

# uint16 came to torch later than the oldest version that is supported.
DTYPES = tuple(name for name in (*FLOATS, *INTEGERS, BOOL) if hasattr(torch, name))
MOST_FAULTS = 20


@dataclass
class Report:
    """What this rank saw."""

    seeds: list[int] = field(default_factory=list)
    operations: int = 0
    kinds: set[str] = field(default_factory=set)
    joins: list[int] = field(default_factory=list)  # who joined last, by program
    faults: list[str] = field(default_factory=list)
    bytes: int = 0  # of results that were compared
    # Checksums of results by seed and operation, and by rank where every rank gets another one.
    checksums: dict[tuple[int, ...], int] = field(default_factory=dict)


def to_torch(values: np.ndarray, dtype: str, offset: int) -> torch.Tensor:
    """A tensor of ``dtype`` that starts ``offset`` elements into its memory."""
    memory = torch.empty(values.size + offset, dtype=getattr(torch, dtype))
    tensor = memory[offset:].view(values.shape)
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)).view(values.shape))
    return tensor


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).detach().numpy()


def inputs_of(program: Program, operation: Operation, rank: int) -> list[torch.Tensor]:
    tensors = []
    for index, tensor in enumerate(operation.tensors):
        values = input_of(program, operation, index, rank)
        tensors.append(to_torch(values, tensor.dtype, (operation.index + index) % 4))
    return tensors


@dataclass
class Call:
    """An operation's function and arguments on this rank."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    inputs: list[torch.Tensor]

    def __call__(self) -> Any:
        return self.function(**self.arguments)


def call_of(
    operation: Operation, inputs: list[torch.Tensor], sets: Sequence[Any], rank: int
) -> Call:
    """The form of the operation that the program chose."""
    grouped = "grouped_" if operation.grouped else ""
    suffix = ("" if operation.blocking else "_async") + ("_" if operation.in_place else "")
    function = getattr(hvd, grouped + operation.kind + suffix)
    arguments: dict[str, Any] = {"name": operation.name, "process_set": sets[operation.set]}
    arguments |= {"tensors": inputs} if operation.grouped else {"tensor": inputs[0]}
    if operation.kind in ("allreduce", "reducescatter"):
        reduction = operation.reduction
        if operation.average is None:
            arguments["op"] = getattr(hvd, reduction.op)
        else:
            arguments["average"] = operation.average
        arguments["prescale_factor"] = reduction.prescale
        arguments["postscale_factor"] = reduction.postscale
        if operation.compressed:
            arguments["compression"] = hvd.Compression.fp16
    if operation.kind == "broadcast":
        arguments["root_rank"] = operation.root
    if operation.kind == "alltoall" and operation.splits is not None:
        arguments["splits"] = list(operation.splits[operation.ranks.index(rank)])
    return Call(function, arguments, inputs)


def make_mistake(operation: Operation, call: Call) -> None:
    """Change this rank's call so that it does not fit the others'."""
    assert operation.mistake is not None
    arguments, first = call.arguments, call.inputs[0]
    if operation.mistake.what == "op":
        arguments["op"] = hvd.Min if arguments["op"] == hvd.Max else hvd.Max
    elif operation.mistake.what == "prescale":
        arguments["prescale_factor"] += 1.0
    elif operation.mistake.what == "root":
        others = [rank for rank in operation.ranks if rank != operation.root]
        arguments["root_rank"] = others[0]
    else:
        if operation.mistake.what == "dtype":
            wrong = first.to(torch.float32 if first.dtype is torch.float64 else torch.float64)
        elif operation.mistake.what == "dimensions":
            wrong = first.unsqueeze(-1)
        else:
            wrong = torch.zeros((first.shape[0] + 1 if first.dim() else 2, 2), dtype=first.dtype)
        arguments |= (
            {"tensors": [wrong, *call.inputs[1:]]} if operation.grouped else {"tensor": wrong}
        )


class Runner:
    """Runs programs on this rank; calls ``between`` before everything that a program does."""

    def __init__(self, sets: Sequence[Any], between: Callable[[], None] = lambda: None) -> None:
        self.sets = list(sets)
        self.between = between
        self.report = Report()

    def fault(self, program: Program, operation: Operation, text: str) -> None:
        if len(self.report.faults) < MOST_FAULTS:
            self.report.faults.append(f"seed {program.seed}, {operation.describe()}: {text}")

    def run(self, program: Program) -> None:
        self.report.seeds.append(program.seed)
        started: dict[int, tuple[Any, Call | None]] = {}
        for action in actions_of(program, hvd.rank()):
            operation = action.operation
            self.between()
            if operation is None:
                self.change_membership(program, action.verb)
            elif action.verb == "poll":
                handle = started[operation.index][0]
                assert callable(handle) or hvd.poll(handle) in (True, False)
            elif action.verb == "start":
                started[operation.index] = self.start(program, operation)
            elif action.verb == "finish":
                handle, call = started.pop(operation.index)
                self.finish(program, operation, handle, call)
            else:
                self.run_blocking(program, operation)

    def change_membership(self, program: Program, verb: str) -> None:
        """Join, or add or remove the program's process set."""
        self.report.operations += 1
        self.report.kinds.add(verb)
        if verb == "add":
            assert program.added_set is not None
            self.sets.append(hvd.add_process_set(program.added_set))
        elif verb == "remove":
            assert hvd.remove_process_set(self.sets.pop())
        else:
            assert program.steps is not None
            last = hvd.join()
            self.report.joins.append(last)
            # The ranks with the most steps end them when all others have joined.
            if program.steps[last] != max(program.steps):
                self.report.faults.append(f"seed {program.seed}: rank {last} joined last")

    def finish(self, program: Program, operation: Operation, handle: Any, call: Any) -> None:
        if operation.mistake is not None:
            return self.expect_error(program, operation, lambda: hvd.synchronize(handle))
        result = handle() if callable(handle) else hvd.synchronize(handle)
        self.check(program, operation, result, call)

    def start(self, program: Program, operation: Operation) -> tuple[Any, Call | None]:
        if operation.kind == "sparse":
            return self.sparse(program, operation), None
        inputs = inputs_of(program, operation, hvd.rank())
        call = call_of(operation, inputs, self.sets, hvd.rank())
        return call(), call

    def sparse(self, program: Program, operation: Operation) -> Callable[[], torch.Tensor]:
        entries = entries_of(program, operation, hvd.rank())
        tensor = operation.tensors[0]
        sparse = torch.sparse_coo_tensor(
            torch.from_numpy(entries.indices),
            to_torch(entries.values, tensor.dtype, 0),
            tensor.shapes[0],
        )
        op = getattr(hvd, operation.reduction.op)
        assert operation.name is not None
        return hvd.sparse_allreduce_async(sparse, operation.name, op, self.sets[operation.set])

    def run_blocking(self, program: Program, operation: Operation) -> None:
        if operation.kind == "barrier":
            hvd.barrier(process_set=self.sets[operation.set])
            self.report.operations += 1
            self.report.kinds.add("barrier")
            return
        if operation.kind == "sparse":
            return self.check(program, operation, self.sparse(program, operation)(), None)
        inputs = inputs_of(program, operation, hvd.rank())
        call = call_of(operation, inputs, self.sets, hvd.rank())
        if operation.mistake is None:
            return self.check(program, operation, call(), call)
        if operation.mistake.rank == hvd.rank():
            make_mistake(operation, call)
        self.expect_error(program, operation, call)

    def expect_error(self, program: Program, operation: Operation, call: Callable[[], Any]) -> None:
        """The operation's mistake must come out, on this rank like on all others."""
        assert operation.mistake is not None
        self.report.operations += 1
        self.report.kinds.add("refused" if operation.joined else "mistake")
        try:
            call()
        except hvd.HorovodInternalError as error:
            for words in operation.mistake.words:
                if words not in str(error):
                    self.fault(program, operation, f"{words!r} is not in {str(error)!r}")
        else:
            self.fault(program, operation, "no error")

    def check(self, program: Program, operation: Operation, result: Any, call: Call | None) -> None:
        """Compare a result with the model's."""
        self.report.operations += 1
        self.report.kinds.add(("grouped_" if operation.grouped else "") + operation.kind)
        self.report.kinds.add(operation.reduction.op)
        if call is None:
            return self.check_sparse(program, operation, result)
        if operation.kind == "alltoall":
            result = self.without_splits(program, operation, result)
        results = list(result) if operation.grouped else [result]
        wanted = expected(program, operation, hvd.rank())
        for index, (got, want) in enumerate(zip(results, wanted, strict=True)):
            if operation.in_place and got is not call.inputs[index]:
                self.fault(program, operation, f"tensor {index} is not the input itself")
            problem = difference(to_numpy(got), want)
            if problem:
                self.fault(program, operation, f"tensor {index}: {problem}")
            self.note_bits(program, operation, to_numpy(got))
        if not operation.in_place:
            self.check_untouched(program, operation, call)

    def note_bits(self, program: Program, operation: Operation, values: np.ndarray) -> None:
        """The checksum of a result's bits, on top of those of the operation's tensors before."""
        key: tuple[int, ...] = (program.seed, operation.index)
        if operation.kind in ("alltoall", "reducescatter"):
            key = (*key, hvd.rank())
        before = self.report.checksums.get(key, 0)
        self.report.checksums[key] = zlib.crc32(np.ascontiguousarray(values), before)
        self.report.bytes += values.nbytes

    def check_untouched(self, program: Program, operation: Operation, call: Call) -> None:
        for index, tensor in enumerate(call.inputs):
            before = Expected(input_of(program, operation, index, hvd.rank()))
            if difference(to_numpy(tensor), before):
                self.fault(program, operation, f"input {index} was changed")

    def without_splits(self, program: Program, operation: Operation, result: Any) -> torch.Tensor:
        """The tensor of an alltoall's result, after a look at the received splits."""
        if operation.blocking and operation.splits is None:
            return result
        tensor, received = result
        place = operation.ranks.index(hvd.rank())
        wanted = [row[place] for row in splits_of(operation)]
        if received.tolist() != wanted or received.dtype is not torch.int32:
            self.fault(program, operation, f"received_splits {received} instead of {wanted}")
        return tensor

    def check_sparse(self, program: Program, operation: Operation, result: torch.Tensor) -> None:
        wanted = expected_entries(program, operation)
        self.note_bits(program, operation, to_numpy(result._values()))
        problem = (
            difference(result._indices().numpy(), Expected(wanted.indices))
            or difference(to_numpy(result._values()), Expected(wanted.values))
            or ("" if tuple(result.shape) == operation.tensors[0].shapes[0] else "wrong shape")
        )
        if problem:
            self.fault(program, operation, problem)


def run(first_seed: int, count: int) -> Report:
    """Run the programs ``first_seed`` to ``first_seed + count - 1``, one after the other."""
    warnings.simplefilter("ignore", DeprecationWarning)
    sets = [hvd.ProcessSet(ranks) for ranks in SETS[int(os.environ["HOROVOD_SIZE"])][1:]]
    hvd.init(process_sets=sets)
    runner = Runner([hvd.global_process_set, *sets])
    for seed in range(first_seed, first_seed + count):
        print(f"random program {seed}", flush=True)
        runner.run(generate(seed, hvd.size(), DTYPES))
    hvd.barrier()
    hvd.shutdown()
    return runner.report
