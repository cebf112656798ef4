"""Lines of the log name the request that a task works on."""

import asyncio
import io
import logging
import re
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from baton.process.log_format import LogSource
from baton.process.log_settings import LogSettings
from baton.process.logs import set_up_logging
from baton.process.request_scope import current_request, enter_request, request_scope
from baton.router.http.middleware import RequestIdMiddleware


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The standard error of a process whose logging is set up; the test's own handlers return afterwards."""
    root, text = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", text)
    set_up_logging(LogSource("decode-0"), LogSettings("debug"))
    yield text
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def requests(log: io.StringIO) -> list[str]:
    """Return the requests that the lines name, in brackets."""
    return [match[1] if (match := re.search(r": \[(\S+)\] ", line)) else "" for line in log.getvalue().splitlines()]


def test_a_line_names_its_request_once(log: io.StringIO) -> None:
    logger = logging.getLogger("baton.test")
    logger.info("before")
    with request_scope("r1"):
        logger.info("in it")
        logger.warning("%s is retried", "r1")
    logger.info("after")
    assert requests(log) == ["", "r1", "", ""]


def test_tasks_and_callbacks_of_a_request_name_it_and_others_do_not(log: io.StringIO) -> None:
    logger = logging.getLogger("baton.test")

    async def work(request_id: str) -> None:
        enter_request(request_id)
        await asyncio.sleep(0)
        await asyncio.create_task(later())

    async def later() -> None:
        logger.info("in a task of it")

    async def main() -> None:
        await asyncio.gather(work("r1"), work("r2"))
        with request_scope("r3"):
            asyncio.get_running_loop().call_soon(lambda: logger.info("called back"))
        await asyncio.sleep(0)
        logger.info("the server")

    asyncio.run(main())
    assert requests(log) == ["r1", "r2", "r3", ""]


def test_a_short_id_is_named_beside_words_that_have_its_letters(log: io.StringIO) -> None:
    with request_scope("1"):
        logging.getLogger("baton.test").info("11 tokens")
    assert requests(log) == ["1"]


def test_a_faulty_record_of_a_library_does_not_fail_the_request(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with request_scope("r1"):
        logging.getLogger("library").info("%d", "no number")
    assert log.getvalue() == ""


async def test_requests_without_a_body_have_their_own_id() -> None:
    seen = []

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(current_request())

    async def unused() -> dict[str, object]:
        raise AssertionError

    async def send(_message: object) -> None:
        raise AssertionError

    for given in (b"r2", b"no\nid"):
        scope: Scope = {"type": "http", "headers": [(b"x-request-id", given)]}
        with request_scope("r1"):
            await asyncio.create_task(RequestIdMiddleware(app)(scope, unused, send))
    assert seen[0] == "r2"
    assert re.fullmatch("[0-9a-f]{32}", seen[1])
