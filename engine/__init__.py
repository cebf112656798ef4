"""The engine: requests in, tokens out, over a paged KV cache. Importing this package imports no torch."""

import os

# How long threads of torch's operators wait for more work by spinning, some 0.4 ms: by default it is 6, in which they
# take cores from the threads of compiled code. GCC's OpenMP runtime reads it when torch is imported:
# whoever imports torch first has its default, and processes started from here have this.
OPENMP_SPINS = {"GOMP_SPINCOUNT": "20000"}
if "OMP_WAIT_POLICY" not in os.environ:
    for _name, _value in OPENMP_SPINS.items():
        os.environ.setdefault(_name, _value)
