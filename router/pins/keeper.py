"""The pins of one model that a router has taken, from their first place to their end.

1. The prefix is computed as a request without output, at the workers that the policy chooses.
2. The worker that computed it holds its blocks until the pin expires. If its quota is used up, others are tried.
3. If a holder is lost, or reports that it has dropped pins, the pin is computed and held elsewhere. Now and then the
   router asks each holder: a pin that another router has deleted is forgotten.

A router that ends leaves its pins to expire where they are; no router places them anew.
"""

import asyncio
import logging
import time
from collections.abc import Collection

from baton.engine.errors import EngineError, QueueFull
from baton.router.admission.admission import Admission
from baton.router.errors import Overloaded, WorkerLost
from baton.router.generation import Generation
from baton.router.pins.pin import Holding, Pin
from baton.router.pins.placement import Placement, prefix_generation
from baton.router.pins.worker_pins import NotCached, delete, hold
from baton.router.pipeline import Pipeline
from baton.router.policy.cluster import WorkerSnapshot
from baton.router.request_context import INT32_MAX, RequestContext
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.pool import WorkerPool
from baton.rpc.status import Conflict, NotFound, ServiceError, Unavailable

logger = logging.getLogger(__name__)

MAX_PINS = 1024  # of a model, as the next two
MAX_TOKENS = 16 << 20  # 4 bytes each
MAX_PIXEL_BYTES = 512 << 20  # of images
CHECK_S = 2.0  # between two checks of what the router knows of the holders
CONFIRM_S = 20.0  # until a holder is asked, unless it has dropped pins
RETRY_S = 30.0  # after a refusal; twice as long after each further one, since the prefix may be computed in vain
LAST_RETRY_S = 600.0
SOON_S = 2.0  # after another failure, such as the lack of a worker
MAX_CHECKS = 16  # at once
SETTLE_S = 30.0  # for the server's pins, from the first worker on; the router is not ready until then
PLACE_S = 300.0  # for a prefix to be computed anew


class PinsFull(Exception):
    """The router keeps too many pins for another one; the message says how many."""


