"""How long torch's threads spin is said before torch is imported."""

import os
import subprocess
import sys

from baton.engine import OPENMP_SPINS

PROGRAM = """
import os, sys
import baton.engine
assert "torch" not in sys.modules
print(os.environ.get("GOMP_SPINCOUNT"))
"""


def said(**variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in OPENMP_SPINS}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**environment, **variables}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_it_is_said_unless_somebody_has() -> None:
    assert said() == OPENMP_SPINS["GOMP_SPINCOUNT"]
    assert said(GOMP_SPINCOUNT="7") == "7"
    assert said(OMP_WAIT_POLICY="passive") == "None"
