"""`baton bench` with real servers: simulated workers with known times, and the bundled model."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.loadtool.profile import FORMAT
from tests.integration.router_process import MODEL, router_process, wait_workers
from tests.integration.simulated_process import simulated

STEP_S, PREFILL_TOKENS_PER_S = 0.02, 10_000
TIMES = (f"--step-s={STEP_S}", f"--prefill-tokens-per-s={PREFILL_TOKENS_PER_S}", "--sequence-s=0")


async def bench(url: str, directory: Path, *flags: str) -> dict[str, Any]:
    """Run the command, check its exit status and return the report that it writes."""
    report = directory / "bench.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton", "bench", f"--base-url={url}", f"--json={report}", *flags,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    content = json.loads(report.read_text())
    assert isinstance(content, dict)
    return content


@pytest.mark.slow
async def test_measured_times_match_the_simulated_workers(tmp_path: Path) -> None:
    async with (
        simulated("--colocated=1", *TIMES) as simulation,
        router_process(tmp_path, "--port=0", f"--workers={simulation['addresses']}") as router,
    ):
        async with router.client() as client:
            await wait_workers(client, 1)
        flags = ("--random-input-len=800", "--random-output-len=40", "--num-prompts=8", "--num-warmups=2")
        content = await bench(router.url, tmp_path, *flags, "--max-concurrency=1,4")
    one, four = content["runs"]
    for run in (one, four):
        assert (run["num_completed"], run["num_failed"], run["num_uncounted"], run["num_short"]) == (8, 0, 0, 0)
        assert (run["num_input_tokens"], run["num_output_tokens"]) == (8 * 800, 8 * 40)
    # A single request: one step with the whole prompt, then one step per token.
    prefill_ms = 1000 * (STEP_S + 800 / PREFILL_TOKENS_PER_S)
    assert 0.98 * prefill_ms < one["ttft_ms"]["p50"] < 2 * prefill_ms  # a busy machine takes longer
    assert 0.97 * 1000 * STEP_S < one["tpot_ms"]["p50"] < 1.5 * 1000 * STEP_S
    assert 0.95 * 1000 * STEP_S < one["itl_ms"]["p50"] < 1.5 * 1000 * STEP_S
    assert one["e2e_ms"]["mean"] == pytest.approx(one["ttft_ms"]["mean"] + 39 * one["tpot_ms"]["mean"], rel=0.001)
    assert one["output_tokens_per_s"] == pytest.approx(40 / one["e2e_ms"]["mean"] * 1000, rel=0.05)
    assert (one["max_concurrency"], four["max_concurrency"]) == (1, 4)
    assert four["output_tokens_per_s"] > 1.5 * one["output_tokens_per_s"]


@pytest.mark.slow
async def test_a_traces_shared_prefixes_hit_the_cache(tmp_path: Path) -> None:
    """The trace's prompts are scaled to an eighth: 64 tokens per hash, which is four blocks."""
    trace = tmp_path / "trace.jsonl"
    hashes = [[0, 1, 2, 3], [0, 1, 4, 5], [0, 6, 7, 8], [9, 10, 11, 12], [0, 1, 2, 3]]
    records = [
        {"timestamp": 500 * number, "input_length": 2048, "output_length": 80, "hash_ids": ids}
        for number, ids in enumerate(hashes)
    ]
    trace.write_text("\n".join(map(json.dumps, records)))
    async with (
        simulated("--prefill=1", "--decode=1", *TIMES) as simulation,
        router_process(tmp_path, "--port=0", f"--workers={simulation['addresses']}") as router,
    ):
        async with router.client() as client:
            await wait_workers(client, 2)
        flags = ("--dataset=mooncake", f"--dataset-path={trace}", "--scale-lengths=0.125", "--per-request")
        remote = ("--header", "x-baton-plan: remote")
        content = await bench(router.url, tmp_path, *flags, *remote, f"--profile={tmp_path / 'profile.json'}")
    (run,) = content["runs"]
    requests = sorted(run["requests"], key=lambda request: request["due_s"])
    assert [request["due_s"] for request in requests] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [request["prompt_tokens"] for request in requests] == [256] * 5
    cached = [request["cached_tokens"] for request in requests]
    assert cached[:4] == [0, 128, 64, 0]
    assert 240 <= cached[4] < 256  # all but the last block
    paths = run["paths"]
    assert (paths["num_remote"], paths["by_prefill_worker"], paths["by_decode_worker"]) == (
        5, {"prefill-0": 5}, {"decode-0": 5},
    )  # fmt: skip
    assert run["lag_ms"]["p50"] < 20
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert profile["format"] == FORMAT
    assert [each["uncached_tokens"] for each in profile["requests"]] == [256 - each for each in cached]
    assert all(each["prefill_worker"] and each["decode_worker"] for each in profile["requests"])


@pytest.mark.slow
async def test_chats_with_the_bundled_model(cluster_url: str, tmp_path: Path) -> None:
    flags = (
        "--endpoint=/v1/chat/completions",
        f"--tokenizer={MODEL}",
        "--random-input-len=60",
        "--random-output-len=12",
    )
    page = tmp_path / "page.html"
    content = await bench(cluster_url, tmp_path, *flags, "--num-prompts=10", "--request-rate=20", f"--html={page}")
    (run,) = content["runs"]
    assert (run["num_completed"], run["num_output_tokens"], run["num_short"]) == (10, 120, 0)
    assert 10 * 60 <= run["num_input_tokens"] < 10 * 100  # includes the chat template's tokens
    assert run["paths"]["num_remote"] + run["paths"]["num_local"] == 10
    assert "<svg" in page.read_text()


@pytest.mark.slow
async def test_text_and_token_ids_are_the_same_tokens(cluster_url: str, tmp_path: Path) -> None:
    flags = (f"--tokenizer={MODEL}", "--random-input-len=50", "--random-output-len=2", "--num-prompts=4", "--seed=7")
    closed = ("--max-concurrency=1", "--header", "x-baton-plan: remote")
    first, second = [
        (await bench(cluster_url, tmp_path, *flags, *closed, f"--prompts={form}"))["runs"][0]
        for form in ("token-ids", "text")
    ]
    assert (first["num_input_tokens"], second["num_input_tokens"]) == (200, 200)
    assert (first["paths"]["num_remote"], first["paths"]["num_handed_over_tokens"]) == (4, 200)
    assert sum(first["paths"]["by_transport"].values()) == 4
    assert first["num_cached_tokens"] == 0
    assert second["num_cached_tokens"] >= 4 * 48  # these tokens are cached


async def test_an_interrupted_load_reports_its_results_so_far(cluster_url: str, tmp_path: Path) -> None:
    report = tmp_path / "bench.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton", "bench", f"--base-url={cluster_url}", f"--json={report}", "--max-concurrency=2",
        "--random-input-len=20", "--random-output-len=4", "--duration=600",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=cluster_url, trust_env=False, verify=False) as client:
        while not (await client.get("/workers")).json()["router"]["inflight"]:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)  # so that some requests end
        process.send_signal(2)
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    (run,) = json.loads(report.read_text())["runs"]
    assert run["num_completed"] > 0
    assert not run["is_whole"]
    assert "interrupted" in output.decode()
