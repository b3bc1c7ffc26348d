"""A script that trains until it is ended: `script.py FOLDER`, where it leaves FOLDER/<its pid>."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import hvdtune as hvd

hvd.init()
Path(sys.argv[1], str(os.getpid())).touch()
while True:
    hvd.allreduce(np.ones(1000, np.float32), name="gradient", op=hvd.Sum)
    time.sleep(0.01)
