"""Which bodies are parsed on the event loop, and for how long."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from itertools import count
from types import SimpleNamespace
from typing import Annotated, cast

import pytest
from pydantic import BaseModel, BeforeValidator, ValidationError

from baton.router.http.body_reader import LIGHT_BYTES, BodyReader, is_light
from baton.router.http.exchange import Exchange
from baton.router.inline_work import TURN_S
from baton.router.openai.chat import ChatRequest

CLOCK_STEP_S = 1 / 1024
EXCHANGE = cast(Exchange, SimpleNamespace(address="127.0.0.1", upload=None, disconnected=False))


def texts(number: int) -> bytes:
    return b'{"messages":[{"role":"user","content":[%b]}]}' % b",".join([b'"a"'] * number)


def test_bodies_with_many_parts_of_any_kind_are_not_light() -> None:
    assert is_light(b'{"messages":[{"role":"user","content":"%b"}]}' % (b"a, " * 20_000))
    assert is_light(b'{"messages":[%b]}' % b",".join([b'{"role":"user","content":"a"}'] * 80))
    assert is_light(b'{"prompt":[%b]}' % b",".join([b"17"] * 20_000))  # numbers take no time
    assert is_light(texts(500))
    assert not is_light(texts(1000))
    assert not is_light(texts(8000))
    assert not is_light(b'{"messages":[%b]}' % b",".join([b"[]"] * 300))
    assert not is_light(b'{"messages":[%b]}' % b",".join([b"{}"] * 300))


LISTS = ["tools", "stop", "stop_token_ids", "modalities", "functions", "bad_words", "documents", "logits_processors"]


@pytest.mark.parametrize("field", [*LISTS, "messages"])
def test_validation_of_a_list_stops_at_its_first_invalid_element(field: str) -> None:
    """Otherwise pydantic makes an error for each invalid element."""
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"messages": [{"role": "user", "content": "a"}], field: [b""] * 1000})
    assert caught.value.error_count() == 1


class Recorded(BaseModel):
    """A body that records the thread that parses it."""

    thread: Annotated[int, BeforeValidator(lambda _: threading.get_ident())]


@pytest.fixture
async def reader() -> AsyncIterator[BodyReader]:
    ticks = count()
    reader = BodyReader(lambda: 1000, clock=lambda: next(ticks) * CLOCK_STEP_S)
    yield reader
    reader.close()


async def test_light_bodies_have_a_bound_on_their_time_in_each_turn_of_the_event_loop(reader: BodyReader) -> None:
    num_inline = math.ceil(TURN_S / CLOCK_STEP_S)
    for _ in range(2):  # the next turn has time again
        bodies = await asyncio.gather(*(reader.read(Recorded, b'{"thread": 0}', EXCHANGE) for _ in range(50)))
        own = [each.thread == threading.get_ident() for each in bodies]
        assert own == [True] * num_inline + [False] * (50 - num_inline)


async def test_long_bodies_are_hashed_in_a_thread(reader: BodyReader, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(
        "baton.router.http.body_reader.read_resumption", lambda *_: threads.append(threading.get_ident())
    )
    exchange = cast(Exchange, SimpleNamespace(address="", upload=None, disconnected=False, headers={}, client=None))
    await reader.resumption(b" " * LIGHT_BYTES, exchange)
    await reader.resumption(b" " * (LIGHT_BYTES + 1), exchange)
    assert [each == threading.get_ident() for each in threads] == [True, False]
