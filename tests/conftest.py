"""Threads of the libraries that tests compare with: one each where pytest runs several workers side by side.

Set before torch and NumPy load. Two workers with two spinning OpenMP threads each, on two cores, made single tests
fifty times slower. Tests that are about threads ask for them by number.
"""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", GOMP_SPINCOUNT="0", OMP_WAIT_POLICY="passive")
