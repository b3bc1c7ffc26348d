"""Compiles CUDA C++ with NVRTC: `python nvrtc_compile.py LIBRARY SOURCE PTX [OPTION …]`.

A program of its own, so that no test process has NVIDIA's libraries in it. It ends with 1 and the
compiler's words where the source does not compile.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def main(library: str, source: str, target: str, *options: str) -> int:
    """Write the PTX; the exit status."""
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        result = getattr(nvrtc, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} fails with {result}")

    def text(size: str, content: str) -> bytes:
        length = ctypes.c_size_t()
        call(size, program, ctypes.byref(length))
        buffer = ctypes.create_string_buffer(length.value)
        call(content, program, buffer)
        return buffer.value

    code, name = Path(source).read_bytes(), Path(source).name.encode()
    call("nvrtcCreateProgram", ctypes.byref(program), code, name, 0, None, None)
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        call("nvrtcCompileProgram", program, len(options), words)
    except RuntimeError as error:
        said = text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode(errors="replace")
        print(error, said, sep="\n", file=sys.stderr)
        return 1
    Path(target).write_bytes(text("nvrtcGetPTXSize", "nvrtcGetPTX"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
