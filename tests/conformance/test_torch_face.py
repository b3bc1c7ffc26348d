"""``import hvdtune.torch``."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from conformance import torch_face
from conformance.suite import FaceConformance


class TestTorch(FaceConformance):
    face = torch_face.FACE
    program = staticmethod(torch_face.run)