class PinKeeper:
    """The pins of a model. `run` keeps them."""

    def __init__(self, pool: WorkerPool, pipeline: Pipeline, admission: Admission) -> None:
        self._pool = pool
        self._pipeline = pipeline
        self._admission = admission
        self._placement = Placement(pool, pipeline)
        self._pins: dict[tuple[str, str], Pin] = {}
        self._new: set[Pin] = set()  # which are placed just now, and kept from then on
        self._checks = asyncio.Semaphore(MAX_CHECKS)
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_settled = False
        self._settles_by_s: float | None = None  # None: there was no worker yet

    def of(self, owner: str) -> list[Pin]:
        """Return the pins of an owner that this router has taken."""
        return [pin for pin in self._pins.values() if pin.owner == owner and pin.ttl_s() > 0]

    async def take(self, pin: Pin, generation: Generation) -> None:
        """Place a new pin, and keep it from then on. `generation`: of its prefix, prepared.

        Raises Overloaded for too many pins, Conflict if it is deleted meanwhile, and what `Placement.place` raises.
        """
        try:
            self._check_room(pin)
        except PinsFull as error:
            raise Overloaded(f"{error}; delete some", int(RETRY_S)) from error
        self._placement.check_size(pin)
        self._new.add(pin)
        try:
            await self._placement.place(pin, generation)
        except NotFound as error:
            raise Conflict(f"pin {pin.name} was deleted while it was made") from error
        except asyncio.CancelledError:  # the client has gone
            if pin.key not in self._pins:
                leaving = asyncio.create_task(self._leave_strays(pin))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
            raise
        finally:
            self._new.discard(pin)
        self._pins[pin.key] = pin
        await self._leave_others(pin, pin.holders)  # holders of an earlier pin

    def _check_room(self, pin: Pin) -> None:
        """Raise PinsFull if the router keeps too many pins. A key with a share has that share of them."""
        others = [each for each in (*self._pins.values(), *self._new) if each.key != pin.key]
        own = [each for each in others if each.owner == pin.owner]
        for whose, pins, share in (
            ("this router", others, 1.0),
            ("this router, for the key,", own, pin.max_share or 1.0),
        ):
            num_tokens = sum(each.num_tokens for each in pins)
            num_pixel_bytes = sum(each.num_pixel_bytes for each in pins)
            if pin.num_pixel_bytes and num_pixel_bytes + pin.num_pixel_bytes > share * MAX_PIXEL_BYTES:
                raise PinsFull(
                    f"{whose} keeps pins with images of {num_pixel_bytes} bytes, near the maximum of "
                    f"{int(share * MAX_PIXEL_BYTES)}"
                )
            if num_tokens + pin.num_tokens > share * MAX_TOKENS or len(pins) >= max(1, int(share * MAX_PINS)):
                raise PinsFull(f"{whose} keeps {len(pins)} pins of {num_tokens} tokens, near the maximum")

    async def _leave_others(self, pin: Pin, holders: Collection[str]) -> None:
        """Have all workers but these release a pin."""
        await delete(self._pool, pin.owner, pin.name, deleted_s=0.0, is_meant=lambda each: each not in holders)

    async def _leave_strays(self, pin: Pin) -> None:
        """Have workers that should not hold a pin release it: those that were lost do when they are reached again."""
        reached = {each for each in pin.strays if self._pool.connection(each) is not None}
        meant = reached - pin.holders.keys()
        if meant:
            deletion = await delete(self._pool, pin.owner, pin.name, 0.0, meant.__contains__)
            reached -= deletion.failed
        pin.strays -= reached

    def keep(self, pin: Pin) -> None:
        """Keep a pin that `run` places. Raises PinsFull."""
        self._check_room(pin)
        self._pins[pin.key] = pin

    @property
    def is_settled(self) -> bool:
        """Whether the first workers hold the server's pins, have refused them, or had SETTLE_S to compute them.

        Once it is, it stays so: the pins of workers that join later are placed while requests are served.
        """
        if not self._is_settled and (workers := self._placement.prefillers()):
            if self._settles_by_s is None:
                self._settles_by_s = time.monotonic() + SETTLE_S
            pins = [pin for pin in self._pins.values() if pin.is_everywhere and not pin.num_refusals]
            is_held = all(worker.incarnation in pin.holders for pin in pins for worker in workers)
            self._is_settled = is_held or time.monotonic() > self._settles_by_s
        return self._is_settled or self._settles_by_s is None

    async def delete(self, owner: str, name: str) -> bool:
        """Delete a pin, whichever router has taken it; False if there is none.

        Raises WorkerLost if a worker that has it, or may have it, does not respond.
        """
        known = self._pins.pop((owner, name), None)
        deletion = await delete(self._pool, owner, name, deleted_s=time.time())
        if known is not None:
            lost = deletion.failed & known.holders.keys()
        else:
            lost = deletion.failed if not deletion.done else set()
        if lost:
            raise WorkerLost(f"{len(lost)} workers that may hold the pin do not respond; try again")
        return known is not None or bool(deletion.done)

    async def run(self) -> None:
        """Keep the pins until cancelled. Each is checked on its own: a long prefix or a worker may take minutes."""
        checks: dict[tuple[str, str], asyncio.Task[None]] = {}
        try:
            while True:
                checks = {key: check for key, check in checks.items() if not check.done()}
                for pin in self._pins.values():
                    if pin.key not in checks:
                        checks[pin.key] = asyncio.create_task(self._check_safely(pin), name=f"pin {pin.name}")
                await self._pool.wait_change(CHECK_S)  # a change may be the loss of a holder
        except Unavailable:  # the router is shutting down
            return
        finally:
            for check in checks.values():
                check.cancel()
            await asyncio.gather(*checks.values(), return_exceptions=True)

    async def _check_safely(self, pin: Pin) -> None:
        """Check a pin, unless it has been deleted."""
        async with self._checks:
            if self._pins.get(pin.key) is not pin:
                return
            try:
                await self._check(pin)
            except Exception:  # the other pins must be kept
                logger.exception("pin %s could not be checked", pin.name)

    async def _check(self, pin: Pin) -> None:
        """Renew a pin at its holders, and place it where it is missing."""
        if pin.is_everywhere:
            pin.extend()
        if pin.ttl_s() <= 0:
            del self._pins[pin.key]
            return
        if pin.is_everywhere:  # before the first prefill worker was there, or before its role changed
            for incarnation in pin.holders.keys() & self._placement.decoders():
                pin.strays.add(incarnation)
                del pin.holders[incarnation]
        try:
            if pin.strays:
                await self._leave_strays(pin)
            for incarnation in list(pin.holders):
                await self._renew(pin, incarnation)
            if pin.is_everywhere:
                lacking = [each for each in self._placement.prefillers() if each.incarnation not in pin.holders]
                await asyncio.gather(*(self._retry(pin, worker) for worker in lacking))
            elif not pin.holders:
                await self._retry(pin, None)
        except NotFound:  # another router has deleted it
            if self._pins.get(pin.key) is pin:
                del self._pins[pin.key]

    async def _renew(self, pin: Pin, incarnation: str) -> None:
        """Ask a holder for its pin. Raises NotFound if it was deleted."""
        connection, holding = self._pool.connection(incarnation), pin.holders[incarnation]
        if connection is not None:
            has_dropped = connection.load.reported.num_dropped_pins != holding.num_dropped
            is_due = has_dropped or time.monotonic() - holding.confirmed_s > CONFIRM_S
            if not is_due or connection.state is ConnectionState.SHORT_OF_RANKS:  # it responds once it has them
                return
        try:
            if connection is None:
                raise NotCached("the worker was lost")
            pin.holders |= await hold(connection, pin, is_whole=False)
            current = self._pins.get(pin.key)
            if current is not None and current is not pin and incarnation in current.holders:
                # The pin was replaced meanwhile, perhaps at the worker by this one: ask for it soon.
                current.holders[incarnation] = Holding(num_dropped=-1)
        except (NotCached, QueueFull) as error:
            del pin.holders[incarnation]
            if not pin.is_everywhere:
                pin.strays.add(incarnation)
            logger.info("pin %s is placed again: %s", pin.name, error)
        except NotFound:
            raise
        except (ServiceError, EngineError) as error:  # asked again at the next check
            logger.debug("pin %s was not renewed: %s", pin.name, error)

    async def _retry(self, pin: Pin, worker: WorkerSnapshot | None) -> None:
        """Place a pin at a worker, or anywhere, unless that has just failed. Raises NotFound if it was deleted."""
        place = "" if worker is None else worker.incarnation
        if time.monotonic() < pin.next_try_s.get(place, 0.0) or self._pool.max_model_len() is None:
            return  # without a worker nothing waits for one: a deployment may scale to zero
        deadline_s = time.monotonic() + min(pin.ttl_s(), PLACE_S)
        context = RequestContext(deadline_s=deadline_s, priority=INT32_MAX, is_deferred=True)
        try:
            self._placement.check_size(pin)
            async with self._admission.admit(1, context):
                generation = await prefix_generation(self._pipeline, pin, context)
                if worker is None:
                    await self._placement.place(pin, generation)
                else:
                    await self._placement.place_at(worker, pin, generation)
            if (current := self._pins.get(pin.key)) is not pin:  # replaced meanwhile, or deleted
                await self._leave_others(pin, () if current is None else current.holders)
                return
            pin.num_refusals = 0
            logger.info("pin %s of %d tokens is held by %d workers", pin.name, pin.num_tokens, len(pin.holders))
        except NotFound:
            raise
        except (ServiceError, EngineError) as error:
            delay_s = SOON_S
            if not isinstance(error, Unavailable):
                delay_s = min(RETRY_S * 2**pin.num_refusals, LAST_RETRY_S)
                pin.num_refusals += 1
            now_s = time.monotonic()
            pin.next_try_s = {each: try_s for each, try_s in pin.next_try_s.items() if try_s > now_s}
            pin.next_try_s[place] = now_s + delay_s
            if str(error) != pin.last_failure:
                logger.warning("pin %s could not be placed: %s", pin.name, error)
            pin.last_failure = str(error)
