"""Faults in every phase of a request; every response is compared with that of an undisturbed run.

Four requests run at a time. At a chosen moment a fault hits a process on which they may depend. They must end as if it
had not; then every block of every worker must be free, and the cluster is restored for the next try.
"""

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.faults.cluster import Cluster
from tests.faults.faults import Fault, Scene, terminate
from tests.faults.node import Node
from tests.faults.phases import PHASES
from tests.faults.places import Place
from tests.faults.resumed import ResumedExchange
from tests.faults.row import Row
from tests.faults.workload import Answer, Case, Exchange, make_cases

NUM_AT_ONCE = 4
CANCELS_A_MINUTE = 1000
LONGEST_STAY_S = 0.4  # before a client disconnects
ANSWER_S = 60.0  # limit for the end of every request, whatever happens


class Chaos:
    """Tries on one cluster, checked against the expected responses."""

    def __init__(self, cluster: Cluster, cases: Sequence[Case], rng: random.Random) -> None:
        self.cluster = cluster
        self._cases = cases
        self.rng = rng
        self._expected: dict[int, Answer] = {}  # by index of the case
        self._ttft_s = 0.0
        self._num_tries = 0

    async def prepare(self) -> None:
        """Record the expected responses, one request at a time, and then the usual TTFT."""
        for place, case in enumerate(self._cases):
            self._expected[place] = await Exchange(case, f"alone-{place}").run(self.cluster.clients)
        ttfts: list[float] = []
        for number in range(2):
            exchanges = [Exchange(case, f"quiet-{number}-{place}") for place, case in enumerate(self._some())]
            await asyncio.gather(*(self.cluster.run(exchange) for exchange in exchanges))
            ttfts += [exchange.token_times_s[0] - exchange.sent_s for exchange in exchanges]
        self._ttft_s = statistics.median(ttfts)

    async def run_try(self, fault: Fault, row: Row) -> None:
        """Inject one fault and count the outcome of the requests."""
        self._num_tries += 1
        row.tries += 1
        cases = self.rng.sample(self._cases, fault.num_requests)
        exchanges = [self._exchange(case, f"try-{self._num_tries}-{place}") for place, case in enumerate(cases)]
        tasks = [asyncio.create_task(self.cluster.run(exchange)) for exchange in exchanges]
        scene = Scene(self.cluster, exchanges, tasks, None)
        happened_s, open_ones = time.monotonic(), exchanges
        try:
            async with asyncio.timeout(ANSWER_S):
                await PHASES[row.phase](exchanges, self._ttft_s, self.rng)
                scene = replace(scene, victim=self._victim(fault, exchanges))
                open_ones = [exchange for exchange, task in zip(exchanges, tasks, strict=True) if not task.done()]
                happened_s = time.monotonic()
                await fault.inject(scene, self.rng)
                await asyncio.wait(tasks)
        except TimeoutError:
            row.failed += 1
            row.notes.append(f"not over within {ANSWER_S:g} s")
        except AssertionError as error:
            row.failed += 1
            row.notes.append(str(error))
        row.disturbed += len(open_ones)
        for exchange, task in zip(exchanges, tasks, strict=True):
            if exchange in scene.cancelled:
                continue
            self._judge(row, exchange, task)
            gap_s = exchange.next_token_s(happened_s)
            if exchange in open_ones and gap_s is not None:
                row.recovery_s.append(gap_s)
        await self.wait_idle(row, scene.victims)
        if scene.cancelled and len(exchanges) == 1:
            row.recovery_s.append(time.monotonic() - happened_s)  # until every block was free

    async def run_rolling_restart(self, row: Row, num_at_once: int = NUM_AT_ONCE) -> None:
        """Restart every process, one after the other, under load."""
        async with self.asking(row, num_at_once):
            for node in (*self.cluster.workers, *self.cluster.routers):
                row.tries += 1
                await terminate(Scene(self.cluster, (), (), node), self.rng)
                self._count_deaths(row, (node,), await self.cluster.wait_whole())
        await self.wait_idle(row)

    async def run_cancel_storm(self, row: Row, num_cancels: int) -> None:
        """Cancel requests, a thousand a minute, while two other clients read to the end."""
        leaving: list[asyncio.Task[None]] = []
        start_s = time.monotonic()
        async with self.asking(row, 2):
            try:
                for number in range(num_cancels):
                    row.tries += 1
                    exchange = self._exchange(self.rng.choice(self._cases), f"gone-{number}")
                    leaving.append(asyncio.create_task(self._leave(row, exchange)))
                    await asyncio.sleep(start_s + (number + 1) * 60 / CANCELS_A_MINUTE - time.monotonic())
            finally:
                await asyncio.gather(*leaving)
        await self.wait_idle(row)

    @asynccontextmanager
    async def asking(self, row: Row, num_at_once: int) -> AsyncIterator[list[Exchange]]:
        """Run `num_at_once` clients, each with one request after another; yield the list of their exchanges."""
        stopping = asyncio.Event()
        exchanges: list[Exchange] = []
        tasks = [asyncio.create_task(self._ask_on(row, exchanges, stopping)) for _ in range(num_at_once)]
        try:
            yield exchanges
        finally:
            stopping.set()
            await asyncio.gather(*tasks)

    async def _leave(self, row: Row, exchange: Exchange) -> None:
        """Send a request and disconnect at a random moment, mostly before its end."""
        task = asyncio.create_task(self.cluster.run(exchange))
        await asyncio.wait((task,), timeout=self.rng.uniform(0, LONGEST_STAY_S))
        if task.done():
            self._judge(row, exchange, task)
        task.cancel()
        await asyncio.wait((task,))

    async def _ask_on(self, row: Row, exchanges: list[Exchange], stopping: asyncio.Event) -> None:
        """Send one client's requests, one after another."""
        while not stopping.is_set():
            exchange = self._exchange(self.rng.choice(self._cases), f"asked-{self._num_tries}-{len(exchanges)}")
            exchanges.append(exchange)
            row.disturbed += 1
            task = asyncio.create_task(self.cluster.run(exchange))
            await asyncio.wait((task,), timeout=ANSWER_S)
            self._judge(row, exchange, task)

    def read_logs(self, row: Row) -> None:
        """Count an error if a process has logged an unexpected one."""
        for node in (*self.cluster.routers, *self.cluster.workers):
            if text := node.tracebacks():
                row.failed += 1
                row.notes.append(f"{node.name}: {text[-4000:]}")

    def _count_deaths(self, row: Row, victims: Sequence[Node], names: Iterable[str]) -> None:
        """Count an error if a process other than the victims has ended."""
        for name in names:
            if name not in {victim.name for victim in victims}:
                row.failed += 1
                row.notes.append(f"{name} ended by itself")

    def _victim(self, fault: Fault, exchanges: Sequence[Exchange]) -> Node | None:
        """Choose a process of the role; a decode worker must have a request."""
        nodes = self.cluster.of_role(fault.role)
        if not nodes:
            return None
        busy = {exchange.decode_worker for exchange in exchanges}
        known = [node for node in nodes if node.name in busy]
        return self.rng.choice(known or nodes)

    def _judge(self, row: Row, exchange: Exchange, task: "asyncio.Task[Answer]") -> None:
        if not task.done():
            task.cancel()
            row.failed += 1
            row.notes.append(f"no end of {exchange.salt} within {ANSWER_S:g} s")
        elif exchange.num_attempts and row.role not in ("router", "all"):
            row.failed += 1
            row.notes.append(f"{exchange.salt}: its router broke the connection")
        elif error := task.exception():
            row.failed += 1
            row.notes.append(f"{exchange.salt}: {type(error).__name__}: {error}")
        elif task.result() != (expected := self._expected[self._cases.index(exchange.case)]):
            row.wrong += 1
            row.notes.append(f"{exchange.salt}: {task.result()} instead of {expected}")

    async def wait_idle(self, row: Row, victims: Sequence[Node] = ()) -> None:
        """Wait until all processes are ready and no block is held; count a leak if that does not happen."""
        try:
            self._count_deaths(row, victims, await self.cluster.wait_whole())
            self._count_deaths(row, victims, await self.cluster.wait_clean())
        except AssertionError as error:
            row.leaked += 1
            row.notes.append(str(error))

    def _exchange(self, case: Case, salt: str) -> Exchange:
        """Create an exchange with one of the routers."""
        kind = ResumedExchange if self.cluster.resuming else Exchange
        return kind(case, salt, self.rng.randrange(len(self.cluster.clients)))

    def _some(self) -> list[Case]:
        return self.rng.sample(self._cases, NUM_AT_ONCE)


@asynccontextmanager
async def chaos(
    place: Place, directory: Path, seed: int, num_prompt_tokens: int, num_output_tokens: int
) -> AsyncIterator[Chaos]:
    """Start a cluster and record its expected responses."""
    async with place(directory) as made:
        prepared = Chaos(made, make_cases(seed, num_prompt_tokens, num_output_tokens), random.Random(seed))
        await prepared.prepare()
        yield prepared
