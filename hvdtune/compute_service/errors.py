"""The errors that a service's answer can be, on the side of who asked."""

from __future__ import annotations


class TimeoutException(Exception):
    """Something has taken longer than it may."""


#: By the name that stands in an answer.
BY_NAME: dict[str, type[Exception]] = {
    error.__name__: error for error in (IndexError, RuntimeError, TimeoutException, ValueError)
}
