"""Writers of several requests that share one call."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from baton.protos.open_inference_pb2 import ModelStreamInferResponse
from baton.router.admission import unread_output as unread
from baton.router.admission.unread_output import UnreadLimits, UnreadMetrics, UnreadOutput
from baton.router.errors import SlowClient
from baton.router.grpc.response_writer import ResponseWriter

MESSAGE_S = 0.05
MESSAGE = ModelStreamInferResponse(error_message="a" * 100)


class PacedClient:
    """A client that reads a message in some time, one after the other."""

    def __init__(self, message_s: float) -> None:
        self.num_read = self._num_reading = 0
        self._message_s = message_s

    async def write(self, _message: Any, /) -> None:
        assert not self._num_reading
        self._num_reading += 1
        await asyncio.sleep(self._message_s)
        self._num_reading -= 1
        self.num_read += 1


async def write_one_each(client: PacedClient, num_writers: int) -> list[BaseException | None]:
    """Return how the writers of a call ended."""
    limits = UnreadLimits(request_bytes=1 << 20, key_bytes=1 << 20, router_bytes=1 << 20)
    total, turn = UnreadOutput(limits, UnreadMetrics(CollectorRegistry(), "model")), asyncio.Lock()

    async def write(number: int) -> None:
        async with ResponseWriter(client, total, str(number), None, turn) as writer:
            await writer.send(MESSAGE)

    ended = await asyncio.gather(*map(write, range(num_writers)), return_exceptions=True)
    assert total.num_bytes == 0
    return ended


async def test_the_time_for_a_message_begins_with_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "STALL_S", 4 * MESSAGE_S)
    client = PacedClient(MESSAGE_S)
    assert await write_one_each(client, 20) == [None] * 20
    assert client.num_read == 20


async def test_a_client_that_stalls_is_found_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "STALL_S", MESSAGE_S)
    [ended] = await write_one_each(PacedClient(3600), 1)
    assert isinstance(ended, SlowClient)
