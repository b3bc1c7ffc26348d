"""Parameter shapes of convolutional networks, as torchvision builds them.

Every generator yields (name, shape) in the order of the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator

Shape = tuple[int, ...]
Parameter = tuple[str, Shape]


def _conv_norm(
    conv: str, norm: str, inputs: int, outputs: int, kernel: tuple[int, int]
) -> Iterator[Parameter]:
    """A convolution without bias, followed by batch normalisation."""
    yield f"{conv}.weight", (outputs, inputs, *kernel)
    yield f"{norm}.weight", (outputs,)
    yield f"{norm}.bias", (outputs,)


def linear(name: str, inputs: int, outputs: int) -> Iterator[Parameter]:
    """A fully connected layer with bias, weight as (outputs, inputs)."""
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def resnet50() -> Iterator[Parameter]:
    """ResNet-50 (He et al. 2015): 25 557 032 parameters in 161 tensors."""
    yield from _conv_norm("conv1", "bn1", 3, 64, (7, 7))
    inputs = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        for block in range(blocks):
            at = f"layer{stage}.{block}"
            yield from _conv_norm(f"{at}.conv1", f"{at}.bn1", inputs, width, (1, 1))
            yield from _conv_norm(f"{at}.conv2", f"{at}.bn2", width, width, (3, 3))
            yield from _conv_norm(f"{at}.conv3", f"{at}.bn3", width, 4 * width, (1, 1))
            if block == 0:
                shortcut = f"{at}.downsample"
                yield from _conv_norm(f"{shortcut}.0", f"{shortcut}.1", inputs, 4 * width, (1, 1))
            inputs = 4 * width
    yield from linear("fc", inputs, 1000)


def vgg16() -> Iterator[Parameter]:
    """VGG-16 (Simonyan & Zisserman 2014): 138 357 544 parameters in 32 tensors."""
    inputs, layer = 3, 0
    for convolutions, outputs in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(convolutions):
            yield f"features.{layer}.weight", (outputs, inputs, 3, 3)
            yield f"features.{layer}.bias", (outputs,)
            inputs = outputs
            layer += 2  # the activation
        layer += 1  # the pooling
    yield from linear("classifier.0", 512 * 7 * 7, 4096)
    yield from linear("classifier.3", 4096, 4096)
    yield from linear("classifier.6", 4096, 1000)


def inception_v3() -> Iterator[Parameter]:
    """Inception v3 (Szegedy et al. 2015) with its auxiliary head: 27 161 264 parameters."""
    stem = (("1a_3x3", 3, 32, 3), ("2a_3x3", 32, 32, 3), ("2b_3x3", 32, 64, 3))
    for name, inputs, outputs, kernel in (*stem, ("3b_1x1", 64, 80, 1), ("4a_3x3", 80, 192, 3)):
        yield from _basic(f"Conv2d_{name}", inputs, outputs, (kernel, kernel))
    for name, inputs, pool in (("5b", 192, 32), ("5c", 256, 64), ("5d", 288, 64)):
        yield from _inception_a(f"Mixed_{name}", inputs, pool)
    yield from _inception_b("Mixed_6a", 288)
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        yield from _inception_c(f"Mixed_{name}", 768, width)
    yield from _basic("AuxLogits.conv0", 768, 128, (1, 1))
    yield from _basic("AuxLogits.conv1", 128, 768, (5, 5))
    yield from linear("AuxLogits.fc", 768, 1000)
    yield from _inception_d("Mixed_7a", 768)
    yield from _inception_e("Mixed_7b", 1280)
    yield from _inception_e("Mixed_7c", 2048)
    yield from linear("fc", 2048, 1000)


def _basic(name: str, inputs: int, outputs: int, kernel: tuple[int, int]) -> Iterator[Parameter]:
    yield from _conv_norm(f"{name}.conv", f"{name}.bn", inputs, outputs, kernel)


def _chain(
    at: str, branch: str, inputs: int, *steps: tuple[str, int, tuple[int, int]]
) -> Iterator[Parameter]:
    """Convolutions one after another; a step is (suffix, outputs, kernel)."""
    for suffix, outputs, kernel in steps:
        yield from _basic(f"{at}.{branch}{suffix}", inputs, outputs, kernel)
        inputs = outputs


def _inception_a(at: str, inputs: int, pool: int) -> Iterator[Parameter]:
    yield from _chain(at, "branch1x1", inputs, ("", 64, (1, 1)))
    yield from _chain(at, "branch5x5", inputs, ("_1", 48, (1, 1)), ("_2", 64, (5, 5)))
    yield from _double_3x3(at, inputs)
    yield from _chain(at, "branch_pool", inputs, ("", pool, (1, 1)))


def _double_3x3(at: str, inputs: int) -> Iterator[Parameter]:
    steps = (("_1", 64, (1, 1)), ("_2", 96, (3, 3)), ("_3", 96, (3, 3)))
    yield from _chain(at, "branch3x3dbl", inputs, *steps)


def _inception_b(at: str, inputs: int) -> Iterator[Parameter]:
    yield from _chain(at, "branch3x3", inputs, ("", 384, (3, 3)))
    yield from _double_3x3(at, inputs)


def _inception_c(at: str, inputs: int, width: int) -> Iterator[Parameter]:
    row, column = (1, 7), (7, 1)
    yield from _chain(at, "branch1x1", inputs, ("", 192, (1, 1)))
    steps = (("_1", width, (1, 1)), ("_2", width, row), ("_3", 192, column))
    yield from _chain(at, "branch7x7", inputs, *steps)
    yield from _chain(
        at,
        "branch7x7dbl",
        inputs,
        ("_1", width, (1, 1)),
        ("_2", width, column),
        ("_3", width, row),
        ("_4", width, column),
        ("_5", 192, row),
    )
    yield from _chain(at, "branch_pool", inputs, ("", 192, (1, 1)))


def _inception_d(at: str, inputs: int) -> Iterator[Parameter]:
    yield from _chain(at, "branch3x3", inputs, ("_1", 192, (1, 1)), ("_2", 320, (3, 3)))
    steps = (("_1", 192, (1, 1)), ("_2", 192, (1, 7)), ("_3", 192, (7, 1)), ("_4", 192, (3, 3)))
    yield from _chain(at, "branch7x7x3", inputs, *steps)


def _inception_e(at: str, inputs: int) -> Iterator[Parameter]:
    yield from _chain(at, "branch1x1", inputs, ("", 320, (1, 1)))
    yield from _chain(at, "branch3x3", inputs, ("_1", 384, (1, 1)))
    yield from _chain(at, "branch3x3", 384, ("_2a", 384, (1, 3)))
    yield from _chain(at, "branch3x3", 384, ("_2b", 384, (3, 1)))
    yield from _chain(at, "branch3x3dbl", inputs, ("_1", 448, (1, 1)), ("_2", 384, (3, 3)))
    yield from _chain(at, "branch3x3dbl", 384, ("_3a", 384, (1, 3)))
    yield from _chain(at, "branch3x3dbl", 384, ("_3b", 384, (3, 1)))
    yield from _chain(at, "branch_pool", inputs, ("", 192, (1, 1)))
