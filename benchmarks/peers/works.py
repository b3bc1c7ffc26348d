"""The data to reduce: arrays of a size, or all tensors of a training step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdtune.bench.sizes import format_size, parse_size
from hvdtune.bench.workloads.gradient_sets import WORKLOADS

DEFAULT = "4,4K,64K,1M,16M,64M,resnet50,bert-base,tiny"
QUICK = "4,64K,1M,64M,resnet50,tiny"

#: One float32.
LEAST_BYTES = 4


@dataclass(frozen=True)
class Work:
    """`counts` are the elements of each float32 tensor, in the order they become ready."""

    key: str
    title: str
    counts: tuple[int, ...]
    is_set: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors together."""
        return 4 * sum(self.counts)

    def argument(self, folder: Path) -> str:
        """This work on a rank's command line; a set's tensors are listed in a file of `folder`."""
        if not self.is_set:
            return f"size:{self.size_bytes}"
        path = folder / f"{self.key}.counts"
        path.write_text("".join(f"{count}\n" for count in self.counts))
        return f"set:{path}"


def array(size_bytes: int) -> Work:
    """One float32 array; ValueError unless a positive multiple of 4 bytes."""
    if size_bytes < LEAST_BYTES or size_bytes % LEAST_BYTES:
        raise ValueError(f"{size_bytes} bytes are not a whole number of float32 elements")
    return Work(str(size_bytes), format_size(size_bytes), (size_bytes // 4,), False)


def gradients(key: str) -> Work:
    """A gradient set of `hvdtune bench`, in the order in which a backward pass finishes it."""
    counts = tuple(math.prod(shape) for _, shape in WORKLOADS[key].backward_order())
    title = "1000 x 256" if key == "tiny" else WORKLOADS[key].title
    return Work(key, title, counts, True)


def parse(text: str) -> tuple[Work, ...]:
    """Works of `4,64K,resnet50`: sizes and gradient sets, each once; ValueError says which fail."""
    found: dict[str, Work] = {}
    for word in (part.strip() for part in text.split(",")):
        if word in WORKLOADS:
            work = gradients(word)
        else:
            try:
                work = array(parse_size(word))
            except ValueError as error:
                raise ValueError(
                    f"{error}; a work is a size such as 4, 64K or 16M, or one of "
                    f"{', '.join(WORKLOADS)}"
                ) from None
        found[work.key] = work
    return tuple(found.values())


def that_fit(works: Sequence[Work], ranks: int, available: int | None) -> tuple[Work, ...]:
    """The works whose tensors and buckets `ranks` processes can hold in `available` bytes."""
    # Tensors, buckets of the same size, and as much again inside the library.
    return tuple(
        work for work in works if available is None or 3 * ranks * work.size_bytes <= available
    )
