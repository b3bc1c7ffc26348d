"""`python -m hvdtune train.py …`: run a script in which `import horovod` loads hvdtune.

It takes the place of `python`, also under mpirun or srun. If no file is named,
`python -m hvdtune VERB …` is the `hvdtune` command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hvdtune.alias import script
from hvdtune.cli.main import main as command

USAGE = """\
usage: python -m hvdtune SCRIPT.py [argument …]
       python -m hvdtune -m MODULE [argument …]
       python -m hvdtune -c CODE [argument …]

Runs a Python program as `python` does, except that `import horovod` loads hvdtune. It is not a
launcher, but works under one: mpirun -np 4 python -m hvdtune train.py. With the name of a command
instead of a script it is the same as:
"""


def main(words: Sequence[str]) -> int:
    """Run what `words` (the command line without the program) ask for; return the exit status."""
    first = words[0] if words else ""
    if first in ("-m", "-c") and len(words) > 1:
        run = script.run_module if first == "-m" else script.run_code
        run(words[1], words[2:])
    elif first in ("-m", "-c"):
        print(f"python -m hvdtune: {first} needs a {_WANTED[first]} after it.", file=sys.stderr)
        return 2
    elif script.is_program(first):
        script.run_file(first, words[1:])
    elif first.endswith(".py") or os.sep in first:
        print(f"python -m hvdtune: there is no script {first!r}.", file=sys.stderr)
        return 2
    else:
        if first in ("", "-h", "--help"):
            print(USAGE)
        return command(words)
    return 0


_WANTED = {"-m": "module's name", "-c": "program's text"}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
