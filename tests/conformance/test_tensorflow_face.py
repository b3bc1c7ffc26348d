"""``import hvdtune.tensorflow``."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from conformance import tensorflow_face
from conformance.suite import FaceConformance


class TestTensorFlow(FaceConformance):
    face = tensorflow_face.FACE
    program = staticmethod(tensorflow_face.run)
