"""A router and workers of two releases: each sees the others through the last release's messages."""

from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from tests.integration.simulated_process import simulated
from tests.integration.test_simulated_workers import router_of
from tests.integration.wire_proxy import last_wire
from tests.unit.protos.last_release import LastRelease

PROMPT = "Once upon a time there was a number. " * 40


@pytest.mark.slow
async def test_requests_are_served_and_handed_over_between_releases(tmp_path: Path) -> None:
    """With proxies in front of all workers, router and workers, prefill and decode are of different releases."""
    release = LastRelease.load(tmp_path)
    async with simulated("--prefill=1", "--decode=1", "--step-s=0.002") as simulation, AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(last_wire(release, worker["address"])) for worker in simulation["workers"]
        ]
        addresses = ",".join(handler.address for handler in proxies)
        url = await stack.enter_async_context(router_of(addresses, tmp_path, "--local-prefill-below=16"))
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            body = {"model": "bundled_model", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
            first = await client.post("/v1/completions", json=body)
            again = await client.post("/v1/completions", json=body)
        assert (first.status_code, again.status_code) == (200, 200)
        assert first.json()["usage"]["completion_tokens"] == 12
        assert first.json()["choices"] == again.json()["choices"]
        assert first.headers["x-baton-prefill"] == simulation["workers"][0]["worker_id"]
        assert int(first.headers["x-baton-handed-over-tokens"]) > 0
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        called = set.union(*(handler.called for handler in proxies))
        assert {"/baton.v1.Worker/Watch", "/baton.v1.Decode/Attach", "/baton.v1.Prefill/Prefill"} <= called
