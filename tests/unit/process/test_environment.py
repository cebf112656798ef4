"""gRPC's and torch's environment is set before either is imported, in every process."""

import json
import os
import subprocess
import sys

import pytest

from baton.process.environment import GRPC_EXPERIMENTS, OPENMP_SPINS

PROGRAM = """
import importlib, json, os, sys

class Watcher:
    missing = {"grpc", "torch"}

    def find_spec(self, name, path=None, target=None):
        if name in ("grpc", "torch"):
            variables = ("GRPC_EXPERIMENTS", "GOMP_SPINCOUNT")
            print(json.dumps([name, *(os.environ.get(variable) for variable in variables)]), flush=True)
            self.missing.discard(name)
            if not self.missing:
                os._exit(0)  # before the import itself, which takes long

async def start():
    importlib.import_module(sys.argv[2])

sys.meta_path.insert(0, Watcher())
importlib.import_module(sys.argv[1])
from baton.process.entry import ProcessOptions, run_process
run_process(ProcessOptions(), start)
"""
PROCESSES = [
    ("baton.router.__main__", "baton.router.app"),
    ("baton.prefill_worker.__main__", "baton.prefill_worker.worker"),
    ("baton.decode_worker.__main__", "baton.decode_worker.worker"),
    ("baton.cli.worker", "baton.deployment.local.any_role_worker"),
    ("baton.worker.ranks.__main__", "baton.worker.ranks.follower"),
    ("baton.membership.rendezvous.__main__", "baton.membership.rendezvous.app"),
    ("baton.__main__", "baton.simulation.workers.app"),
]


def imported(modules: tuple[str, str], **variables: str) -> dict[str, tuple[str | None, str | None]]:
    """Import a process's entry and then what it starts; return both variables at the import of gRPC and of torch."""
    environment = {name: value for name, value in os.environ.items() if name not in ("GRPC_EXPERIMENTS", *OPENMP_SPINS)}
    argv = (sys.executable, "-c", PROGRAM, *modules)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, env=environment | variables)
    assert "Unknown experiment" not in done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (grpc, openmp) for name, grpc, openmp in lines}


@pytest.mark.parametrize("modules", PROCESSES, ids=lambda modules: modules[1])
def test_processes_set_their_environment_first(modules: tuple[str, str]) -> None:
    expected = (GRPC_EXPERIMENTS, OPENMP_SPINS["GOMP_SPINCOUNT"])
    seen = imported(modules)
    assert seen["grpc"] == expected
    assert seen.get("torch", expected) == expected


def test_existing_variables_are_kept() -> None:
    modules = PROCESSES[2]
    assert imported(modules, GOMP_SPINCOUNT="7")["torch"] == (GRPC_EXPERIMENTS, "7")
    assert imported(modules, OMP_WAIT_POLICY="passive")["torch"] == (GRPC_EXPERIMENTS, None)
