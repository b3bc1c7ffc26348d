"""``import hvdtune.mxnet``."""

from __future__ import annotations

import pytest

pytest.importorskip("mxnet")

from conformance import mxnet_face
from conformance.suite import FaceConformance


class TestMxnet(FaceConformance):
    face = mxnet_face.FACE
    program = staticmethod(mxnet_face.run)
