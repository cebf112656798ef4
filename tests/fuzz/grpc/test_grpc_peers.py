"""A hostile prefill worker: whatever it sends, the decode worker ends the request and holds nothing afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from hypothesis import strategies as st

from baton.engine.sampling.params import SamplingParams
from baton.protos.worker_pb2 import BlocksReady, FirstToken, KVPool, PrefillEvent
from tests.architectures import VOCAB_SIZE
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.messages import messages
from tests.fuzz.worker_rig import PROMPT, WorkerRig
from tests.integration.decode_client import decode_client
from tests.integration.handover.scripted_prefill import Prefilled, scripted_prefill

NUM_BLOCKS = -(-len(PROMPT) // 16)
PATIENCE_S = 20.0
SAMPLING = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)

Step = Callable[[Prefilled], PrefillEvent]  # one event of a hostile script

indices = st.one_of(st.integers(0, NUM_BLOCKS), st.integers(0, (1 << 32) - 1))
block_ids = st.lists(st.one_of(st.integers(0, 40), st.integers(0, (1 << 32) - 1)), max_size=NUM_BLOCKS + 2)
pools = messages(
    KVPool,
    {
        "num_blocks": st.sampled_from([0, 1, 32, (1 << 32) - 1]),
        "incarnation": st.sampled_from(["x", "", "\0"]),
        "block_bytes": st.sampled_from([0, 1 << 12, (1 << 64) - 1]),
    },
)
events = messages(
    PrefillEvent,
    {
        "first_index": indices,
        "block_ids": block_ids,
        "blocks": messages(BlocksReady, {"first_index": indices, "block_ids": block_ids}),
        "first_token": messages(FirstToken, {"token_id": st.integers(0, VOCAB_SIZE)}),
    },
)


def described_otherwise(pool: KVPool) -> Step:
    """Return a step that accepts with a partly wrong description of the pool."""

    def accept(prefilled: Prefilled) -> PrefillEvent:
        event = prefilled.accepted()
        event.accepted.pools[0].MergeFrom(pool)
        return event

    return accept


steps: st.SearchStrategy[Step] = st.one_of(
    st.just(Prefilled.accepted),
    st.just(Prefilled.accepted),
    pools.map(described_otherwise),
    st.builds(
        lambda first, ids, wrong: lambda prefilled: prefilled.blocks(first, ids, wrong),
        st.integers(0, NUM_BLOCKS),
        st.lists(st.integers(0, 31), max_size=NUM_BLOCKS + 1),
        st.sampled_from([0, 0, 0, 1]),
    ),
    st.just(lambda prefilled: prefilled.blocks(0, list(range(NUM_BLOCKS)))),
    events.map(lambda event: lambda _: event),
    st.integers(0, VOCAB_SIZE).map(lambda token: lambda _: PrefillEvent(first_token=FirstToken(token_id=token))),
)


def test_hostile_prefill_workers_leave_nothing_behind(fuzzing: Fuzzing, workers: WorkerRig) -> None:
    script: list[Step] = []
    salts = iter(range(1 << 60))

    async def play(prefilled: Prefilled) -> AsyncIterator[PrefillEvent]:
        for step in script:
            yield step(prefilled)

    peer_of, clients = scripted_prefill(workers.descriptions[1], play), decode_client(workers.decode)
    peer, _ = workers.run(peer_of.__aenter__())
    client: Any = workers.run(clients.__aenter__())

    async def generate() -> None:
        async with asyncio.timeout(PATIENCE_S):
            # A unique salt, so that no prompt is in the cache.
            generation = await client.submit(PROMPT, SAMPLING, peer, cache_salt=f"{next(salts)}")
            await generation.ended.wait()
            assert generation.error is None
            assert len(generation.token_ids) == SAMPLING.max_tokens
            assert all(0 <= token_id < VOCAB_SIZE for token_id in generation.token_ids)

    def check(steps: list[Step]) -> None:
        script[:] = steps
        workers.run(generate())

    try:
        fuzzing.run(st.lists(steps, max_size=5), check, 40)
    finally:
        workers.run(clients.__aexit__(None, None, None))
        workers.run(peer_of.__aexit__(None, None, None))
    workers.check_serves()
