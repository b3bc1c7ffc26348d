"""Synthetic seven-segment digits, so that the examples need no download."""

from __future__ import annotations

import numpy as np

# The segments of each digit: top, upper left, upper right, middle, lower left, lower right, bottom.
SEGMENTS = ("1110111", "0010010", "1011101", "1011011", "0111010")
SEGMENTS += ("1101011", "1101111", "1010010", "1111111", "1111011")
PLACES = (
    *((slice(1, 2), slice(2, 6)), (slice(1, 6), slice(2, 3)), (slice(1, 6), slice(5, 6))),
    *((slice(5, 6), slice(2, 6)), (slice(6, 11), slice(2, 3)), (slice(6, 11), slice(5, 6))),
    (slice(10, 11), slice(2, 6)),
)


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images (count, 12, 8, 1), float32, some shifted by a pixel, and their digits."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 10, count)
    images = np.zeros((count, 12, 8, 1), np.float32)
    for image, label in zip(images, labels, strict=True):
        for lit, (rows, columns) in zip(SEGMENTS[label], PLACES, strict=True):
            if lit == "1":
                image[rows, columns] = 1.0
    moved = generator.integers(-1, 2, (count, 2))
    for i, (down, right) in enumerate(moved):
        images[i] = np.roll(images[i], (down, right), axis=(0, 1))
    images += generator.normal(0.0, 0.3, images.shape).astype(np.float32)
    return images, labels
