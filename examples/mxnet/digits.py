"""Pictures of digits that need no download."""

from __future__ import annotations

import numpy as np

# Seven segments: top, upper left, upper right, middle, lower left, lower right, bottom.
_SEGMENTS = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111")
_SEGMENTS += ("1010010", "1111111", "1111011")
_PLACES = (
    (slice(1, 3), slice(3, 9)),
    (slice(2, 8), slice(2, 4)),
    (slice(2, 8), slice(8, 10)),
    (slice(7, 9), slice(3, 9)),
    (slice(8, 14), slice(2, 4)),
    (slice(8, 14), slice(8, 10)),
    (slice(13, 15), slice(3, 9)),
)


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, 1, 16, 12] of float32, shifted a little and noisy; their digits [count]."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    images = np.zeros((count, 1, 16, 12), np.float32)
    for image, label in zip(images, labels, strict=True):
        for lit, place in zip(_SEGMENTS[label], _PLACES, strict=True):
            image[0][place] = float(lit)
        image[0] = np.roll(image[0], random.integers(-1, 2, 2), (0, 1))
    images += random.normal(0, 0.3, images.shape)
    return images.astype(np.float32), labels.astype(np.float32)


def part_of_rank(rows: np.ndarray, batch: int, rank: int, size: int) -> np.ndarray:
    """This rank's rows of every batch; an incomplete batch is left out."""
    batches = len(rows) // batch
    parts = rows[: batches * batch].reshape(batches, size, batch // size, *rows.shape[1:])
    return parts[:, rank].reshape(-1, *rows.shape[1:])
