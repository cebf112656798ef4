"""The benchmark of KV tiers: how systems take turns, what a row has, and what becomes of one that fails."""

import sys
from pathlib import Path

import pytest

from benchmarks.engines import peers
from benchmarks.engines.engine_process import ROOT
from benchmarks.kv_tiers.__main__ import measure
from benchmarks.kv_tiers.peer_system import peer_system
from benchmarks.kv_tiers.peer_system import peers as store_peers
from benchmarks.kv_tiers.system import Prompt, SystemFailed
from benchmarks.kv_tiers.turns import COLUMNS, Turns
from benchmarks.report import Report

MODEL = ROOT / "baton" / "bundled_model"
PROMPTS = [[number] * 10 for number in range(4)]


class ScriptedSystem:
    """A system that takes given times, and may fail from some call on."""

    def __init__(self, name: str, log: list[str], limit_s: float | None = None, fails_at: int = -1) -> None:
        self.name = name
        self._log = log
        self._limit_s = limit_s
        self._left = fails_at

    async def compute_s(self, prompt: Prompt) -> float:
        self._note(f"{self.name} computes {prompt[0]}")
        return 10.0 + prompt[0]

    async def fetch_s(self, prompt: Prompt) -> float:
        self._note(f"{self.name} fetches {prompt[0]}")
        return 1.0 + prompt[0]

    def limit_s(self, computed_s: float) -> float | None:
        assert computed_s == 12.5
        return self._limit_s

    def _note(self, line: str) -> None:
        self._log.append(line)
        self._left -= 1
        if self._left == 0:
            raise SystemFailed("it has no memory\nof this")


async def test_systems_take_turns_and_the_first_times_are_not_counted() -> None:
    log: list[str] = []
    report = Report("", COLUMNS)
    systems = [ScriptedSystem("a", log, limit_s=0.5), ScriptedSystem("b", log)]
    await Turns("host", systems, report).run(PROMPTS, 2_000_000)
    assert log[:2] == ["a computes 0", "b computes 0"]
    assert log[2:6] == ["a computes 1", "a fetches 0", "b computes 1", "b fetches 0"]
    first, second = (dict(zip(COLUMNS, row, strict=True)) for row in report.rows)
    assert (first["system"], first["prompt"], first["MB"]) == ("a", 10, 2.0)
    assert (first["computed TTFT ms"], first["fetched TTFT ms"], first["times as fast"]) == (12500, 2500, 5)
    assert (first["limit ms"], first["limit / fetched"]) == (500, 0.2)
    assert (second["system"], second["limit ms"], second["limit / fetched"]) == ("b", "-", "-")


async def test_a_system_that_fails_gets_a_note_and_the_others_go_on() -> None:
    log: list[str] = []
    report = Report("", COLUMNS)
    systems = [ScriptedSystem("a", log, fails_at=3), ScriptedSystem("b", log, fails_at=1), ScriptedSystem("c", log)]
    await Turns("disk", systems, report).run(PROMPTS, 0)
    assert [row[1] for row in report.rows] == ["c"]
    assert report.notes == [
        "b failed with the disk tier: it has no memory",
        "a failed with the disk tier: it has no memory",
    ]
    assert "b computes 1" not in log
    assert "a computes 2" not in log


def test_a_peer_without_an_environment_is_named(tmp_path: Path) -> None:
    for peer, environment in zip(store_peers(), ("llama_cpp", "vllm_lmcache", "vllm_lmcache"), strict=True):
        with (
            pytest.raises(SystemFailed, match=f"make it with `python -m .*peers {tmp_path} {environment}`"),
            peer_system(peer, "host", MODEL, 64, tmp_path),
        ):
            pass


def test_environments_are_made_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[str] = []
    monkeypatch.setattr(peers.PeerEnvironment, "make", lambda self, _: made.append(self.name))
    for names in ((), ("llama_cpp", "vllm_lmcache")):
        monkeypatch.setattr(sys, "argv", ["peers", str(tmp_path), *names])
        peers.main()
    assert made == ["openvino", "vllm", "llama_cpp", "llama_cpp", "vllm_lmcache"]
    monkeypatch.setattr(sys, "argv", ["peers", str(tmp_path), "sglang"])
    with pytest.raises(SystemExit, match="vllm_lmcache"):
        peers.main()


@pytest.mark.slow
async def test_prompts_come_from_host_memory(tmp_path: Path) -> None:
    report = Report("", COLUMNS)
    await measure(MODEL, "host", 256, 1, tmp_path, report)
    [row] = report.rows
    assert row[:3] == ["host", "Baton", 256]
    assert len(report.notes) == len(store_peers())
