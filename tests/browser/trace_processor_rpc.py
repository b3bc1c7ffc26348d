"""Requests to Perfetto's trace processor and its answers: the few protobuf messages needed.

Both directions are streams of TraceProcessorRpc messages (field 1 of the stream). Of a message:
field 1 is its number, 2 the request, 3 the response, 5 a fatal error, 101 a piece of the trace, 103
a query, 201 the state after a piece, 203 a part of a query's result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

APPEND, FINALIZE, QUERY = 1, 2, 3
NULL, VARINT, FLOAT, STRING = 1, 2, 3, 4


def encode_request(
    number: int, *, append: bytes | None = None, finalize: bool = False, sql: str | None = None
) -> bytes:
    """One request as the stream carries it."""
    if append is not None:
        body = _whole(2, APPEND) + _bytes(101, append)
    elif finalize:
        body = _whole(2, FINALIZE)
    else:
        assert sql is not None
        body = _whole(2, QUERY) + _bytes(103, _bytes(1, sql.encode()))
    return _bytes(1, _whole(1, number) + body)


def decode_result(stream: bytes) -> list[dict[str, Any]]:
    """The rows of a query's result."""
    names: list[str] = []
    values: list[Any] = []
    for field, message in _fields(stream):
        assert field == 1
        for inner, value in _fields(message):
            assert inner != 5, value.decode()
            if inner == 203:
                _decode_query_result(value, names, values)
    width = len(names)
    return [
        dict(zip(names, values[at : at + width], strict=True))
        for at in range(0, len(values), width or 1)
    ]


def _decode_query_result(message: bytes, names: list[str], values: list[Any]) -> None:
    for field, value in _fields(message):
        if field == 1:
            names.append(value.decode())
        elif field == 2:
            raise AssertionError(value.decode())
        elif field == 3:
            values += _decode_batch(value)


def _decode_batch(message: bytes) -> list[Any]:
    cells: list[int] = []
    whole: list[int] = []
    floats: list[float] = []
    texts: list[str] = []
    for field, value in _fields(message):
        if field == 1:
            cells += value if isinstance(value, bytes) else [value]
        elif field == 2:
            whole += _packed(value) if isinstance(value, bytes) else [value]
        elif field == 3:
            floats += struct.unpack(f"<{len(value) // 8}d", value)
        elif field == 5:
            texts += value.decode().split("\0")
    takers = {
        NULL: lambda: None,
        VARINT: iter(map(_signed, whole)).__next__,
        FLOAT: iter(floats).__next__,
        STRING: iter(texts).__next__,
    }
    return [takers[cell]() for cell in cells]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _read_whole(data, at)
        found.append(value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _read_whole(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_whole(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _read_whole(data, at)
        else:
            size = {1: 8, 5: 4}[kind]
        yield key >> 3, data[at : at + size]
        at += size


def _read_whole(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _whole(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
