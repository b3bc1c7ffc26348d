"""The gradient sets are the real models', to the last parameter."""

from __future__ import annotations

import math

import pytest

from hvdtune.bench.workloads.gradient_sets import WORKLOADS, select


@pytest.mark.parametrize(
    ("key", "elements", "tensors"),
    [
        # torchvision's and transformers' own counts
        ("resnet50", 25_557_032, 161),
        ("vgg16", 138_357_544, 32),
        ("inception3", 27_161_264, 292),
        ("bert-base", 109_482_240, 199),
        ("gpt2", 124_439_808, 148),
        ("tiny", 256_000, 1000),
    ],
)
def test_totals_are_the_published_ones(key, elements, tensors):
    workload = WORKLOADS[key]
    parameters = workload.parameters()
    assert workload.elements() == sum(math.prod(shape) for _, shape in parameters) == elements
    assert len(parameters) == tensors
    assert len({name for name, _ in parameters}) == tensors


@pytest.mark.parametrize(
    ("key", "name", "shape"),
    [
        ("resnet50", "layer3.0.conv2.weight", (256, 256, 3, 3)),
        ("resnet50", "layer4.0.downsample.0.weight", (2048, 1024, 1, 1)),
        ("vgg16", "features.28.weight", (512, 512, 3, 3)),
        ("vgg16", "classifier.0.weight", (4096, 25088)),
        ("inception3", "Mixed_6c.branch7x7dbl_3.conv.weight", (160, 160, 1, 7)),
        ("inception3", "AuxLogits.conv1.conv.weight", (768, 128, 5, 5)),
        ("inception3", "Mixed_7c.branch3x3dbl_3b.bn.bias", (384,)),
        ("bert-base", "encoder.layer.11.intermediate.dense.weight", (3072, 768)),
        ("gpt2", "h.0.attn.c_attn.weight", (768, 2304)),
    ],
)
def test_well_known_parameters_have_their_shapes(key, name, shape):
    assert dict(WORKLOADS[key].parameters())[name] == shape


def test_backward_order_starts_with_the_last_layer():
    order = [name for name, _ in WORKLOADS["resnet50"].backward_order()]
    assert order[:2] == ["fc.bias", "fc.weight"]
    assert order[-1] == "conv1.weight"


def test_selection():
    assert select("all") == tuple(WORKLOADS)
    assert select("none") == ()
    assert select("gpt2, tiny,gpt2") == ("gpt2", "tiny")
    with pytest.raises(ValueError, match=r"unknown workload 'resnet'; accepted: all, none, or res"):
        select("resnet")
