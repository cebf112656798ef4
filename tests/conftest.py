"""What holds for all tests."""

import asyncio
import gc
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from baton.deployment.local import ports
from baton.engine.grammar import trial
from baton.process.environment import prepare_environment
from tests.flaky import OPTION, Rerun
from tests.fork_server import ForkServer, Launcher, spawn
from tests.forked_trial import ForkedTrial
from tests.marks import mark_slow_combinations

# Torch's threads wait for each other by spinning. Two of them take twice the time of one for models as small as those
# here, and ten times as long beside the processes that tests start. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests are of engines on CPUs, the device `auto` included. Set it to a GPU's number for those that want one.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

prepare_environment()

settings.register_profile("without deadlines", deadline=None)  # a busy machine is no defect
settings.load_profile("without deadlines")

TESTS = Path(__file__).parent
RAY = "ray"
ONE_CLUSTER = "integration"  # on the fixture `cluster_url`
ON_ONE_CLUSTER = ("integration/*.py", "integration/clients/*", "integration/moves/test_drain.py")
SPAWN = "--spawn"
GC_THRESHOLDS = (5000, 10, 10)
FIRST = (RAY, "faults", "integration")  # which take longest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which `make test` runs failed tests a second time."""
    parser.addoption(OPTION, action="store_true", help="run failed tests again, alone; print those that pass")
    parser.addoption(SPAWN, action="store_true", help="start all processes as production does, none by a fork server")


def pytest_configure(config: pytest.Config) -> None:
    """Watch for failures, in the process that has those of all others."""
    if config.getoption(OPTION) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rerun())
    logging.getLogger("asyncio").addFilter(_is_not_of_grpc)


def _is_not_of_grpc(record: logging.LogRecord) -> bool:
    """Return False for what gRPC's poller logs in the loop of one test because that of another is closed."""
    return "PollerCompletionQueue._handle_events" not in record.getMessage()


class GroupScheduling(LoadScopeScheduling):
    """A file's tests stay in one process. So do all that send requests to one cluster, which is then started once, and
    all on Ray: two of these at once wait for each other on two cores.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Of our own: what xdist has for groups writes them where pytest 9.2 does not look."""
    return GroupScheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that the processes end together."""
    mark_slow_combinations(items)
    items.sort(key=lambda item: _place(_group(item.nodeid)))


def _group(nodeid: str) -> str:
    file = Path(nodeid.partition("::")[0]).relative_to(TESTS.name)
    if file.match("integration/on_ray/*") or file.match("helm/workers/test_on_ray.py"):
        return RAY
    return ONE_CLUSTER if any(map(file.match, ON_ONE_CLUSTER)) else str(file)


def _place(group: str) -> int:
    directory = Path(group).parts[0]
    return FIRST.index(directory) if directory in FIRST else len(FIRST)


def pytest_collection_finish() -> None:
    """What all modules hold stays to the end: no pass of the garbage collector need look through it, half a second.

    With Python's thresholds, the passes over what tests allocate take twice as long.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@pytest.fixture(scope="module")
def small_heap() -> None:
    """Exempt what earlier modules left from the garbage collector: a full collection there takes a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def separate_ports() -> Iterator[None]:
    """Divide the ports among pytest's processes: a free port stays unused until the process that gets it listens."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = (ports.LAST_PORT - ports.FIRST_PORT) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first = ports.FIRST_PORT + number * share
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "FIRST_PORT", first)
        patch.setattr(ports, "LAST_PORT", first + share)
        yield


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Server that forks Baton's processes; it starts with the first of them."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(autouse=True, scope="session")
def forked_processes(request: pytest.FixtureRequest, fork_server: ForkServer) -> Iterator[None]:
    """Fork the processes that tests start, except with `--spawn`."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.config.getoption(SPAWN):
            patch.setattr(asyncio, "create_subprocess_exec", Launcher(lambda: fork_server.path, is_nested=False))
            patch.setattr(trial, "Popen", partial(ForkedTrial, lambda: fork_server.path))
        yield


@pytest.fixture(scope="module")
def spawned_processes() -> Iterator[None]:
    """Start a module's processes as production does: for tests of their command lines, parents or children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", spawn)
        patch.setattr(trial, "Popen", Popen)
        yield
