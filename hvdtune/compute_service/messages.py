"""Messages that need the key: a JSON object and its digest (HMAC-SHA256).

A connection carries one question and one answer. The service first sends a challenge, random
bytes; the question's digest covers it, and the answer's digest covers the question's. So a
recorded question or answer cannot be sent again. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from typing import Any

CHALLENGE_BYTES = 32
LONGEST = 64 * 1024  # bytes of a JSON text
PREFIX = struct.Struct(">I32s")  # before the text: its length and its digest


class Rejected(Exception):
    """A message is too long, or its sender does not have the key."""


def pack(key: bytes, before: bytes, content: dict[str, Any]) -> tuple[bytes, bytes]:
    """A message and its digest, which also covers `before`. Raises ValueError if it is too long."""
    text = json.dumps(content).encode()
    if len(text) > LONGEST:
        raise ValueError(f"a message of {len(text)} bytes; at most {LONGEST} can be sent")
    digest = _digest(key, before, text)
    return PREFIX.pack(len(text), digest) + text, digest


def length(prefix: bytes) -> int:
    """How many bytes follow a prefix. Raises Rejected if they are too many."""
    count = int(PREFIX.unpack(prefix)[0])
    if count > LONGEST:
        raise Rejected(f"a message of {count} bytes")
    return count


def unpack(key: bytes, before: bytes, prefix: bytes, text: bytes) -> tuple[dict[str, Any], bytes]:
    """The content of a message, and its digest. Raises Rejected if it was made without the key."""
    digest = bytes(PREFIX.unpack(prefix)[1])
    if not hmac.compare_digest(digest, _digest(key, before, text)):
        raise Rejected("a message that was not made with this key")
    content = json.loads(text)
    if not isinstance(content, dict):
        raise Rejected("a message that is not a JSON object")
    return content, digest


def _digest(key: bytes, before: bytes, text: bytes) -> bytes:
    return hmac.new(key, before + text, hashlib.sha256).digest()
