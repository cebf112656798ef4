"""Configs of a process of simulated workers."""

import pytest

from baton.settings.values import OptionError
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.config import SimulationConfig


def test_each_worker_has_a_config() -> None:
    spec = WorkerSpec(num_blocks=100)
    config = SimulationConfig(
        prefill=2, decode=1, colocated=1, worker_prefix="a-", fingerprint="f", time_scale=2, spec=spec
    )
    workers = list(config.workers())
    assert [worker.worker_id for worker in workers] == ["a-prefill-0", "a-prefill-1", "a-decode-0", "a-both-0"]
    assert [worker.role for worker in workers] == ["prefill", "prefill", "decode", "both"]
    assert {(worker.spec, worker.fingerprint, worker.time_scale) for worker in workers} == {(spec, "f", 2)}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "no worker"),
        ({"colocated": 1, "time_scale": -1.0}, "time scale"),
        ({"colocated": 1, "spec": WorkerSpec(num_blocks=1)}, "num_blocks"),
        ({"colocated": 1, "registry": "ftp://here"}, "registry"),
        ({"colocated": 1, "registry": "redis://127.0.0.1:6379/0", "host": "0.0.0.0"}, "cannot reach"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        SimulationConfig(**options)  # type: ignore[arg-type]  # wrong on purpose
