"""Workers whose ranks are on two nodes: tokens, handovers, the loss of a node, and nodes that do not fit."""

import asyncio
import os
import random
import signal
from pathlib import Path

import psutil
import pytest
import trustme

from baton.deployment.local.ports import free_ports
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.http.test_tls import flags
from tests.integration.membership.two_nodes import (
    HOSTS,
    SMALL,
    flags_of_node,
    on_two_nodes,
    second_node,
    worker_on_two_nodes,
)
from tests.integration.moves.test_stopped_worker import tokens_of
from tests.integration.router_process import MODEL, router_process
from tests.integration.worker_process import worker_process
from tests.integration.workers_view import wait_all_ready
from tests.marks import slow_case
from tests.oracle import Oracle
from tests.process_ends import wait_gone

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
PROMPT = [random.Random(11).randrange(3, VOCAB_SIZE) for _ in range(120)]


@pytest.mark.parametrize(
    ("transport", "many"),
    [("tcp", "decode"), slow_case("tcp", "prefill"), slow_case("nixl", "decode"), slow_case("nixl", "prefill")],
)
async def test_tokens_equal_one_ranks_alone_and_through_a_handover(transport: str, many: str, tmp_path: Path) -> None:
    """`many`: the worker that lies on two nodes."""
    model = make_checkpoint("llama3", tmp_path / "model")
    one = "prefill" if many == "decode" else "decode"
    flag = f"--transport={transport}"
    async with (
        worker_on_two_nodes(many, model, tmp_path, flag) as (large, node),
        worker_process(one, model, tmp_path, flag, *SMALL) as small,
    ):
        prefill, decode = (small, large) if many == "decode" else (large, small)
        description = await large.describe()
        assert description.num_ranks == 2
        async with decode_client(decode) as client:
            expected = Oracle(model).greedy(PROMPT, GREEDY.max_tokens)
            handed_over = await client.generate(PROMPT, GREEDY, await prefill.peer())
            assert handed_over.token_ids == expected
            assert handed_over.served_by.kv_transport == transport
            assert handed_over.served_by.handed_over_tokens == len(PROMPT)
            alone = [5, *PROMPT]
            assert (await client.generate(alone, GREEDY)).token_ids == Oracle(model).greedy(alone, GREEDY.max_tokens)
        assert await prefill.wait_idle()
        ranks = [process for child in (large.child, node.child) for process in psutil.Process(child.pid).children()]
        assert len(ranks) == 1  # of the second node; the first rank is the worker's process
        large.child.terminate()
        assert await large.child.wait() == 0
        assert await node.ended() == 0
        await wait_gone(*ranks)


async def lose_the_second_node(model: Path, directory: Path) -> None:
    """Kill an idle worker's process on its second node, and check that the worker ends, and the rank on that node."""
    async with worker_on_two_nodes("decode", model, directory) as (worker, node):
        [rank] = psutil.Process(node.child.pid).children()
        os.kill(node.child.pid, signal.SIGKILL)  # and with it the lifeline of its rank, which gets SIGTERM
        async with asyncio.timeout(20):
            assert await worker.child.wait() == 1
        await wait_gone(rank)


