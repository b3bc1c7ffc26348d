"""Horovod's small helpers, with its names and signatures."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from hvdtune.core.libraries import built

from .. import _absent

__getattr__ = _absent.refusing(__name__)


@contextlib.contextmanager
def env(**variables: Any) -> Iterator[None]:
    """Set environment variables inside a `with` block; a value of None changes nothing."""
    changed = {name: str(value) for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether both a framework ("torch", …) and hvdtune's module for it can be imported."""
    try:
        there = all(find_spec(name) for name in (f"hvdtune.{ext_base_name}", ext_base_name))
    except ModuleNotFoundError:
        there = False
    if verbose:
        print(f"Extension {ext_base_name} is{'' if there else ' NOT'} available.")
    return there


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Raise ImportError unless hvdtune has what a module of Horovod ("horovod.torch", …) needs."""
    framework = ext_name.removeprefix("horovod.")
    if find_spec("hvdtune") is None or find_spec(f"hvdtune.{framework}") is None:
        raise _absent.missing(f"horovod.{framework}")


def get_ext_suffix() -> str:
    """The suffix of compiled modules for this Python."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether hvdtune takes tensors on a GPU here."""
    there = bool(built.cuda_built())
    if verbose:
        where = "GPUs" if there else "the CPU only"
        print(f"hvdtune takes {ext_base_name} tensors on {where}.")
    return there


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI can carry tensors."""
    return bool(built.mpi_built())


def gloo_built(verbose: bool = False) -> bool:
    """Whether Gloo can carry tensors."""
    return bool(built.gloo_built())


def nccl_built(verbose: bool = False) -> bool:
    """Whether NCCL can carry tensors."""
    return bool(built.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    """Whether IBM's DDL can carry tensors."""
    return bool(built.ddl_built())


def ccl_built(verbose: bool = False) -> bool:
    """Whether oneCCL can carry tensors."""
    return bool(built.ccl_built())


def split_list(items: Sequence[Any], num_parts: int) -> list[Sequence[Any]]:
    """Cut a sequence into `num_parts` consecutive parts whose lengths differ by at most one."""
    length, longer = divmod(len(items), num_parts)
    ends = [index * length + min(index, longer) for index in range(num_parts + 1)]
    return [items[start:end] for start, end in itertools.pairwise(ends)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_num_rank_power_of_2(num_rank: int) -> None:
    """Raise ValueError unless a number of ranks is a power of two."""
    if not num_rank_is_power_2(num_rank):
        raise ValueError(f"{num_rank} ranks: the number must be a power of two here")


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """A function of `op` and the old argument `average` that returns the operation they mean.

    `reduce_ops`: anything with `Average` and `Sum`, such as a module.
    """

    def chosen(op: Any, average: bool | None) -> Any:
        if average is None:
            return reduce_ops.Average if op is None else op
        if op is not None:
            raise ValueError("op and average exclude each other: give op alone")
        warnings.warn("average is deprecated, use op instead", DeprecationWarning, stacklevel=2)
        return reduce_ops.Average if average else reduce_ops.Sum

    return chosen


def is_iterable(x: Any) -> bool:
    """Whether iter() accepts it."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare the first three numbers of a version with a target of the form "x.y.z".

    Raises ValueError for a target of another form.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"{target!r} is not a version of the form x.y.z")
    numbers = [int(number) for number in re.findall(r"\d+", ver)[:3]]
    return [*numbers, 0, 0][:3] >= [int(number) for number in target.split(".")]
