"""Calls of libpmix: in a rank, or in a child of it that Python runs as a script.

    python -I -S pmix_client.py LIBRARY

The child imports nothing of hvdtune. It answers each line "ROOT KEY TEXT" of its standard input
with "told TEXT" or "failed REASON", and stays in PMIx until the input ends. If PMIx does not begin,
it says "absent REASON".
"""

from __future__ import annotations

import ctypes
import os
import sys

_SUCCESS = 0
_STRING = 3  # PMIX_STRING
_GLOBAL = 3  # PMIX_GLOBAL: for processes on all hosts
_BOOL = 1  # PMIX_BOOL
_COLLECT_DATA = b"pmix.collect"


class _Process(ctypes.Structure):
    _fields_ = [("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Content(ctypes.Union):
    _fields_ = [("text", ctypes.c_char_p), ("flag", ctypes.c_bool), ("rest", ctypes.c_char * 24)]


class _Value(ctypes.Structure):
    """pmix_value_t."""

    _fields_ = [("kind", ctypes.c_uint16), ("content", _Content)]


class _Info(ctypes.Structure):
    """pmix_info_t."""

    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


class Client:
    """This process as a client of its host's PMIx server, from the beginning to `end`."""

    def __init__(self, library: str) -> None:
        """Raises OSError if PMIx does not begin."""
        self._pmix = ctypes.CDLL(library)
        self._own = _Process()
        code = self._pmix.PMIx_Init(ctypes.byref(self._own), None, ctypes.c_size_t(0))
        if code != _SUCCESS:
            raise OSError(f"PMIx_Init gave {code}")

    def answer(self, root: int, key: str, text: str) -> str:
        """Tell the text to all processes if this one is `root`, and learn it otherwise."""
        if self._own.rank == root:
            value = _Value(_STRING, _Content(text=text.encode()))
            code = self._pmix.PMIx_Put(ctypes.c_uint8(_GLOBAL), key.encode(), ctypes.byref(value))
            code = code or self._pmix.PMIx_Commit()
            if code != _SUCCESS:
                return f"failed PMIx_Put gave {code}"
        # All processes come here, and take with them what rank 0 has told.
        collect = _Info(_COLLECT_DATA, 0, _Value(_BOOL, _Content(flag=True)))
        one, none = ctypes.c_size_t(1), ctypes.c_size_t(0)
        code = self._pmix.PMIx_Fence(None, none, ctypes.byref(collect), one)
        if code != _SUCCESS:
            return f"failed PMIx_Fence gave {code}"
        of = _Process(namespace=self._own.namespace, rank=root)
        found = ctypes.POINTER(_Value)()
        code = self._pmix.PMIx_Get(ctypes.byref(of), key.encode(), None, none, ctypes.byref(found))
        if code != _SUCCESS:
            return f"failed PMIx_Get gave {code}"
        return f"told {found.contents.content.text.decode()}"

    def end(self) -> None:
        """Sign off: after that an end of the process is in order."""
        self._pmix.PMIx_Finalize(None, ctypes.c_size_t(0))


def main(library: str) -> None:
    """The child."""
    try:
        client = Client(library)
    except OSError as error:
        print(f"absent {error}", flush=True)
        return
    for line in sys.stdin:
        if not line.strip():
            break
        root, key, text = line.rstrip("\n").split(" ")
        print(client.answer(int(root), key, text), flush=True)
    client.end()


if __name__ == "__main__":
    main(sys.argv[1])
    # Destructors of PMIx's plugins are nobody's concern here.
    os._exit(0)
