"""Pins that are lost, replaced or deleted while they are placed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton.engine.kv.prefix_pins import PinKey
from baton.protos.worker_pb2 import PinResponse
from baton.router.pins import keeper, placement, worker_pins
from baton.router.workers.connection import WorkerConnection
from baton.worker.kv.cache_control import KVCacheService
from tests.unit.router.api_keys import TestKeys
from tests.unit.router.pins.pins_rig import PINS, held, pin, serving, until
from tests.unit.router.rigs.running_router import DEADLINE_S


def slow_hold(monkeypatch: pytest.MonkeyPatch, before: Callable[[], Awaitable[object]]) -> None:
    """Have something happen before a prefix that was computed is held."""
    real = placement.hold

    async def hold(*arguments: Any, **options: Any) -> Any:
        await before()
        return await real(*arguments, **options)

    monkeypatch.setattr(placement, "hold", hold)


async def test_a_worker_that_seemed_to_have_lost_a_pin_releases_it_once_it_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving("both", "both") as (router, workers):
        (holder,) = (await pin(router, id="a")).json()["workers"]
        first, second = sorted(workers, key=lambda worker: worker.config.worker_id != holder)
        real = placement.hold

        async def hold(connection: WorkerConnection, *arguments: Any, **options: Any) -> Any:
            if connection.description is not None and connection.description.worker_id == holder:
                raise worker_pins.PinRefused("it was lost", connection.description.incarnation)
            return await real(connection, *arguments, **options)

        monkeypatch.setattr(placement, "hold", hold)
        monkeypatch.setattr(keeper, "hold", hold)

        async def is_moved() -> bool:
            return (held(first), held(second)) == (0, 6)

        await until(is_moved)


async def test_a_pin_whose_client_has_gone_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("both") as (router, (worker,)):
        real = worker_pins.ReachedWorker.response

        async def response(*arguments: Any) -> Any:
            found = await real(*arguments)
            if isinstance(found, PinResponse):
                await asyncio.Event().wait()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(worker_pins.ReachedWorker, "response", response)
            making = asyncio.create_task(pin(router))

            async def is_held() -> bool:
                return held(worker) == 6

            await until(is_held)
            making.cancel()

            async def is_released() -> bool:
                return held(worker) == 0

            await until(is_released)


async def test_a_pin_that_is_replaced_while_it_is_placed_anew_leaves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("both", "both") as (router, workers):
        assert (await pin(router, id="a")).status_code == 200
        begun, released = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            if not begun.is_set():
                begun.set()
                await released.wait()

        slow_hold(monkeypatch, wait)
        for worker in workers:
            worker.core.blocks.prefix_pins.delete(PinKey("", "a"))
            worker.core.blocks.cache.clear()
        async with asyncio.timeout(DEADLINE_S):
            await begun.wait()
        assert (await pin(router, id="a", prompt=[7] * 50)).status_code == 200
        released.set()

        async def is_alone() -> bool:
            return sorted(map(held, workers)) == [0, 3]

        await asyncio.sleep(0.05)
        await until(is_alone)


async def test_a_pin_that_is_deleted_while_it_is_made_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving("both") as (router, (worker,)):
        slow_hold(monkeypatch, lambda: router.http.delete(f"{PINS}/a"))
        refused = await pin(router, id="a")
        assert refused.status_code == 409, refused.text
        assert held(worker) == 0


async def unavailable(_service: KVCacheService, _call: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "it ends")


async def test_a_deletion_fails_if_a_worker_that_may_have_the_pin_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving("both") as (router, (worker,)):
        assert (await pin(router, id="a")).status_code == 200
        with monkeypatch.context() as patch:
            patch.setattr(KVCacheService, "_called", unavailable)
            assert (await router.http.delete(f"{PINS}/a")).status_code == 503
        assert held(worker) == 6
        assert (await router.http.delete(f"{PINS}/a")).status_code == 200
        assert held(worker) == 0


async def test_a_key_with_a_share_leaves_places_for_the_pins_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keeper, "MAX_PINS", 3)
    keys = TestKeys(tmp_path)
    one, two = keys.add("one", max_pinned_fraction=0.2), keys.add("two")
    async with serving("both", api_keys_file=str(keys.path)) as (router, _):
        assert (await pin(router, one, id="a")).status_code == 200
        assert (await pin(router, one, id="a")).status_code == 200
        assert (await pin(router, one, id="b")).status_code == 429
        assert (await pin(router, two, id="a")).status_code == 200
