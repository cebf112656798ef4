"""Simulated workers with Dynamo's worker protocol: `python -m benchmarks.routing.workers.dynamo TOPOLOGY MODEL`.

They run in the peers' environment with one Dynamo runtime per worker: files for discovery, TCP for requests and ZeroMQ
for cache events, which carry the blocks' tokens.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import uvloop
from dynamo.llm import (  # type: ignore[import-not-found]  # in the peers' environment
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)
from dynamo.runtime import Context, DistributedRuntime  # type: ignore[import-not-found]  # there too

from baton.engine.kv.block_hash import BlockHash, root_hash
from baton.engine.outputs import StepOutput
from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import SimulatedRequest
from benchmarks.routing.topology import Role, Topology
from benchmarks.routing.workers.control import announce, answer_until_end
from benchmarks.routing.workers.counts import WorkerCounts
from benchmarks.routing.workers.rendezvous import Rendezvous

MODEL = "bench"
COMPONENTS = {"both": "backend", "prefill": "prefill", "decode": "backend"}
TYPES = {"both": WorkerType.Aggregated, "prefill": WorkerType.Prefill, "decode": WorkerType.Decode}
NEEDS = {"both": None, "prefill": [[WorkerType.Decode]], "decode": [[WorkerType.Prefill]]}
Message = Mapping[str, Any]  # the runtime's type


class DynamoWorker:
    """One engine, its runtime and its event publisher."""

    def __init__(self, role: Role, engine: SimulatedEngine, rendezvous: Rendezvous) -> None:
        self.engine = engine
        self._role = role
        self._rendezvous = rendezvous
        self._runtime = DistributedRuntime(
            asyncio.get_running_loop(), "file", "tcp", event_plane="zmq", response_plane="tcp"
        )
        self._endpoint = self._runtime.endpoint(f"bench.{COMPONENTS[role]}.generate")
        self._publisher: KvEventPublisher | None = None
        self._serving: asyncio.Future[None] | None = None
        engine.cache_feed.keeps_content = True
        self._news = engine.cache_feed.subscribe()
        self._root = root_hash()

    async def start(self, model: str) -> str:
        """Start serving, and return the name of its endpoint's instance."""
        spec = self.engine.spec
        config = ModelRuntimeConfig()
        config.total_kv_blocks, config.max_num_seqs = spec.num_blocks, spec.max_num_seqs
        config.max_num_batched_tokens, config.context_length = spec.max_num_batched_tokens, spec.max_model_len
        config.enable_local_indexer = True
        if self._role == "prefill":
            config.set_disaggregated_endpoint("127.0.0.1", 1)  # never used: `Rendezvous` replaces it
        self._serving = asyncio.ensure_future(self._endpoint.serve_endpoint(self._generate, graceful_shutdown=False))
        surface = ModelType.Prefill if self._role == "prefill" else ModelType.Chat | ModelType.Completions
        await register_model(
            ModelInput.Tokens, surface, self._endpoint, model, MODEL, worker_type=TYPES[self._role],
            kv_cache_block_size=spec.block_size, runtime_config=config,
            needs=NEEDS[self._role],
        )  # fmt: skip
        self._publisher = KvEventPublisher(self._endpoint, kv_block_size=spec.block_size, enable_local_indexer=True)
        self.engine.core.listen(self._publish)
        return str(self._endpoint.connection_id())

    async def _generate(self, message: Message, context: Context) -> AsyncGenerator[dict[str, object], None]:
        request = SimulatedRequest(
            request_id=context.id(),
            token_ids=message["token_ids"],
            num_output_tokens=message["stop_conditions"]["max_tokens"],
        )
        if self._role == "prefill":
            async for answer in self._prefill(message):
                yield answer
            return
        room = (message.get("bootstrap_info") or {}).get("bootstrap_room")
        prefill = None if room is None else await self._rendezvous.find(room, request)
        try:
            async with aclosing(self.engine.generate(request, prefill)) as tokens:
                async for token in tokens:
                    yield {"token_ids": [token.token_id], **({"finish_reason": "length"} if token.is_last else {})}
                    if room is not None:
                        self._rendezvous.end(room)
        finally:
            if room is not None:
                self._rendezvous.end(room)

    async def _prefill(self, message: Message) -> AsyncGenerator[dict[str, object], None]:
        room = message["bootstrap_info"]["bootstrap_room"]
        done = {"disaggregated_params": {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1}}
        yield {"token_ids": [], **done}
        await self._rendezvous.offer(room, self.engine)
        yield {"token_ids": [0], "finish_reason": "length", **done}

    def _publish(self, step: StepOutput) -> None:
        """Publish the blocks that the step added to the cache and removed from it."""
        assert self._publisher is not None
        changes = self._news.take()
        if changes.removed:
            self._publisher.publish_removed([_number(each) for each in changes.removed])
        run: list[BlockHash] = []
        for block_hash in changes.stored:
            if run and self.engine.cache_feed.content(block_hash).parent != run[-1]:
                self._publish_run(run)
                run = []
            run.append(block_hash)
        if run:
            self._publish_run(run)

    def _publish_run(self, run: list[BlockHash]) -> None:
        """Publish a chain of blocks."""
        assert self._publisher is not None
        contents = [self.engine.cache_feed.content(block_hash) for block_hash in run]
        parent = contents[0].parent
        self._publisher.publish_stored(
            [token for content in contents for token in content.token_ids],
            [len(content.token_ids) for content in contents],
            [_number(block_hash) for block_hash in run],
            None if parent == self._root else _number(parent),
        )


def _number(block_hash: BlockHash) -> int:
    return int.from_bytes(block_hash[:8], "little", signed=True)


async def main(topology: Topology, model: str) -> None:
    """Serve until standard input ends."""
    rendezvous = Rendezvous()
    workers = [DynamoWorker(role, SimulatedEngine(topology.spec), rendezvous) for role in topology.roles]
    announce([await worker.start(model) for worker in workers])
    await answer_until_end(lambda: [WorkerCounts.of(worker.engine.counters) for worker in workers])


if __name__ == "__main__":
    uvloop.run(main(Topology.from_json(sys.argv[1]), sys.argv[2]))
