"""Workers of several ranks: handovers between different numbers of ranks, and the loss of a rank."""

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos import common_pb2
from benchmarks.server import served
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.completion_load import completion_load
from tests.integration.decode_client import decode_client
from tests.integration.handover.scripted_prefill import accept_only, scripted_prefill
from tests.integration.handover.test_expert_parallel import (
    completions,
    incarnation_of,
    status_after_sigterm,
    wait_logged,
)
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.integration.workers_view import pid_of, wait_all_ready
from tests.marks import slow_case
from tests.oracle import Oracle
from tests.process_ends import wait_gone

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SMALL = ("--max-num-batched-tokens=48", "--max-num-seqs=16", "--dtype=float32")


def random_prompt(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(low, high))]


def followers_of(worker: WorkerProcess) -> list[psutil.Process]:
    return psutil.Process(worker.child.pid).children()


@pytest.mark.parametrize(
    ("architecture", "num_prefill", "num_decode", "transport"),
    [
        slow_case("llama2", 4, 2, "shared_memory"),
        slow_case("llama3", 1, 2, "tcp"),
        slow_case("qwen3", 2, 4, "nixl"),
        ("mixtral", 2, 1, "shared_memory"),
        slow_case("deepseek-v3", 2, 2, "tcp"),
    ],
)
async def test_a_handover_between_workers_of_different_shapes(
    architecture: str, num_prefill: int, num_decode: int, transport: str, tmp_path: Path
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    oracle = Oracle(model)
    rng = random.Random(3)
    flags = (f"--transport={transport}", f"--kv-shards={max(num_prefill, num_decode)}", *SMALL)
    shapes = [("prefill", f"--tensor-parallel={num_prefill}"), ("decode", f"--tensor-parallel={num_decode}")]
    workers = worker_processes(model, tmp_path, *((*shape, *flags) for shape in shapes))
    async with workers as (prefill, decode), decode_client(decode) as client:
        followers = [*followers_of(prefill), *followers_of(decode)]
        assert len(followers) == num_prefill + num_decode - 2
        peer = await prefill.peer()
        prompts = [random_prompt(rng, 1, 200) for _ in range(5)]
        generations = await asyncio.gather(*(client.generate(prompt, GREEDY, peer) for prompt in prompts))
        for prompt, generation in zip(prompts, generations, strict=True):
            assert generation.token_ids == oracle.greedy(prompt, GREEDY.max_tokens, generation.token_ids)
            assert generation.served_by.prefill_worker == peer.worker_id
            assert generation.served_by.handed_over_tokens == len(prompt)
            assert generation.served_by.kv_transport == transport
        load = await decode.wait_idle()
        assert (load.handovers, load.handover_failures) == (len(prompts), 0)
        await prefill.wait_idle()
    assert not any(follower.is_running() for follower in followers)


@pytest.mark.slow
async def test_a_prefix_is_pulled_from_a_worker_of_a_different_shape(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    oracle = Oracle(model)
    flags = ("--kv-shards=2", *SMALL)
    shapes = [("decode", "--tensor-parallel=2"), ("decode", "--tensor-parallel=1")]
    rng = random.Random(5)
    async with worker_processes(model, tmp_path, *((*shape, *flags) for shape in shapes)) as both:
        for source, puller in (both, both[::-1]):
            prompt = random_prompt(rng, 150, 160)
            async with decode_client(source) as client:
                await client.generate(prompt, GREEDY)
            async with decode_client(puller) as client:
                pulled = await client.submit(prompt, GREEDY, prefix_source=await source.peer())
                await pulled.ended.wait()
            assert pulled.token_ids == oracle.greedy(prompt, GREEDY.max_tokens, pulled.token_ids)
            assert pulled.served_by.prefix_pulled_tokens >= 128
            await source.wait_idle()
            await puller.wait_idle()


@pytest.mark.slow
async def test_aborts_during_handovers_leave_nothing_held(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    oracle = Oracle(model)
    rng = random.Random(7)
    flags = ("--kv-shards=2", *SMALL)
    shapes = [("prefill", "--tensor-parallel=2"), ("decode", "--tensor-parallel=2")]
    workers = worker_processes(model, tmp_path, *((*shape, *flags) for shape in shapes))
    async with workers as (prefill, decode), decode_client(decode) as client:
        peer = await prefill.peer()
        for _ in range(8):
            generation = await client.submit(random_prompt(rng, 400, 500), GREEDY, peer)
            await asyncio.sleep(rng.uniform(0, 0.1))  # a random moment of the handover
            await client.abort(generation)
        await decode.wait_idle()
        await prefill.wait_idle()
        prompt = random_prompt(rng, 200, 300)
        assert (await client.generate(prompt, GREEDY, peer)).token_ids == oracle.greedy(prompt, GREEDY.max_tokens)


async def lose_a_rank(model: Path, directory: Path) -> None:
    """Kill one follower of an idle worker, and check that the worker and the other ranks end."""
    async with worker_processes(model, directory, ("decode", "--tensor-parallel=4", *SMALL)) as [decode]:
        killed, *left = followers_of(decode)
        async with decode_client(decode) as client:
            assert (await client.generate([5, 6, 7], GREEDY)).finish_reason == common_pb2.FINISH_REASON_LENGTH
        killed.kill()  # the worker is idle, so no step detects it
        async with asyncio.timeout(20):
            assert await decode.child.wait() == 1
            while any(follower.is_running() for follower in left):
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_worker_that_loses_a_rank_ends(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    with pytest.raises(AssertionError, match=r"ended with 1: [^$]*rank 1 of this worker was killed by SIGKILL"):
        await lose_a_rank(model, tmp_path)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a new directory for temporary files of subprocesses, with a short path, since it holds sockets."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield Path(directory)


@pytest.mark.slow
async def test_ranks_that_are_terminated_together_end_after_their_requests(tmp_path: Path, temporary: Path) -> None:
    """A service manager that knows all processes terminates them together."""
    model = make_checkpoint("llama3", tmp_path / "model")
    async with worker_processes(model, tmp_path, ("decode", "--tensor-parallel=2", *SMALL)) as [decode]:
        assert not list(temporary.glob("baton-ranks-*"))  # removed early: later no rank might be left to remove it
        async with decode_client(decode) as client:
            sampling = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
            generation = await client.submit([5, 6, 7], sampling)
            await generation.progressed.wait()
            for process in (*followers_of(decode), psutil.Process(decode.child.pid)):
                process.terminate()
            await generation.ended.wait()
            assert len(generation.token_ids) == 200
        assert await decode.child.wait() == 0


@pytest.mark.slow
async def test_a_stopped_rank_does_not_keep_others_from_ending(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    async with worker_processes(model, tmp_path, ("decode", "--tensor-parallel=2", *SMALL)) as [decode]:
        [stopped] = followers_of(decode)
        stopped.suspend()
        decode.child.terminate()
        async with asyncio.timeout(40):
            assert await decode.child.wait() == 0
        assert not stopped.is_running()


@pytest.mark.slow
async def test_a_rank_stopped_in_mid_decode_does_not_keep_its_worker_from_ending(tmp_path: Path) -> None:
    """The first rank leaves a step that never ends. The stopped rank then continues, and ends too."""
    model = make_checkpoint("llama3", tmp_path / "model")
    flags = ("--tensor-parallel=2", "--drain-timeout-s=0.1", *SMALL)
    async with worker_processes(model, tmp_path, ("decode", *flags)) as [decode], decode_client(decode) as client:
        [stopped] = followers_of(decode)
        generation = await client.submit([5, 6, 7], SamplingParams(temperature=0, max_tokens=100_000, ignore_eos=True))
        await generation.progressed.wait()
        stopped.suspend()
        ending = asyncio.create_task(status_after_sigterm(decode.child))
        await wait_logged(tmp_path / "decode-0.log", "the engine has ended: this rank has left its group")
        stopped.resume()
        assert await ending == 0
        assert not stopped.is_running()
        assert " ERROR " not in (tmp_path / "decode-0.log").read_text()


@pytest.mark.slow
async def test_a_stopped_rank_that_receives_kv_does_not_keep_its_worker_from_ending(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    flags = ("--tensor-parallel=2", "--drain-timeout-s=0.1", *SMALL)
    async with (
        worker_processes(model, tmp_path, ("decode", *flags)) as [decode],
        scripted_prefill(await decode.describe(), accept_only) as (peer, prefill),
        decode_client(decode) as client,
    ):
        [stopped] = followers_of(decode)
        await client.submit(list(range(3, 100)), GREEDY, peer)
        await prefill.began.wait()
        stopped.suspend()
        assert await status_after_sigterm(decode.child, timeout_s=50.0) == 0  # 40 s on an idle machine
        assert not stopped.is_running()


@pytest.mark.slow
async def test_killing_a_workers_process_group_leaves_no_rank(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    async with worker_processes(model, tmp_path, ("decode", "--tensor-parallel=2", *SMALL)) as [decode]:
        [follower] = followers_of(decode)
        follower.suspend()  # a suspended process cannot end itself
        decode.child.kill()
        await wait_gone(follower)


@pytest.mark.slow
async def test_a_stopped_rank_does_not_outlive_its_killed_worker(tmp_path: Path) -> None:
    """No supervisor kills the process group here."""
    model = make_checkpoint("llama3", tmp_path / "model")
    async with worker_processes(model, tmp_path, ("decode", "--tensor-parallel=2", *SMALL)) as [decode]:
        [follower] = followers_of(decode)
        follower.suspend()
        os.kill(decode.child.pid, signal.SIGKILL)
        await wait_gone(follower)


@pytest.mark.slow
async def test_serve_divides_the_model_and_survives_the_loss_of_a_rank(cluster_url: str) -> None:
    expected = await completions(cluster_url)
    prefill = ("--prefill", "1", "--prefill-tensor-parallel", "2", "--prefill-expert-parallel", "2")  # whole experts
    decode = ("--decode", "2", "--tensor-parallel", "2")  # a shard of each expert
    async with (
        served("", *prefill, *decode, "--dtype", "float32", "--num-threads", "1", "--local-prefill-below", "0") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)
        assert await completions(url) == expected
        async with completion_load(*[client] * 3) as load:
            await load.more(3)
            incarnation = await incarnation_of("decode-1", url)
            [follower] = psutil.Process(await pid_of("decode-1", url)).children()
            os.kill(follower.pid, signal.SIGKILL)
            await load.more(3)  # with the remaining worker
            async with asyncio.timeout(60):
                while await incarnation_of("decode-1", url) in (incarnation, None):
                    await asyncio.sleep(0.1)
            await load.more(5)
