"""A cluster during a rolling upgrade: half of its workers have a checkpoint that differs in one number.

Whatever is handed over, pulled or migrated, and whichever process ends meanwhile: each response must be that of one of
the two models, from the first token to the last. The requests share a salt, so that the caches of both models' workers
hold blocks of the same tokens.
"""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from baton.deployment.local.ports import free_ports
from baton.engine.checkpoint.tensor_index import read_tensors
from tests.faults.cluster import Cluster, running
from tests.faults.faults import Scene, kill, terminate
from tests.faults.places import HOST, MODEL, WORKERS, given, router_nodes, worker_node
from tests.faults.row import Row
from tests.faults.workload import Answer, Case, Exchange, make_cases

CHANGED_TENSOR = "model.layers.0.input_layernorm.weight"
CHANGED_BYTES = b"\x00\x41"  # 8 in bfloat16
NUM_AT_ONCE = 4
NUM_ROUNDS = 2  # per try; in the second the prompts are cached
ANSWER_S = 60.0
SALT = "shared"


def upgraded_copy(model: Path, directory: Path) -> Path:
    """Copy a checkpoint under the same name with a different first value of one norm."""
    copy = shutil.copytree(model, directory / model.name)
    tensor = read_tensors(copy)[CHANGED_TENSOR]
    with tensor.file.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(CHANGED_BYTES)
    return copy


class MixedWeights:
    """Requests on such a cluster, checked against both models' responses."""

    def __init__(self, cluster: Cluster, cases: Sequence[Case], rng: random.Random) -> None:
        self._cluster = cluster
        self._cases = cases
        self._rng = rng
        self._answers: list[list[Answer]] = []  # by case: the responses of each model

    async def prepare(self) -> None:
        """Record the responses of one worker of each model, which prefills locally and has no prompt cached."""
        for place, case in enumerate(self._cases):
            answers = []
            for worker in ("decode-0", "decode-1"):
                hints = {"x-baton-decode": worker, "x-baton-plan": "local"}
                exchange = Exchange(case, f"alone-{worker}-{place}", hints=hints)
                answers.append(await exchange.run(self._cluster.clients))
            assert answers[0] != answers[1], f"the changed norm does not change answer {place}"
            self._answers.append(answers)

    async def run_try(self, row: Row) -> None:
        """Run all cases twice, while a worker ends and is restarted."""
        row.tries += 1
        slots = asyncio.Semaphore(NUM_AT_ONCE)
        places = self._rng.sample(range(len(self._cases)), len(self._cases)) * NUM_ROUNDS
        asking = [asyncio.create_task(self._ask(row, place, slots)) for place in places]
        await self._end_a_worker()
        await self._cluster.wait_whole()  # migrated requests wait for a worker of their model
        await asyncio.gather(*asking)
        await self._cluster.wait_clean()

    async def _end_a_worker(self) -> None:
        victim = self._rng.choice(self._cluster.workers)
        await asyncio.sleep(self._rng.uniform(0, 1))
        await self._rng.choice((kill, terminate))(Scene(self._cluster, (), (), victim), self._rng)

    async def _ask(self, row: Row, place: int, slots: asyncio.Semaphore) -> None:
        async with slots:
            row.disturbed += 1
            exchange = Exchange(self._cases[place], SALT, self._rng.randrange(len(self._cluster.clients)))
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await exchange.run(self._cluster.clients)
            except Exception as error:
                row.failed += 1
                row.notes.append(f"case {place}: {type(error).__name__}: {error}")
                return
            if answer not in self._answers[place]:
                row.wrong += 1
                row.notes.append(f"case {place}: {answer} is neither model's: {self._answers[place]}")


@asynccontextmanager
async def mixed_weights(
    directory: Path, seed: int, num_prompt_tokens: int, num_output_tokens: int
) -> AsyncIterator[MixedWeights]:
    """Start two routers, and a prefill and a decode worker per model."""
    models = (MODEL, str(upgraded_copy(Path(MODEL), directory / "upgraded")))
    ports = free_ports(HOST, len(WORKERS))
    workers = [
        worker_node(name, HOST, port, directory, model=models[int(name[-1])])
        for name, port in zip(WORKERS, ports, strict=True)
    ]
    routers = router_nodes(directory, given([worker.address for worker in workers]))
    async with running(Cluster(routers, workers)) as cluster:
        cases = make_cases(seed, num_prompt_tokens, num_output_tokens)
        mixed = MixedWeights(cluster, cases, random.Random(seed))
        await mixed.prepare()
        yield mixed
