"""Duration of the fuzzers (`--fuzz-seconds`, by default a deterministic short form), and shared fixtures."""

import gc
import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.router_rig import RouterRig
from tests.fuzz.worker_rig import WorkerRig

SECONDS = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "how long the fuzzers of a file run, with new inputs each time; unset: few inputs, always the same"
    parser.addoption("--fuzz-seconds", type=float, default=None, help=help_text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise the timeout of tests for long fuzzers."""
    seconds = config.getoption("--fuzz-seconds", default=None)
    if seconds is None:
        return
    fuzzers = [item for item in items if "fuzzing" in getattr(item, "fixturenames", ())]
    in_file = Counter(item.path for item in fuzzers)
    for item in fuzzers:
        item.stash[SECONDS] = seconds / in_file[item.path]
        item.add_marker(pytest.mark.timeout(2 * seconds + 300))


@pytest.fixture
def fuzzing(request: pytest.FixtureRequest) -> Fuzzing:
    """Return the fuzzer's duration: an equal share of its file's."""
    return Fuzzing(request.node.stash.get(SECONDS, None))


@pytest.fixture(autouse=True)
def _no_errors_logged(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, small_heap: None
) -> Iterator[None]:
    """Fail on logged errors, also of tasks that are never awaited; warnings about hostile input are expected."""
    with caplog.at_level(logging.ERROR):
        yield
        if "fuzzing" in request.fixturenames:
            gc.collect()  # a task that is never awaited logs its error when it is collected
    errors = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not errors


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterRig]:
    """A router with simulated workers."""
    rig = RouterRig(tmp_path_factory.mktemp("served"))
    yield rig
    rig.close()


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerRig]:
    """A prefill and a decode worker."""
    rig = WorkerRig(tmp_path_factory.mktemp("workers"))
    yield rig
    rig.close()
