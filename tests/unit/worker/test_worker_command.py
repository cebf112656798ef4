"""The command line of a worker."""

from collections.abc import Callable, Coroutine

import pytest

from baton.process.entry import ProcessOptions
from baton.process.log_format import LogSource
from baton.settings.values import OptionError
from baton.worker.command import run_worker


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> list[LogSource]:
    """Return the list that receives how the processes that run log."""
    found: list[LogSource] = []

    def run(options: ProcessOptions, start: Callable[[], Coroutine[object, object, None]]) -> None:
        found.append(options.source)

    monkeypatch.setattr("baton.worker.command.run_process", run)
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    return found


@pytest.fixture
def names(sources: list[LogSource]) -> Callable[[], list[str]]:
    """Return a function that returns the names of the processes that have run."""
    return lambda: [source.process for source in sources]


def run(rank: int = 0, **flags: object) -> None:
    async def start(config: object) -> None:
        """Never called."""

    process = {"lifeline_fd": None, "config_file": None, "log_level": "info", "log_format": "text"}
    run_worker({**process, "model": "m", **flags}, ("decode",), start, rank)


def test_workers_without_ids_on_one_machine_have_different_ones(names: Callable[[], list[str]]) -> None:
    for _ in range(2):
        run()
    assert len(set(names())) == 2
    assert all(name.startswith("host-decode-") for name in names())


def test_a_worker_with_a_port_keeps_its_id(names: Callable[[], list[str]]) -> None:
    for _ in range(2):
        run(port="7000")
    run(worker_id="mine")
    assert names() == ["host-decode-7000", "host-decode-7000", "mine"]


@pytest.mark.parametrize("worker_id", ["工人-0", "two words", "x" * 129])
def test_an_id_that_is_invalid_in_headers_is_refused(worker_id: str, names: Callable[[], list[str]]) -> None:
    with pytest.raises(OptionError, match=r"worker_id: .* must be 1 to 128 visible ASCII characters"):
        run(worker_id=worker_id)
    assert not names()


def test_a_follower_rank_logs_the_worker_that_it_is_part_of(sources: list[LogSource]) -> None:
    run(worker_id="decode-0")
    run(rank=1, worker_id="decode-0-rank-1")
    assert sources == [LogSource("decode-0", "decode", "decode-0"), LogSource("decode-0-rank-1", "", "decode-0")]
