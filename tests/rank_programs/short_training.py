"""A script of a few training steps, too short to be tuned while it runs: `script.py STEPS`."""

import sys
import time

import numpy as np

import hvdtune as hvd

hvd.init()
for _ in range(int(sys.argv[1])):
    handles = [
        hvd.allreduce_async_(np.ones(1000, np.float32), name=f"gradient.{at}", op=hvd.Sum)
        for at in range(10)
    ]
    for handle in handles:
        hvd.synchronize(handle)
    time.sleep(0.02)  # so that a few steps make a sample
if len(sys.argv) > 2:
    print("about to fail")
    sys.exit(3)
