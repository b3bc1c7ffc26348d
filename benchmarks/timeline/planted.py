"""Real jobs with something wrong in them: does the verdict name it, and is its gain right?

The programs and what is done with them: planted/, above all planted/run.py (or --help).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The package beside this file: a folder comes before a file of its name.
from planted.run import main

if __name__ == "__main__":
    sys.exit(main())
