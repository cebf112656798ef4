"""Requests of batches hold a bounded number of bytes, such as the pixels of their images."""

import asyncio
from pathlib import Path

import pytest

from baton.router.batches.held_bytes import HeldBytes
from baton.router.errors import Overloaded
from baton.router.http.exchange import Exchange
from tests.unit.router.batches.batch_rig import URL, BatchRig

LARGE = 200 << 20


def test_a_request_that_is_alone_may_hold_any_number() -> None:
    held = HeldBytes(100)
    held.take(1000)
    with pytest.raises(Overloaded, match="requests of batches hold 1000 bytes, of at most 100"):
        held.take(1)
    held.give_back(1000)
    held.take(60)
    held.take(40)
    assert held.num_bytes == 100


async def test_a_request_is_refused_while_others_hold_too_many_bytes(tmp_path: Path) -> None:
    ending = asyncio.Event()

    async def hold(exchange: Exchange) -> None:
        await exchange.read(100)
        try:
            exchange.forget_body(LARGE)
        except Overloaded:
            await exchange.respond(429, b"{}")
        else:
            await ending.wait()
            await exchange.respond(200, b"{}")

    rig = BatchRig(tmp_path, hold)
    client = rig.lines.client("one")
    first = asyncio.create_task(rig.lines.run(URL, client, b"{}", False))
    await asyncio.sleep(0)
    assert (await rig.lines.run(URL, client, b"{}", False)).status == 429
    ending.set()
    assert (await first).status == 200
    assert (await rig.lines.run(URL, client, b"{}", False)).status == 200
    rig.disk.close()
