"""The batches that this router owns.

Few batches run at once; the others wait for a place. A batch that is stuck, because its model has no room, gives its
place up if another batch needs it. It is parked: no router owns it, until its model has room.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from baton.router.batches.folder import BatchFolder, Candidate, OwnedBatch
from baton.router.batches.input import InputReader, Line
from baton.router.batches.line_run import LineRunner
from baton.router.batches.metrics import BatchMetrics
from baton.router.batches.parts import BatchParts
from baton.router.batches.record import BatchError
from baton.router.batches.run import BatchRun
from baton.router.batches.slots import Slots
from baton.router.dispatch.embedder import Embedder
from baton.router.files.disk import Disk, FolderLost
from baton.router.http.body_route import BodyRoute
from baton.router.service import RouterService, shared_label

logger = logging.getLogger(__name__)

CLAIM_S = 0.5  # between two searches for batches without an owner
SEARCH_PAUSES = 20  # a search takes at most 1/20 of a CPU: there may be thousands of batches
SWEEP_S = 60.0  # between two deletions of expired files
MAX_RUNNING, MAX_TENANT_RUNNING = 8, 2  # batches; others wait
MAX_FAILURES = 5  # of one batch in a row, by errors of ours
RETRY_S = 5.0


class BatchRunner:
    """Owner of the runs of batches in this process."""

    def __init__(self, folder: BatchFolder, parts: BatchParts) -> None:
        self._folder = folder
        self._parts = parts
        self._disk = parts.files.disk
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch id
        self._runs: dict[str, BatchRun] = {}  # of the running batches, by batch id
        self._parked: dict[str, Line] = {}  # the requests that wait for room, by batch id
        self._tenants: Counter[str] = Counter()  # of the running batches
        self._failures: Counter[str] = Counter()  # by batch id
        self._search_s = 0.0  # CPU time of the last search
        parts.metrics.watch(lambda: len(self._running))

    async def run(self) -> None:
        """Run batches until cancelled. Batches in progress are then given up, for another router to continue."""
        sweep_s = time.monotonic()
        try:
            while True:
                try:
                    await self._claim()
                    if time.monotonic() >= sweep_s:
                        sweep_s = time.monotonic() + SWEEP_S
                        await self._disk.run(self._folder.sweep, uses_quota=True)
                except Exception:
                    logger.exception("the batches cannot be read; trying again")
                    await asyncio.sleep(RETRY_S)
                await asyncio.sleep(max(CLAIM_S, SEARCH_PAUSES * self._search_s))
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _claim(self) -> None:
        """Become the owner of batches that have none, the oldest first."""
        known = frozenset(self._running)

        def search() -> tuple[list[Candidate], float]:
            begun_s = time.thread_time()
            return self._folder.candidates(known), time.thread_time() - begun_s

        candidates, self._search_s = await self._disk.run(search)
        ids = known.union(each.batch_id for each in candidates)
        self._parked = {batch_id: line for batch_id, line in self._parked.items() if batch_id in ids}
        for each in candidates:
            if self._is_parked(each):
                continue
            if not self._has_room(each):
                self._park_one(each)
                continue
            try:
                owned = await self._disk.run_to_end(partial(self._folder.own, each.tenant, each.batch_id), _release)
            except (FolderLost, ValueError) as error:
                logger.warning("%s cannot be read: %s", each.batch_id, error)
                continue
            if owned is not None:
                self._parked.pop(each.batch_id, None)
                self._tenants[owned.tenant] += 1
                running = self._running[each.batch_id] = asyncio.create_task(self._run(owned), name=each.batch_id)
                running.add_done_callback(partial(self._ended, owned))

    def _has_room(self, candidate: Candidate) -> bool:
        """Return whether a batch may run. Twice as many may, if they only have to be ended."""
        times = 2 if candidate.must_end else 1
        num_running, num_of_tenant = len(self._running), self._tenants[candidate.tenant]
        return num_running < times * MAX_RUNNING and num_of_tenant < times * MAX_TENANT_RUNNING

    def _is_parked(self, candidate: Candidate) -> bool:
        """Return whether a batch still waits for room on its model. One that only has to be ended does not."""
        line = self._parked.get(candidate.batch_id)
        if line is None or candidate.must_end:
            return False
        return not self._parts.slots[line.model].has_room(min(1, line.num_completions))

    def _park_one(self, candidate: Candidate) -> None:
        """End the run of a stuck batch, if there is one whose place the candidate may take at the next search."""
        is_any = self._tenants[candidate.tenant] < MAX_TENANT_RUNNING
        for batch_id, run in self._runs.items():
            line = run.stuck_line
            if line and (is_any or run.tenant == candidate.tenant) and self._running[batch_id].cancelling() == 0:
                self._parked[batch_id] = line
                self._running[batch_id].cancel()
                logger.info("%s waits for room on %s, and another batch takes its place", batch_id, line.model)
                return

    async def _run(self, owned: OwnedBatch) -> None:
        batch_id = owned.record.id
        run = self._runs[batch_id] = BatchRun(owned, self._parts)
        try:
            if self._failures[batch_id] < MAX_FAILURES:
                await run.run()
            else:
                error = BatchError("server_error", "The server failed; its log has the reason.")
                await run.fail(error, reads_input=self._failures[batch_id] == MAX_FAILURES)
            del self._failures[batch_id]
            logger.info("%s ended: %s", batch_id, owned.record.status)
        except FolderLost as error:
            logger.warning("%s is interrupted; trying again: %s", batch_id, error)
            await asyncio.sleep(RETRY_S)
        except Exception:
            self._failures[batch_id] += 1
            logger.exception("%s failed; trying again", batch_id)
            await asyncio.sleep(RETRY_S)

    def _ended(self, owned: OwnedBatch, running: asyncio.Task[None]) -> None:
        """Give up a batch whose task has ended, or was cancelled before it began."""
        owned.release()
        del self._running[running.get_name()]
        self._runs.pop(running.get_name(), None)
        self._tenants -= Counter({owned.tenant: 1})


def _release(owned: OwnedBatch | None) -> None:
    if owned is not None:
        owned.release()


def _may_embed(embedder: Embedder) -> bool:
    return embedder.has_workers


async def run_batches(service: RouterService, posts: Mapping[str, BodyRoute[Any]]) -> None:
    """Run the batches of a router until cancelled; return at once if it stores none. `posts`: handlers by path."""
    if service.files is None or service.batch_folder is None:
        return
    models = service.models
    metrics = BatchMetrics(service.registry, shared_label(models.names))
    max_inflight = max(1, service.config.batch_inflight // len(models.names))
    slots = {
        model.name: Slots(model.admission, max_inflight, metrics, partial(_may_embed, model.embedder))
        for model in models
    }
    files = replace(service.files, disk=Disk("batches"))  # threads of their own: clients may read many files
    parts = BatchParts(
        files=files,
        lines=LineRunner(service.gate, posts),
        inputs=InputReader(
            files.disk,
            service.config.max_body_bytes,
            models.context_len,
            models.names,
            max_completions=service.config.max_completions,
            adapted_model=models.adapted_model,
        ),
        slots=slots,
        metrics=metrics,
    )
    try:
        await BatchRunner(service.batch_folder, parts).run()
    finally:
        files.disk.close()
