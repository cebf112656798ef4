"""The command line of a worker."""

from collections.abc import Callable, Coroutine

import pytest

from baton.process.entry import ProcessOptions
from baton.settings.values import OptionError
from baton.worker.command import run_worker


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that receives the names of the processes that run."""
    found: list[str] = []

    def run(options: ProcessOptions, start: Callable[[], Coroutine[object, object, None]]) -> None:
        found.append(options.name)

    monkeypatch.setattr("baton.worker.command.run_process", run)
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    return found


def run(**flags: object) -> None:
    async def start(config: object) -> None:
        """Never called."""

    process = {"lifeline_fd": None, "config_file": None, "log_level": "info", "log_format": "text"}
    run_worker({**process, "model": "m", **flags}, ("decode",), start)


def test_workers_without_ids_on_one_machine_have_different_ones(names: list[str]) -> None:
    for _ in range(2):
        run()
    assert len(set(names)) == 2
    assert all(name.startswith("host-decode-") for name in names)


def test_a_worker_with_a_port_keeps_its_id(names: list[str]) -> None:
    for _ in range(2):
        run(port="7000")
    run(worker_id="mine")
    assert names == ["host-decode-7000", "host-decode-7000", "mine"]


@pytest.mark.parametrize("worker_id", ["工人-0", "two words", "x" * 129])
def test_an_id_that_is_invalid_in_headers_is_refused(worker_id: str, names: list[str]) -> None:
    with pytest.raises(OptionError, match=r"worker_id: .* must be 1 to 128 visible ASCII characters"):
        run(worker_id=worker_id)
    assert not names
