"""The run of one batch by the router that owns it.

1. Check all lines of the input (`InputReader`). A batch with a wrong line fails and runs no request.
2. Start requests as `Slots` have room, except those that have results in the journal.
3. Write each result to the journal. A request that is displaced or gets 429 or 503 runs again, unless it loses workers.
4. Stop when all have results, the batch is cancelled or expires, its key has gone, or there is no room for results.
   Unless all have results, store why. As far as there is room, the rest get an error each.
5. Turn the journal into files, and store the final record.
"""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Coroutine
from functools import partial
from typing import Any, BinaryIO

from baton.router.batches.exchange import LineExchange
from baton.router.batches.folder import OwnedBatch
from baton.router.batches.input import Line
from baton.router.batches.journal import Journal, LineResult, not_run
from baton.router.batches.line_run import RETRIED
from baton.router.batches.parts import BatchParts
from baton.router.batches.record import BatchError, Outcome
from baton.router.batches.results import publish, result_sizes
from baton.router.files.errors import UnknownId
from baton.router.files.folder import new_file_id
from baton.router.files.record import TenantId, tenant_of
from baton.rpc.status import Unauthenticated

WATCH_S = 1.0  # between two checks for a reason to stop, and between two stores of the counts
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.25, 30.0
MAX_BYTES = 32 << 20  # of lines and responses of requests without a written result; a larger line is alone
STUCK_S = 5.0  # of a wait for room, after which a batch that runs no request may give up its place
NUM_WRITTEN = 1000  # results of requests that were not run, written together
LONE_LOSSES, MAX_LOSSES = 2, 3  # of workers: after so many a request runs alone, and its 503 is its result
NO_ROOM = BatchError(
    "storage_limit_exceeded",
    "The results have no room: the files take all bytes of --files-bytes that a tenant may use.",
)


class BatchFailed(Exception):
    """The batch cannot go on."""

    def __init__(self, error: BatchError) -> None:
        super().__init__(error.message)
        self.error = error