@pytest.mark.slow
async def test_a_worker_ends_with_either_node(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    with pytest.raises(AssertionError, match=r"ended with 1: [^$]*rank 1 of this worker is gone"):
        await lose_the_second_node(model, tmp_path)
    async with worker_on_two_nodes("decode", model, tmp_path) as (worker, node):
        worker.child.kill()
        async with asyncio.timeout(20):
            assert await node.ended() == 1
        assert "the first rank at 127.0.0.1:" in node.log.read_text()


@pytest.mark.slow
async def test_a_signal_to_any_node_drains_the_worker(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    async with worker_on_two_nodes("decode", model, tmp_path) as (worker, node), decode_client(worker) as client:
        sampling = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        generation = await client.submit([5, 6, 7], sampling)
        await generation.progressed.wait()
        node.child.terminate()
        await generation.ended.wait()
        assert len(generation.token_ids) == 100
        assert (await worker.child.wait(), await node.ended()) == (0, 0)


async def test_a_node_that_never_comes_ends_the_start(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    [port] = free_ports(HOSTS[0], 1)
    missing = rf"node 1 \(rank 1\) has not connected to {HOSTS[0]}:{port} in 0\.5 s"
    with pytest.raises(AssertionError, match=missing):
        async with worker_process("decode", model, tmp_path, *flags_of_node(0, port, *SMALL, "--node-timeout-s=0.5")):
            pass


@pytest.mark.slow
async def test_a_node_that_waits_ends_at_a_signal(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    [port] = free_ports(HOSTS[0], 1)
    for delay_s in (0.0, 4.0):  # before its rank handles signals, and after
        directory = tmp_path / f"{delay_s:g}"
        directory.mkdir()
        async with second_node("decode", model, directory, port, *SMALL) as node, asyncio.timeout(30):
            while "node 1 runs rank 1 of the worker" not in node.log.read_text():
                await asyncio.sleep(0.05)
            await asyncio.sleep(delay_s)
            node.child.terminate()
            assert await node.ended() == 0


@pytest.mark.slow
async def test_a_node_ends_with_the_status_of_its_worker(tmp_path: Path) -> None:
    """Node 2 never comes."""
    model = make_checkpoint("llama3", tmp_path / "model")
    [port] = free_ports(HOSTS[0], 1)
    four = (*SMALL[:3], "--tensor-parallel-size=4", "--nnodes=4", "--kv-shards=4", "--node-timeout-s=15")
    async with second_node("decode", model, tmp_path, port, *four) as node:
        with pytest.raises(AssertionError, match=r"node 2 \(rank 2\) has not connected"):
            async with worker_process("decode", model, tmp_path, *flags_of_node(0, port, *four)):
                pass
        async with asyncio.timeout(20):
            assert await node.ended() == 1
    assert "the worker has failed, as its first rank at 127.0.0.1" in node.log.read_text()


@pytest.mark.slow
async def test_a_node_that_does_not_fit_is_refused_and_the_wait_for_one_that_does_ends(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    other = make_checkpoint("qwen3", tmp_path / "other")
    [port] = free_ports(HOSTS[0], 1)
    [free] = free_ports(HOSTS[0], 1)
    missing = rf"node 1 \(rank 1\) has not connected to {HOSTS[0]}:{port} in 15 s; the last one refused: "
    with pytest.raises(AssertionError, match=missing):
        async with (
            second_node("decode", other, tmp_path, port, *SMALL) as wrong_model,
            second_node("decode", model, tmp_path, free, *SMALL, "--node-timeout-s=1") as alone,
            second_node("prefill", model, tmp_path, port, *SMALL, "--block-size=32") as wrong_size,
            worker_process("decode", model, tmp_path, *flags_of_node(0, port, *SMALL, "--node-timeout-s=15")),
        ):
            pass
    for node, text in (
        (wrong_model, "model is 'Qwen3ForCausalLM (3-"),
        (wrong_size, "block_size is '32' on rank 1 and '16' on rank 0; set the same on all nodes"),
        (alone, f"the worker's first rank is not at {HOSTS[0]}:{free}: no answer in 1 s"),
    ):
        assert text in node.log.read_text()


async def move_from_a_lost_node(model: Path, directory: Path) -> None:
    """Kill a node of the worker that streams a sampled response, and check that another worker goes on with it."""
    body = {"prompt": PROMPT, "max_tokens": 120, "temperature": 1, "seed": 3, "stream": True, "ignore_eos": True}
    async with (
        on_two_nodes(model, directory, ("decode",), ("decode",)) as pairs,
        router_process(directory, "--port=0", f"--workers={','.join(each.address for each, _ in pairs)}") as router,
        router.client() as client,
    ):
        await wait_all_ready(router.url)
        nodes = {(await worker.describe()).worker_id: node for worker, node in pairs}
        streams = []
        for is_disturbed in (False, True):
            async with client.stream("POST", "/v1/completions", json={**body, "return_token_ids": True}) as response:
                tokens = tokens_of(response)
                seen = [await anext(tokens) for _ in range(20)]
                if is_disturbed:
                    nodes[response.headers["x-baton-decode"]].child.kill()
                streams.append(seen + [token async for token in tokens])
        assert len(streams[0]) == 120
        assert streams[0] == streams[1]


@pytest.mark.slow
async def test_requests_of_a_worker_that_loses_a_node_continue_with_the_same_tokens(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="rank 1 of this worker is gone"):
        await move_from_a_lost_node(MODEL, tmp_path)


@pytest.mark.slow
async def test_nodes_without_a_certificate_are_not_let_in(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    own = flags(tmp_path / "tls", trustme.CA())
    with pytest.raises(AssertionError, match=r"node 1 \(rank 1\) has not connected to 127.0.0.1:\d+ in 8 s'"):
        await start_with(model, tmp_path, own, ())
    async with worker_on_two_nodes("decode", model, tmp_path, *own):
        pass


async def start_with(model: Path, directory: Path, first: tuple[str, ...], second: tuple[str, ...]) -> None:
    """Start a worker whose nodes have different options."""
    [port] = free_ports(HOSTS[0], 1)
    own = (*SMALL, "--node-timeout-s=8")
    async with (
        second_node("decode", model, directory, port, *own, *second),
        worker_process("decode", model, directory, *flags_of_node(0, port, *own, *first)),
    ):
        raise AssertionError("the worker started")
