"""Bounds on the images that a router keeps for its pins."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.engine.vision.image import Image
from baton.router.errors import Overloaded, WorkerLost
from baton.router.pins import keeper
from baton.router.pins.keeper import PinKeeper, PinsFull
from baton.router.pins.pin import SERVER, Pin, Prefix
from baton.router.pins.placement import Placement
from baton.router.pins.prefix_files import pin_files, read_prefix_files
from baton.settings.values import OptionError
from tests.unit.router.rigs.running_router import running_router

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
    with pytest.raises(PinsFull, match="this router keeps pins with images of 100 bytes, near the maximum of 150"):
        pins._check_room(pin_of("second", 51))
    pins._check_room(pin_of("first", 150))  # replaces the other
    pins._check_room(pin_of("text", 0))
    pins._check_room(pin_of("second", 50))
    with pytest.raises(PinsFull, match="this router, for the key, keeps pins with images of 100 bytes"):
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
    with pytest.raises(Overloaded, match="keeps pins with images of 100 bytes, near the maximum of 150; delete some"):
        async with asyncio.timeout(1):
            await pins.take(pin_of("second", 51), UNUSED)
    may_end.set()
    with pytest.raises(WorkerLost):
        await taking
    pins._check_room(pin_of("second", 150))


async def test_images_of_prefix_files_beyond_the_bound_stop_the_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "MAX_PIXEL_BYTES", 150)
    paths = [tmp_path / name for name in ("first.txt", "again.txt", "text.txt", "second.txt")]
    for path, text in zip(paths, ("100", "100", "0", "51"), strict=True):
        path.write_text(text)

    async def tokenize_with_images(text: str, _: bool) -> tuple[range, tuple[Image, ...]]:
        return range(64), pin_of("", int(text)).prefix.images

    pipeline: Any = SimpleNamespace(tokenize_with_images=tokenize_with_images, context_len=lambda: 1024)
    model: Any = SimpleNamespace(pipeline=pipeline, pins=PinKeeper(UNUSED, pipeline, UNUSED))
    files = read_prefix_files(map(str, paths))
    await pin_files(model, files[:3])
    with pytest.raises(
        OptionError, match=r"pin_prefix: .*second\.txt: this router keeps pins with images of 100 bytes"
    ):
        await pin_files(model, files)
    assert sum(each.num_pixel_bytes for each in model.pins.of(SERVER)) == 100


async def test_more_prefix_files_than_a_router_keeps_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "MAX_PINS", 1)
    paths = [tmp_path / name for name in ("first.txt", "second.txt")]
    for path in paths:
        path.write_text(f"You are the {path.name}. " * 20)
    with pytest.raises(OptionError, match=r"second\.txt: this router keeps 1 pins of .* pin fewer files"):
        async with running_router(pin_prefix=tuple(map(str, paths))):
            pass
