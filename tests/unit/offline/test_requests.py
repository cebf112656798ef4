"""Requests of one call: order, concurrency, attempts after transient failures, and the index of a failure."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.offline import requests
from baton.offline.completions import Completions
from baton.offline.errors import Ended, RequestFailed
from baton.offline.outputs import RequestOutput
from baton.offline.prompts import Tokens
from baton.offline.requests import Requests
from baton.offline.sampling_params import SamplingParams
from baton.router.text.tokenizer import Tokenizer
from tests.unit.loadtool.scripted_server import ReceivedRequest, scripted_server
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

MODEL = str(Path(__file__).parents[3] / "baton" / "bundled_model")
MAX_MODEL_LEN = 256  # of scripted workers
EMPTY = (
    b'{"choices": [{"index": 0, "text": "", "token_ids": [], "logprobs": null, "finish_reason": "stop", '
    b'"stop_reason": null}], "usage": {"prompt_tokens_details": {"cached_tokens": 0}}}'
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The bundled model's tokenizer."""
    return Tokenizer(MODEL)


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attempts follow each other at once."""
    monkeypatch.setattr(requests, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(requests, "LAST_WAIT_S", 0.001)


def job(tokenizer: Tokenizer, number: int = 0, **options: Any) -> Completions:
    """Return the completions of a prompt with a token of its own."""
    params = SamplingParams(**{"temperature": 0, "max_tokens": 8, **options})
    return Completions(str(number), Tokens(None, [300 + number, 7]), params, number, MAX_MODEL_LEN, tokenizer)


def sender(url: str) -> Requests:
    """Return the sender of an LLM whose processes run."""
    return Requests(url, "key", lambda: None)


def ignore() -> None:
    """Take no note of an output."""


def response(status: bytes, body: bytes) -> bytes:
    """Return a whole HTTP response."""
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (status, len(body), body)


async def test_outputs_have_the_order_of_the_prompts_and_all_fields(tokenizer: Tokenizer) -> None:
    jobs = [job(tokenizer, number, n=2, logprobs=1, seed=5, temperature=1.0) for number in range(20)]
    async with running_router(ScriptedWorker()) as router:
        outputs = await sender(router.url).run(jobs, 3, ignore)
        again = await sender(router.url).run(jobs[7:8], 1, ignore)
    assert [each.request_id for each in outputs] == [str(number) for number in range(20)]
    assert [each.prompt_token_ids for each in outputs] == [[300 + number, 7] for number in range(20)]
    assert [[each.index for each in output.outputs] for output in outputs] == [[0, 1]] * 20
    assert again[0].outputs == outputs[7].outputs
    for completion in outputs[0].outputs:
        assert len(completion.token_ids) == 8
        assert completion.finish_reason == "length"
        assert completion.logprobs is not None
        assert completion.cumulative_logprob is not None
        for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
            assert token_id in position


async def test_no_more_requests_than_allowed_are_in_flight(tokenizer: Tokenizer) -> None:
    running, most = 0, 0

    async def answer(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        writer.write(response(b"200 OK", EMPTY))

    num_done = 0

    def done() -> None:
        nonlocal num_done
        num_done += 1

    async with scripted_server(answer) as server:
        url = f"http://127.0.0.1:{server.port}"
        outputs = await sender(url).run([job(tokenizer, number) for number in range(50)], 4, done)
    assert (len(outputs), num_done) == (50, 50)
    assert 1 < most <= 4
    assert server.num_connections <= 4


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("failure", [b"", b"429 Too Many Requests", b"503 Service Unavailable"])
async def test_a_request_is_sent_again_after_a_transient_failure(tokenizer: Tokenizer, failure: bytes) -> None:
    num_failures = 0

    async def answer(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal num_failures
        if num_failures == 3:
            writer.write(response(b"200 OK", EMPTY))
            return
        num_failures += 1
        if failure:
            writer.write(response(failure, b'{"error": {"message": "later"}}'))
        else:
            writer.close()

    async with scripted_server(answer) as server:
        [output] = await sender(f"http://127.0.0.1:{server.port}").run([job(tokenizer)], 1, ignore)
    assert output.finished
    assert len(server.requests) == 4


@pytest.mark.usefixtures("no_waits")
async def test_a_request_that_ends_its_connection_each_time_fails(tokenizer: Tokenizer) -> None:
    async def answer(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with scripted_server(answer) as server:
        with pytest.raises(RequestFailed, match="prompt 0 failed: the last of several attempts"):
            await sender(f"http://127.0.0.1:{server.port}").run([job(tokenizer)], 1, ignore)
    assert len(server.requests) == requests.MAX_LOSSES


async def test_a_failed_request_is_named_and_ends_the_others(tokenizer: Tokenizer) -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    too_long = job(tokenizer, 3, max_tokens=8)
    jobs = [job(tokenizer, number) for number in range(3)]
    broken = Completions("3", Tokens(None, [5000]), too_long.params, None, MAX_MODEL_LEN, tokenizer)
    async with running_router(worker) as router:
        with pytest.raises(RequestFailed, match=r"prompt 3 failed: 400: .*outside 0 to 4095") as failed:
            await sender(router.url).run([*jobs, broken], 8, ignore)
        worker.go_on.set()
    assert failed.value.index == 3


async def test_without_its_processes_a_call_ends(tokenizer: Tokenizer) -> None:
    def check() -> None:
        raise Ended("gone")

    async with scripted_server(lambda *_: asyncio.sleep(0)) as server:
        port = server.port
    with pytest.raises(Ended, match="gone"):
        await Requests(f"http://127.0.0.1:{port}", "key", check).run([job(tokenizer)], 1, ignore)


async def test_the_output_is_cut_to_the_context(tokenizer: Tokenizer) -> None:
    jobs = [job(tokenizer, max_tokens=None, ignore_eos=True), job(tokenizer, max_tokens=10_000, min_tokens=9_000)]
    async with running_router(ScriptedWorker()) as router:
        outputs: list[RequestOutput] = await sender(router.url).run(jobs, 2, ignore)
    assert [len(each.outputs[0].token_ids) for each in outputs] == [MAX_MODEL_LEN - 2] * 2


@pytest.mark.usefixtures("no_waits")
async def test_a_busy_router_that_accepts_late_has_lost_nothing(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_attempts = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal num_attempts
        num_attempts += 1
        if num_attempts <= 2 * requests.MAX_LOSSES:
            raise httpx.ConnectTimeout("", request=request)
        return httpx.Response(200, content=EMPTY)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://router")
    monkeypatch.setattr(Requests, "_client", lambda _: client)
    [output] = await sender("http://router").run([job(tokenizer)], 1, ignore)
    assert output.finished
