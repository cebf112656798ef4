"""Former module names in Serve config files."""

import subprocess
import sys

import pytest

pytest.importorskip("ray.serve")


@pytest.mark.parametrize(("module", "name"), [("app", "build"), ("scaling", "PoolsPolicy")])
def test_a_former_name_is_the_same_object(module: str, name: str) -> None:
    program = (
        f"from baton.deployment import ray_{module} as former; from baton.deployment.ray import {module} as present; "
        f"assert former.{name} is present.{name}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
