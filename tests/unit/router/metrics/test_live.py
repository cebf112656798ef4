"""Stages of completions, from the dispatcher's calls and in a running router."""

import asyncio

import pytest

from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL
from baton.router.metrics import metrics as router_metrics
from baton.router.metrics.live import LiveCompletion, LiveCompletions, Stage
from baton.router.policy.cluster import Plan
from tests.unit.router.rigs.cluster_builder import prefill, worker
from tests.unit.router.rigs.running_router import running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

REMOTE = Plan(worker("decode-0"), prefill("prefill-0"), None, "")
LOCAL = Plan(worker("decode-0"), None, None, "")


def counts(live: LiveCompletions) -> list[int]:
    return [live.count(stage) for stage in Stage]


def test_a_remote_completion_passes_all_stages_and_a_local_one_skips_the_handover() -> None:
    live = LiveCompletions()
    remote, local = (live.begin(LiveCompletion(name, 0, 10, 20, 0.0)) for name in ("remote", "local"))
    assert counts(live) == [2, 0, 0, 0]
    live.routed(remote, REMOTE)
    live.routed(local, LOCAL)
    assert counts(live) == [0, 2, 0, 0]
    live.tokens(remote, 1)
    live.tokens(local, 1)
    assert counts(live) == [0, 0, 1, 1]
    live.tokens(remote, 1)
    assert counts(live) == [0, 0, 0, 2]
    assert [each.request_id for each in live.longest(Stage.DECODE, 1)] == ["local"]
    live.end(local)
    live.end(remote)
    assert counts(live) == [0, 0, 0, 0]


def test_a_completion_that_moves_is_computed_again_and_keeps_its_ttft() -> None:
    live = LiveCompletions()
    moved = live.begin(LiveCompletion("moved", 0, 10, 20, 0.0))
    live.routed(moved, LOCAL)
    live.tokens(moved, 5)
    ttft_s = moved.ttft_s
    live.left(moved)
    assert (counts(live), moved.plan) == ([1, 0, 0, 0], None)
    live.routed(moved, REMOTE)
    assert (moved.stage, moved.num_attempts, moved.num_tokens) == (Stage.PREFILL, 2, 5)
    live.tokens(moved, 1)
    assert (moved.stage, moved.ttft_s) == (Stage.HANDOVER, ttft_s)


async def test_a_router_follows_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LiveCompletions] = []

    def make() -> LiveCompletions:
        made.append(LiveCompletions())
        return made[-1]

    monkeypatch.setattr(router_metrics, "LiveCompletions", make)
    decode, prefiller = ScriptedWorker(), ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL)
    decode.go_on.clear()
    async with running_router(decode, prefiller) as router:
        [live] = made
        body = {"prompt": "The cat sat", "max_tokens": 4, "n": 1}
        requests = [
            asyncio.create_task(router.http.post("/v1/completions", json=body, headers={"x-baton-plan": plan}))
            for plan in ("remote", "local")
        ]
        await until(lambda: counts(live) == [0, 0, 1, 1])  # each has its first token, and waits
        [handed_over] = live.longest(Stage.HANDOVER, 10)
        assert handed_over.plan is not None
        assert handed_over.plan.prefill is not None
        assert handed_over.num_tokens == 1
        decode.go_on.set()
        for request in requests:
            assert (await request).json()["usage"]["completion_tokens"] == 4
        assert counts(live) == [0, 0, 0, 0]


async def test_a_completion_whose_worker_was_lost_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveCompletions()
    monkeypatch.setattr(router_metrics, "LiveCompletions", lambda: live)
    decode = ScriptedWorker()
    decode.go_on.clear()
    async with running_router(decode) as router:
        body = {"prompt": "The cat sat", "max_tokens": 4}
        request = asyncio.create_task(router.http.post("/v1/completions", json=body))
        await until(lambda: counts(live) == [0, 0, 0, 1])
        await decode.stop()
        await until(lambda: counts(live) == [1, 0, 0, 0])
        request.cancel()
        await until(lambda: counts(live) == [0, 0, 0, 0])
