"""gRPC is told of its event loop before it is imported, in every process."""

import subprocess
import sys

import pytest

from rpc import GRPC_EXPERIMENTS

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
        ("router.__main__", "router.app"),
        ("prefill_worker.__main__", "prefill_worker.worker"),
        ("decode_worker.__main__", "decode_worker.worker"),
        ("baton.worker", "deployment.both_services"),
        ("baton.__main__", "simulation.workers"),
    ],
)
def test_processes_take_the_quicker_event_loop(modules: tuple[str, str]) -> None:
    argv = (sys.executable, "-c", PROGRAM, *modules)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == [GRPC_EXPERIMENTS]
    assert "Unknown experiment" not in done.stderr
