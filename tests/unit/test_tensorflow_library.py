"""What is said of a library that does not have TensorFlow's C interface."""

from __future__ import annotations

import pytest

from hvdtune import _native


def test_a_library_that_lacks_functions_is_named_with_them() -> None:
    with pytest.raises(ValueError, match=r"^libc\.so\.6 lacks TF_NewStatus, TF_DeleteStatus, .*"):
        _native.register_tensorflow("libc.so.6")


def test_a_library_that_is_not_loaded() -> None:
    with pytest.raises(ValueError, match=r"libno\.so is not loaded: import tensorflow first"):
        _native.register_tensorflow("libno.so")