class BatchRun:
    """One batch in progress."""

    def __init__(self, owned: OwnedBatch, parts: BatchParts) -> None:
        """`owned` stays the caller's. No thread uses it after `run` or `fail` has ended, also if that was cancelled."""
        self._owned = owned
        self._record = owned.record
        self._parts = parts
        self._disk = parts.files.disk
        self._pending: deque[Line] = deque()
        self._resumes_s = 0.0  # after a refusal, on the loop's clock
        self._backoff_s = MIN_BACKOFF_S
        self._inflight: dict[asyncio.Task[None], asyncio.Task[LineExchange]] = {}  # by the tasks that await them
        self._losses: Counter[str] = Counter()  # of workers, by the custom ids of pending and running requests
        self._waiting: Line | None = None  # for room
        self._waits_since_s = 0.0  # on the loop's clock
        self._num_bytes = 0  # see `MAX_BYTES`
        self._num_counted = 0  # bytes of the journal that count for the quota

    @property
    def tenant(self) -> TenantId:
        """Tenant of the batch."""
        return self._owned.tenant

    @property
    def stuck_line(self) -> Line | None:
        """The request that has waited for room for `STUCK_S`, while no other of this batch or on its model runs."""
        line, now_s = self._waiting, asyncio.get_running_loop().time()
        if line is None or now_s < self._waits_since_s + STUCK_S or self._parts.slots[line.model].has_any:
            return None
        return None if any(not each.done() for each in self._inflight) else line

    async def run(self) -> None:
        """Run the batch to its end. Raises FolderLost."""
        record = self._record
        if record.outcome is None:
            try:
                file = await self._open_input()
            except UnknownId:
                record.errors = [BatchError("input_file_deleted", "The input file does not exist any more.")]
                await self._end("failed", [])
            else:
                with file:
                    await self._run_file(file)
        elif record.finalizing_at is None:  # an earlier owner stopped before all had results
            await self._end(record.outcome, await self._read_lines())
        await self.finish()

    async def fail(self, error: BatchError, *, reads_input: bool) -> None:
        """End the batch with an error, unless it has an outcome already, and with the results that it has.

        `reads_input`: each request without a result gets an error, too, if the input still exists.
        """
        record = self._record
        if record.finalizing_at is None:
            if record.outcome is None:
                record.outcome, record.errors = "failed", [error]
            await self._end(record.outcome, await self._read_lines() if reads_input else [])
        await self.finish()

    async def _read_lines(self) -> list[Line]:
        """Return the requests of the input; none if the input is wrong, or does not exist any more."""
        try:
            with await self._open_input() as file:
                found = await self._parts.inputs.read(file, self._record.endpoint)
        except UnknownId:
            return []
        return [] if found.errors else found.lines

    async def _open_input(self) -> BinaryIO:
        """Return the open input. Raises UnknownId."""
        opened = partial(self._parts.files.folder.open, self._owned.tenant, self._record.input_file_id)
        return await self._disk.run_to_end(opened, lambda file: file.close())

    async def _open_journal(self) -> Journal:
        """Return the journal, which counts for the quota."""
        owned = self._owned
        journal = await self._disk.run_to_end(lambda: Journal(owned.folder, self._disk, owned.check_owner))
        self._num_counted = journal.num_bytes
        if journal.num_bytes:
            self._parts.files.folder.quota.recount()  # its earlier owner may not have counted all of it
        return journal

    async def _end(self, outcome: Outcome, lines: list[Line]) -> None:
        """Complete a batch that runs no more requests. `lines`: of its input, as far as they are known."""
        self._record.num_lines = max(self._record.num_lines, len(lines))
        journal = await self._open_journal()
        try:
            await self._complete(journal, outcome, lines)
        finally:
            await journal.close()

    async def _run_file(self, file: BinaryIO) -> None:
        record = self._record
        found = await self._parts.inputs.read(file, record.endpoint)
        if found.errors:
            record.errors = found.errors
            await self._end("failed", [])
            return
        journal = await self._open_journal()
        try:
            record.status, record.num_lines = "in_progress", len(found.lines)
            record.in_progress_at = record.in_progress_at or int(time.time())
            self._count(journal)
            await self._disk.run_to_end(self._owned.save)
            self._pending.extend(line for line in found.lines if not journal.progress.has(line.custom_id))
            await self._complete(journal, await self._run_lines(file, journal), found.lines)
        finally:
            await journal.close()

    async def _run_lines(self, file: BinaryIO, journal: Journal) -> Outcome:
        """Run requests until all have results, or the batch must stop."""
        stopping, tasks = asyncio.Event(), list[asyncio.Task[Outcome | None]]()
        try:
            if self._pending and (outcome := await self._stop_reason(journal)) is not None:
                return outcome
            tasks = [asyncio.create_task(each) for each in (self._drive(file, journal), self._watch(journal, stopping))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(each for each in tasks if each.done()).result() or "completed"
        except BatchFailed as failure:
            self._record.errors = [failure.error]
            return "failed"
        finally:
            for each in tasks[:1]:
                each.cancel()
            stopping.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, journal: Journal, stopping: asyncio.Event) -> Outcome | None:
        """Return why the batch must stop; None once `stopping` is set. Stores the counts meanwhile.

        Raises BatchFailed if the results have no room any more.
        """
        while not stopping.is_set():
            try:
                async with asyncio.timeout(WATCH_S):
                    await stopping.wait()
            except TimeoutError:
                if (outcome := await self._stop_reason(journal)) is not None:
                    return outcome
                if self._count(journal):
                    await self._disk.run_to_end(partial(self._owned.save, durable=False))
        return None

    async def _stop_reason(self, journal: Journal) -> Outcome | None:
        """Return the outcome of a batch that must stop, otherwise None. Raises BatchFailed without room for results."""
        if await self._disk.run(self._owned.is_cancelled):
            return "cancelled"
        if time.time() >= self._record.expires_at:
            return "expired"
        if await self._count_bytes(journal) <= 0:
            raise BatchFailed(NO_ROOM)
        return None

    async def _drive(self, file: BinaryIO, journal: Journal) -> Outcome | None:
        """Start all pending requests as there is room, and wait for their results."""
        loop, tasks = asyncio.get_running_loop(), self._inflight
        try:
            while self._pending or tasks:
                if not self._pending or (tasks and self._num_bytes > MAX_BYTES):
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                elif loop.time() < self._resumes_s:
                    await asyncio.sleep(self._resumes_s - loop.time())
                else:
                    await self._start(file, self._pending.popleft(), journal)
                for task in [each for each in tasks if each.done()]:
                    del tasks[task]
                    task.result()
            return None
        finally:
            rest = [*tasks, *tasks.values()]
            for each in rest:
                each.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def _start(self, file: BinaryIO, line: Line, journal: Journal) -> None:
        """Start a request once there is room. Raises BatchFailed without its key."""
        body = await self._parts.inputs.body(file, line)
        work = partial(self._work, line, body)
        del body  # the exchange frees it once the request has been parsed
        slots = self._parts.slots.get(line.model)
        if slots is None:
            request = asyncio.create_task(work())
        else:
            self._waiting, self._waits_since_s = line, asyncio.get_running_loop().time()
            try:
                is_alone = self._losses[line.custom_id] >= LONE_LOSSES
                request = await slots.start(line.num_completions, work, is_alone=is_alone)
            finally:
                self._waiting = None
        del work
        self._num_bytes += line.length
        self._inflight[asyncio.create_task(self._finish_line(line, request, journal))] = request
        if slots is None:
            await asyncio.wait([request])  # one at a time

    def _work(self, line: Line, body: bytes) -> Coroutine[Any, Any, LineExchange]:
        """Return the request of the client as it is now. Raises BatchFailed without its key."""
        try:
            client = self._parts.lines.client(self._record.key_name)
        except Unauthenticated:
            name = self._record.key_name
            text = f"The API key '{name}', which created the batch, is no longer valid."
            if name is None:
                text = "The batch was created without an API key, and the server needs one now."
            raise BatchFailed(BatchError("invalid_api_key", text)) from None
        if tenant_of(client.key) != self._owned.tenant:
            text = f"The API key '{self._record.key_name}', which created the batch, belongs to another tenant now."
            raise BatchFailed(BatchError("invalid_api_key", text))
        return self._parts.lines.run(self._record.endpoint, client, body, line.stream)

    async def _finish_line(self, line: Line, request: asyncio.Task[LineExchange], journal: Journal) -> None:
        """Write the result of a request, or make it pending again."""
        num_bytes = line.length
        try:
            await asyncio.wait([request])
            if request.cancelled():
                self._pending.appendleft(line)
                return
            exchange = request.result()
            num_bytes += len(exchange.response)
            self._num_bytes += len(exchange.response)
            if not self._is_refused(line, exchange):
                assert exchange.status is not None, "LineRunner.run: each request has a response"
                self._parts.metrics.request_done(exchange.status)
                result = LineResult(line.custom_id, exchange.status, exchange.request_id, exchange.response)
                await journal.append(result)
        finally:
            self._num_bytes -= num_bytes

    def _is_refused(self, line: Line, exchange: LineExchange) -> bool:
        """Return whether a request is to run again, and if so make it pending."""
        self._losses[line.custom_id] += exchange.worker_lost
        if exchange.status in RETRIED and self._losses[line.custom_id] < MAX_LOSSES:
            self._parts.metrics.refused()
            self._pending.append(line)  # behind the others, which may not be refused
            self._pause(exchange.retry_after_s)
            return True
        self._backoff_s = MIN_BACKOFF_S
        del self._losses[line.custom_id]
        return False

    def _pause(self, retry_after_s: float) -> None:
        """Start no request for a while, longer after each refusal that no success follows."""
        wait_s = max(self._backoff_s * random.uniform(0.5, 1.0), min(retry_after_s, MAX_BACKOFF_S))
        self._resumes_s = max(self._resumes_s, asyncio.get_running_loop().time() + wait_s)
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    async def _write_rest(self, outcome: Outcome, lines: list[Line], journal: Journal) -> None:
        """Write an error for each request without a result, as long as there is room for them."""
        rest = [line.custom_id for line in lines if not journal.progress.has(line.custom_id)]
        num_left = await self._count_bytes(journal)
        for start in range(0, len(rest), NUM_WRITTEN):
            if num_left <= 0:
                self._record.errors = [*(each for each in self._record.errors if each != NO_ROOM), NO_ROOM]
                return
            results = [not_run(custom_id, outcome) for custom_id in rest[start : start + NUM_WRITTEN]]
            await asyncio.gather(*map(journal.append, results))
            num_left = await self._count_bytes(journal)

    async def _complete(self, journal: Journal, outcome: Outcome, lines: list[Line]) -> None:
        """Set the outcome, and write an error for each of these requests that has no result. Raises FolderLost."""
        await journal.settle()  # also the results of callers that were cancelled
        self._record.outcome = outcome
        if outcome != "completed":  # once all have results, a later owner cannot find out why the batch stopped
            await self._disk.run_to_end(self._owned.save)
        await self._write_rest(outcome, lines, journal)
        self._count(journal)

    async def _count_bytes(self, journal: Journal) -> int:
        """Count the journal's growth for the quota. Return how many are left for the tenant, or below 0."""
        growth, self._num_counted = journal.num_bytes - self._num_counted, journal.num_bytes
        folder = self._parts.files.folder
        tenant = folder.tenants / self._owned.tenant
        return await self._disk.run(lambda: folder.quota.add(tenant, growth), uses_quota=True)

    def _count(self, journal: Journal) -> bool:
        """Update the counts of the record; return whether they changed."""
        record, progress = self._record, journal.progress
        before = record.num_completed, record.num_failed
        record.num_completed, record.num_failed = len(progress.succeeded), len(progress.failed)
        return before != (record.num_completed, record.num_failed)

    async def finish(self) -> None:
        """Turn the journal into files, and end the batch. May be repeated after a crash at any point."""
        record = self._record
        assert record.outcome is not None
        if record.finalizing_at is None:  # the status may be a final one: `OwnedBatch.end` stores it before it moves
            sizes = await self._disk.run(lambda: result_sizes(self._owned))
            record.output_file_id, record.error_file_id = (new_file_id() if each else None for each in sizes)
            record.status, record.finalizing_at = "finalizing", int(time.time())
            await self._disk.run_to_end(self._owned.save)
        await self._disk.run_to_end(lambda: publish(self._owned, self._parts.files.folder), uses_quota=True)
        record.end(record.outcome, int(time.time()))
        await self._disk.run_to_end(self._owned.end)
        self._parts.metrics.ended(record.status)
