"""The states of a supervisor's processes, from its events to what a router reports of them."""

import os
from pathlib import Path

import orjson
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from baton.deployment.local.events import Died, Progressed, Started, Warned
from baton.deployment.local.process_states import StatesWriter
from baton.process.progress import Loading, Ready
from baton.process.states import ProcessState, read_states
from baton.router.config import RouterConfig
from baton.router.metrics.process_states import ProcessStates


def reader(*paths: Path) -> ProcessStates:
    return ProcessStates(RouterConfig(model="tiny", process_states=tuple(map(str, paths))))


def test_a_process_is_followed_through_its_lives(tmp_path: Path) -> None:
    path = tmp_path / "processes.json"
    writer = StatesWriter(path, ["router", "decode-0"])
    assert read_states(path) == [ProcessState("router"), ProcessState("decode-0")]
    writer.update(Started("decode-0", 1, 10))
    writer.update(Progressed("decode-0", Loading(0.5)))
    assert read_states(path)[1] == ProcessState("decode-0", pid=10)
    writer.update(Progressed("decode-0", Ready("127.0.0.1:1")))
    assert read_states(path)[1] == ProcessState("decode-0", "ready", 10)
    writer.update(Died("decode-0", "was killed by SIGKILL", 8.0, num_deaths=5))
    [router, decode] = (state.report() for state in reader(path).read())
    assert router["last_end"] is router["last_end_s_ago"] is router["next_start_in_s"] is None
    assert (decode["state"], decode["pid"], decode["deaths_in_a_row"]) == ("waiting", None, 5)
    assert decode["last_end"] == "was killed by SIGKILL"
    assert 0 < float(str(decode["next_start_in_s"])) <= 8
    writer.update(Started("decode-0", 6, 11))
    assert reader(path).read()[1].num_restarts == 5
    writer.update(Started("a stranger", 1, 12))
    writer.update(Warned("decode-0", "all is well"))
    assert len(read_states(path)) == 2
    writer.close()
    assert read_states(path) == []


def test_the_series_cover_all_processes_of_all_supervisors(tmp_path: Path) -> None:
    paths = tmp_path / "cluster.json", tmp_path / "routers.json"
    cluster, routers = StatesWriter(paths[0], ["decode-0"]), StatesWriter(paths[1], ["router-0"])
    registry = CollectorRegistry()
    registry.register(reader(*paths, tmp_path / "missing.json"))
    routers.update(Started("router-0", 3, 11))
    cluster.update(Progressed("decode-0", Ready("127.0.0.1:1")))
    values = {
        (sample.name, sample.labels["name"]): sample.value for each in registry.collect() for sample in each.samples
    }
    assert values == {
        ("baton:process_up", "decode-0"): 1,
        ("baton:process_up", "router-0"): 0,
        ("baton:process_restarts_total", "decode-0"): 0,
        ("baton:process_restarts_total", "router-0"): 2,
    }


def test_without_a_supervisor_there_are_no_series() -> None:
    assert list(reader().collect()) == []


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[1]", "null", "5", '{"processes": 5}', "[" * 100_000, '{"a":' * 100_000, "[" + " " * (1 << 21) + "]",
        '[{"name": "a", "from": "another version"}]', '[{"name": 1}]', '[{"name": null}]', '[{"name": "\\ud800"}]',
        "[{}]",
        *(f'[{{"name": "a", "{name}": {value}}}]' for name, value in (
            ("state", "null"), ("state", '"gone"'), ("state", "[]"), ("pid", '"1"'), ("pid", "-1"), ("pid", "1.5"),
            ("num_restarts", '"a"'), ("num_restarts", "null"), ("num_restarts", "true"), ("num_restarts", "9" * 400),
            ("num_deaths", "[]"), ("last_end", "1"), ("last_end", '"\\udfff"'), ("ended_at_s", '"now"'),
            ("ended_at_s", "NaN"), ("ended_at_s", "9" * 400), ("next_start_at_s", "1e400"), ("next_start_at_s", "true"),
        )),
    ],
    ids=lambda content: content[:48],
)  # fmt: skip
def test_a_damaged_file_has_no_states_and_fails_no_report(tmp_path: Path, content: str) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    StatesWriter(good, ["decode-0"])
    bad.write_text(content)
    states = reader(bad, good)
    assert [state.name for state in states.read()] == ["decode-0"]
    registry = CollectorRegistry()
    registry.register(states)
    assert b'baton:process_up{name="decode-0"} 0.0' in generate_latest(registry)
    assert orjson.dumps([state.report() for state in states.read()])


def test_a_fifo_has_no_states(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "processes.json")
    assert read_states(path) == []


def test_a_full_or_missing_disk_ends_nothing(tmp_path: Path) -> None:
    writer = StatesWriter(tmp_path / "missing" / "processes.json", ["decode-0"])
    writer.update(Started("decode-0", 1, 10))
    writer.close()
