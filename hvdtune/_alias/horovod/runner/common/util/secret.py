"""Keys, and digests of messages made with them."""

from __future__ import annotations

import hashlib
import hmac
import os

HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"
DIGEST_LENGTH = hashlib.sha256().digest_size


def make_secret_key() -> bytes:
    """A new random key."""
    return os.urandom(DIGEST_LENGTH)


def compute_digest(key: bytes, msg: bytes) -> bytes:
    """The digest (HMAC-SHA256) of a message."""
    return hmac.new(key, msg, hashlib.sha256).digest()


def check_digest(digest: bytes, key: bytes, msg: bytes) -> bool:
    """Whether a digest is that of the message, compared in constant time."""
    return hmac.compare_digest(digest, compute_digest(key, msg))
