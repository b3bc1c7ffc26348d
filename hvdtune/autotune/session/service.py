"""The optimiser in a process of its own.

Fitting a model takes up to a tenth of a second of computing. In the training process that would
hold the interpreter lock and delay a step; here it runs at the lowest priority, on CPU time that
the ranks leave free. The protocol is one JSON object per line: the service writes {"ready": true}
when it has loaded, then answers every `tuner.Request` with an `optimiser.Proposal` and the
milliseconds of computing it took, or with {"error": "..."}. It ends when its input ends, and dies
with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

NICE = 19
_PR_SET_PDEATHSIG = 1


def main(words: Sequence[str]) -> int:
    """Serve until the input ends, or the parent, whose process id is words[0]."""
    # Ctrl-C reaches the whole job; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(int(words[0]))
    return serve(sys.stdin, sys.stdout)


def serve(requests: TextIO, answers: TextIO) -> int:
    """Answer requests until the input ends. Returns the exit status."""
    try:
        # At normal priority: at the lowest, loading may take minutes if the ranks use all CPUs.
        from hvdtune.autotune.search import optimiser
    except Exception as error:
        _answer(answers, {"error": f"{type(error).__name__}: {error}"})
        return 1
    if requests is sys.stdin:
        os.nice(NICE)
    _answer(answers, {"ready": True})
    for line in requests:
        began = time.process_time()
        try:
            proposal = optimiser.propose(optimiser.Problem.from_json(json.loads(line)))
        except Exception as error:
            _answer(answers, {"error": f"{type(error).__name__}: {error}"})
            continue
        computing_ms = 1e3 * (time.process_time() - began)
        _answer(answers, {**proposal.to_json(), "computing_ms": computing_ms})
    return 0


def _answer(answers: TextIO, data: dict[str, Any]) -> None:
    answers.write(json.dumps(data) + "\n")
    answers.flush()


def _die_with_parent(parent: int) -> None:
    # A killed parent also closes the pipe, but that is noticed only after the current fit.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)
