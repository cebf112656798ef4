"""The router's tests run on the router's event loop, with short intervals: most of them start and end a router."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
import uvicorn.server
import uvloop

from baton.router import shared_result
from baton.router.text import prompt_encoder, tokenizer
from tests.unit.router.rigs.running_router import MODEL

POLL_S = 0.005


class QuickAsyncio:
    """The module asyncio, with short sleeps."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def sleep(self, delay_s: float) -> Awaitable[None]:
        """Sleep for `POLL_S` at most."""
        return asyncio.sleep(min(delay_s, POLL_S))


@pytest.fixture(autouse=True, scope="session")
def short_intervals() -> Iterator[None]:
    """Otherwise uvicorn notices its end, and /workers is computed for the tests that poll it, ten times a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", QuickAsyncio())
        patch.setattr(shared_result, "INTERVAL_S", POLL_S)
        yield


@pytest.fixture(autouse=True, scope="session")
def one_tokenizer() -> Iterator[None]:
    """The bundled model's tokenizer is read once: otherwise, that takes a third of the time of most tests."""
    read = tokenizer.read_tokenizer
    pretrained = read(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tokenizer, "read_tokenizer", lambda directory: pretrained if directory == MODEL else read(directory)
        )
        for module, name in (
            (tokenizer, "find_special_token_affixes"),
            (prompt_encoder, "make_byte_pair_encoder"),
            (prompt_encoder, "make_text_segments"),
        ):
            patch.setattr(module, name, _once_for(pretrained.backend_tokenizer, getattr(module, name)))
        yield


def _once_for(owner: object, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that does what `compute` does, once for `owner`."""
    known = compute(owner)
    return lambda tokenizer: known if tokenizer is owner else compute(tokenizer)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use libuv's loop: unlike asyncio's, it makes every watched descriptor non-blocking."""
    return {"uvloop": uvloop.new_event_loop}
