"""``import hvdtune.jax``."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from conformance import jax_face
from conformance.suite import FaceConformance


class TestJax(FaceConformance):
    face = jax_face.FACE
    program = staticmethod(jax_face.run)
