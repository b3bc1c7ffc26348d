"""``import hvdtune``: the face of NumPy's arrays."""

from __future__ import annotations

from conformance import numpy_face
from conformance.suite import FaceConformance


class TestNumpy(FaceConformance):
    face = numpy_face.FACE
    program = staticmethod(numpy_face.run)
