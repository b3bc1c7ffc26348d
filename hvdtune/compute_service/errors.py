"""The errors that a service's answer can contain, as the client raises them."""

from __future__ import annotations


class TimeoutException(Exception):
    """Something has taken longer than it may."""


#: By their name in an answer.
BY_NAME: dict[str, type[Exception]] = {
    error.__name__: error for error in (IndexError, RuntimeError, TimeoutException, ValueError)
}
