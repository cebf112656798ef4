"""gRPC is told of its event loop before it is imported, in every process."""

import subprocess
import sys

import pytest

from baton.rpc import GRPC_EXPERIMENTS

PROGRAM = """
import importlib, os, sys

class Watcher:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"))

os.environ.pop("GRPC_EXPERIMENTS", None)
sys.meta_path.insert(0, Watcher())
for module in sys.argv[1:]:
    importlib.import_module(module)
"""


@pytest.mark.parametrize(
    "modules",
    [
        ("baton.router.__main__", "baton.router.app"),
        ("baton.prefill_worker.__main__", "baton.prefill_worker.worker"),
        ("baton.decode_worker.__main__", "baton.decode_worker.worker"),
        ("baton.cli.worker", "baton.deployment.both_services"),
        ("baton.__main__", "baton.simulation.workers"),
    ],
)
def test_processes_take_the_quicker_event_loop(modules: tuple[str, str]) -> None:
    argv = (sys.executable, "-c", PROGRAM, *modules)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == [GRPC_EXPERIMENTS]
    assert "Unknown experiment" not in done.stderr
