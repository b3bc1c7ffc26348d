"""Real jobs with a planted fault: does the verdict name it, and is its gain right?

The folder planted/ has the programs; planted/run.py (or --help) says how they are judged.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The package beside this file: Python prefers a folder to a file of the same name.
from planted.run import main

if __name__ == "__main__":
    sys.exit(main())
