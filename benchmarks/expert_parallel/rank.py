"""One rank of an expert-parallel group: a real engine without a worker.

    python -m benchmarks.expert_parallel.rank RANK_JSON

Prints a line when it is ready; then each line on stdin is a Load to run, and each line on stdout a Measured.
"""

import asyncio
import random
import sys
import threading
import uuid
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

import orjson
import torch
import uvloop

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.experts.group import ExpertGroup
from baton.engine.loop import EngineLoop
from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.rpc.peers import Channels
from baton.rpc.tls import Plaintext
from baton.worker.config import WorkerConfig
from baton.worker.expert_group import joined

PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class RankConfig:
    """Config of the process."""

    worker_id: str
    rendezvous: str
    group: str
    num_ranks: int
    model: str
    enable_eplb: bool = False
    num_redundant_experts: int = 0
    eplb_step_interval: int = 100


@dataclass(frozen=True, slots=True)
class Load:
    """Batch of sequences to run."""

    batch: int
    num_tokens: int
    num_words: int  # number of distinct token ids; few ids load few experts
    seed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of the steps in which all sequences of the rank decoded."""

    step_s: float  # median
    longest_step_s: float
    waited_share: float  # fraction of the time spent waiting for other ranks
    bytes_per_step: float  # sent to other ranks
    rows_per_step: float  # computed by this rank's experts
    imbalances: list[float]  # by layer, as the last rebalance found it


class Sequences:
    """Measurements of a load's steps."""

    def __init__(self, experts: ExpertGroup | None) -> None:
        """Start empty. `experts` is None for a single rank."""
        self._experts = experts
        self._notes: list[tuple[float, float, int, int]] = []
        self.done = threading.Event()
        self.batch = 0
        self._num_ended = 0

    def begin(self, batch: int) -> None:
        """Start a load of this batch size."""
        self._notes.clear()
        self.done.clear()
        self.batch, self._num_ended = batch, 0

    def take(self, step: StepOutput) -> None:
        """Record a step; called on the engine's thread."""
        if len(step.outputs) == self.batch and all(output.sampled for output in step.outputs):
            self._notes.append((step.finished_at_s, *self._counted()))
        self._num_ended += sum(output.finish_reason is not None for output in step.outputs)
        if self._num_ended == self.batch:
            self.done.set()

    def _counted(self) -> tuple[float, int, int]:
        """Return the seconds of waiting, the bytes sent, and the rows computed."""
        if self._experts is None:
            return 0.0, 0, 0
        ranks = self._experts.ranks
        return ranks.waited_s, ranks.num_sent_bytes, sum(self._experts.rows_by_layer())

    def measured(self, imbalances: list[float]) -> Measured:
        """Return the measurements of the load."""
        first, last, num_steps = self._notes[0], self._notes[-1], len(self._notes) - 1
        times = [note[0] for note in self._notes]
        return Measured(
            longest_step_s=max(after - before for before, after in pairwise(times)),
            step_s=median(after - before for before, after in pairwise(times)),
            waited_share=(last[1] - first[1]) / (last[0] - first[0]),
            bytes_per_step=(last[2] - first[2]) / num_steps,
            rows_per_step=(last[3] - first[3]) / num_steps,
            imbalances=imbalances,
        )


def requests(load: Load, seed: int) -> list[Request]:
    """Return the load's requests, with prompts of `num_words` distinct tokens."""
    draw = random.Random(seed)
    words = [300 + 7 * number for number in range(load.num_words)]
    sampling = SamplingParams(temperature=0, max_tokens=load.num_tokens, ignore_eos=True)
    return [
        Request(RequestId(f"{seed}-{number}"), draw.choices(words, k=PROMPT_TOKENS), PROMPT_TOKENS, sampling)
        for number in range(load.batch)
    ]


async def main(config: RankConfig) -> None:
    """Serve until standard input ends."""
    torch.set_num_threads(1)
    engine_config = EngineConfig(
        model=config.model, device="cpu", num_threads=1, kv_cache_memory_bytes=64 << 20, enable_prefix_caching=False
    )
    worker = WorkerConfig(
        role="decode",
        worker_id=config.worker_id,
        engine=engine_config,
        expert_parallel=config.num_ranks,
        rendezvous=config.rendezvous,
        group=config.group,
        enable_eplb=config.enable_eplb,
        num_redundant_experts=config.num_redundant_experts,
        eplb_step_interval=config.eplb_step_interval,
    )
    channels = Channels(Plaintext())
    async with joined(worker, uuid.uuid4().hex, Plaintext(), channels) as group:
        experts = group.experts if group is not None else None
        engine = await asyncio.to_thread(lambda: Engine(engine_config, group=experts))
        sequences = Sequences(experts)
        loop = EngineLoop(engine, sequences.take, lambda error: sequences.done.set())
        loop.start()
        if group is not None:
            group.attach(loop.call)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            load = Load(**orjson.loads(line))
            sequences.begin(load.batch)
            made = requests(load, load.seed + hash_of(config.worker_id))
            loop.call(lambda engine, made=made: [engine.add(each) for each in made])  # type: ignore[misc]
            await asyncio.to_thread(sequences.done.wait)
            measured = sequences.measured(experts.imbalances if experts is not None else [])
            print(orjson.dumps(asdict(measured)).decode(), flush=True)
        if group is not None:
            await group.leave()
        await asyncio.to_thread(loop.stop)
    await channels.close()


def hash_of(worker_id: str) -> int:
    """Return a seed for the rank."""
    return sum(worker_id.encode())


if __name__ == "__main__":
    uvloop.run(main(RankConfig(**orjson.loads(sys.argv[1]))))
