"""Cores to which each worker of a machine is bound."""

import os
from pathlib import Path

import pytest

from baton.deployment.local.cluster_plan import plan_cluster
from baton.deployment.local.machine import Machine, this_machine
from baton.settings.values import OptionError
from tests.unit.deployment.local.test_cluster_config import CHECKPOINT, settings


def test_cores_are_grouped_by_numa_node(tmp_path: Path) -> None:
    ours = sorted(os.sched_getaffinity(0))
    for name, cores in (("node0", f"{ours[0]},7000-7003"), ("node10", "8000-8003"), ("node2", f"{ours[-1]}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(f"{cores}\n")
    assert this_machine(tmp_path, tmp_path).nodes == ((ours[0],), (ours[-1],))
    (tmp_path / "cpu.max").write_text(f"{len(ours) * 100_000 - 50_000} 100000\n")
    assert this_machine(tmp_path, tmp_path).nodes == ()  # other containers use the cores too


@pytest.mark.parametrize(
    ("num_decode", "expected"),
    [
        (0, [("0-3,8-11", 8)]),
        (1, [("0-3", 4), ("8-11", 4)]),
        (2, [("0-3", 2), ("0-3", 2), ("8-11", 2)]),
        (3, [("0-3", 2), ("0-3", 2), ("8-11", 2), ("8-11", 2)]),
        (9, [("0-3", 1)] * 5 + [("8-11", 1)] * 5),
    ],
)
def test_workers_are_bound_to_the_cores_of_their_numa_nodes(
    tmp_path: Path, num_decode: int, expected: list[tuple[str, int]]
) -> None:
    machine = Machine(8, 32 << 30, ((0, 1, 2, 3), (8, 9, 10, 11)))
    given = {"prefill": 1, "decode": num_decode} if num_decode else {"colocated": 1}
    planned = plan_cluster(settings(tmp_path, **given), CHECKPOINT, machine).workers
    assert [(worker.engine.cores, worker.engine.num_threads) for worker in planned] == expected


def test_configured_cores_are_used(tmp_path: Path) -> None:
    machine = Machine(8, 32 << 30, ((0, 1, 2, 3), (8, 9, 10, 11)))
    text = "prefill_engine:\n  cores: 0-2\ndecode_engine:\n  num_threads: 2\n"
    prefill, decode = plan_cluster(settings(tmp_path, text), CHECKPOINT, machine).workers
    assert (prefill.engine.cores, prefill.engine.num_threads) == ("0-2", 3)
    assert (decode.engine.cores, decode.engine.num_threads) == (None, 2)
    with pytest.raises(OptionError, match="such as 0-3,8"):
        plan_cluster(settings(tmp_path, "engine:\n  cores: 3-1\n"), CHECKPOINT, machine)
