"""Bounds on the images that a router keeps for its pins."""

import asyncio
import time
from typing import Any

import pytest

from baton.engine.vision.image import Image
from baton.router.errors import Overloaded, WorkerLost
from baton.router.pins import keeper
from baton.router.pins.keeper import PinKeeper
from baton.router.pins.pin import Pin, Prefix
from baton.router.pins.placement import Placement

UNUSED: Any = None  # workers: nothing is placed


def pin_of(name: str, num_pixel_bytes: int, max_share: float = 0.0) -> Pin:
    images = (Image(20, 2, 3, b"d" * 16, bytes(num_pixel_bytes)),) if num_pixel_bytes else ()
    prefix = Prefix.of(range(64), "", images=images)
    return Pin(name=name, owner="a", prefix=prefix, expires_s=time.monotonic() + 60, max_share=max_share)


def test_the_pixels_of_all_pins_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "MAX_PIXEL_BYTES", 150)
    pins = PinKeeper(UNUSED, UNUSED, UNUSED)
    pins._check_room(pin_of("first", 100))
    pins.keep(pin_of("first", 100))
    with pytest.raises(Overloaded, match="this router keeps pins with images of 100 bytes, near the maximum"):
        pins._check_room(pin_of("second", 51))
    pins._check_room(pin_of("first", 150))  # replaces the other
    pins._check_room(pin_of("text", 0))
    pins._check_room(pin_of("second", 50))
    with pytest.raises(Overloaded, match="this router, for the key, keeps pins with images of 100 bytes"):
        pins._check_room(pin_of("second", 50, max_share=0.5))


async def test_pins_that_are_placed_just_now_count(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = asyncio.Event()

    async def place(*_: Any) -> None:
        await may_end.wait()
        raise WorkerLost("gone")

    monkeypatch.setattr(keeper, "MAX_PIXEL_BYTES", 150)
    monkeypatch.setattr(Placement, "check_size", lambda *_: None)
    monkeypatch.setattr(Placement, "place", place)
    pins = PinKeeper(UNUSED, UNUSED, UNUSED)
    taking = asyncio.create_task(pins.take(pin_of("first", 100), UNUSED))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="keeps pins with images of 100 bytes"):
        async with asyncio.timeout(1):
            await pins.take(pin_of("second", 51), UNUSED)
    may_end.set()
    with pytest.raises(WorkerLost):
        await taking
    pins._check_room(pin_of("second", 150))
