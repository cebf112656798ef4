"""The state of a resumed request, without a network."""

import random

import httpx
import orjson
import pytest

from baton.client.outage import ResumePolicy
from baton.client.resuming_stream import ResumingStream
from baton.client.router_list import RouterList
from tests.unit.client.scripted_router import EXPECTED, NUM_TOKENS, PATH, position, stream_behind

HEAD = httpx.Response(200, headers={"x-baton-resumable": "true", "content-type": "text/event-stream"})
BROKEN = httpx.RemoteProtocolError("broken")


def _stream(policy: ResumePolicy | None = None, **fields: object) -> ResumingStream:
    request = httpx.Request("POST", f"http://a{PATH}", json={"stream": True, **fields})
    request.read()
    return ResumingStream(request, RouterList([]), policy or ResumePolicy())


def _begin(stream: ResumingStream) -> int:
    """Begin an attempt; return how many tokens the client has."""
    resume = stream.attempt().headers.get("x-baton-resume", "x; tokens=0").partition("tokens=")[2]
    assert stream.accept(HEAD)
    count = int(resume.split(":")[0])
    assert resume == position(count)
    return count


def test_values_that_are_nested_too_deeply_are_passed_on() -> None:
    deep = b'{"error":' + b"[" * 100_000
    request = httpx.Request("POST", f"http://a{PATH}", content=deep)
    request.read()
    ResumingStream(request, RouterList([]), ResumePolicy())
    stream = _stream()
    assert _begin(stream) == 0
    events = b"".join(b"data: " + data + b"\n\n" for data in (deep, b'{"finish_reason":"stop"', b"[DONE]"))
    assert stream.receive(events) == events


def test_a_stream_may_be_cut_after_every_byte() -> None:
    for num_bytes in range(len(stream_behind(0))):
        stream = _stream()
        assert _begin(stream) == 0
        text = stream.receive(stream_behind(0)[:num_bytes])
        stream.lose(BROKEN)
        text += stream.receive(stream_behind(_begin(stream)))
        stream.end()
        assert text == EXPECTED, num_bytes


@pytest.mark.parametrize("seed", range(30))
def test_a_stream_may_be_cut_anywhere_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    stream, text, num_losses = _stream(), b"", 0
    while not stream.is_over:
        rest = stream_behind(_begin(stream), newline=rng.choice((b"\n", b"\r\n")))
        while rest and not stream.is_over:
            length = rng.randint(1, 120)
            text += stream.receive(rest[:length])
            rest = rest[length:]
            if rng.random() < 0.2 and not stream.is_over:
                break
        else:
            break
        num_losses += 1
        stream.lose(BROKEN)
    assert text.replace(b"\r\n", b"\n") == EXPECTED


def test_each_completion_ends_once() -> None:
    def end(index: int, text: str = "") -> bytes:
        return b"data: %b\n\n" % orjson.dumps({"choices": [{"index": index, "text": text, "finish_reason": "stop"}]})

    stream = _stream(n=2)
    stream.attempt()
    assert stream.accept(HEAD)
    first = end(0, '"finish_reason": "stop"')
    assert stream.receive(b"id: 3,0:00000000\n" + first + b"id: 3,1:00000000\ndata: {}\n\n") == first + b"data: {}\n\n"
    assert stream.receive(end(1)) == b""  # it has no id, so the next attempt repeats it
    stream.lose(BROKEN)
    assert stream.attempt().headers["x-baton-resume"].endswith("; tokens=3,1:00000000")
    assert stream.accept(HEAD)
    assert stream.receive(end(0) + end(1) + b"data: [DONE]\n\n") == end(1) + b"data: [DONE]\n\n"


def test_each_token_ends_the_outage() -> None:
    stream = _stream(ResumePolicy(max_outage_s=0))
    for count in range(NUM_TOKENS):
        assert _begin(stream) == count
        stream.receive(stream_behind(count, count + 1))
        stream.lose(BROKEN)
    _begin(stream)
    with pytest.raises(
        httpx.RemoteProtocolError, match=r"broken; gave up after 2 failures .* at http://a/: ReadError: x"
    ):
        stream.lose(httpx.ReadError("x"))


def test_delays_grow_with_each_round_over_the_routers() -> None:
    longest_s = []
    for num_losses in (0, 2, 4, 40):
        delays = []
        for _ in range(50):
            stream = _stream()
            for _ in range(num_losses + 1):
                stream.lose(BROKEN)
            delays.append(stream.delay_s)
        longest_s.append(max(delays))
    assert longest_s == sorted(longest_s)
    assert longest_s[0] <= 0.2
    assert 2 < longest_s[-1] <= 5


def test_a_clients_shorter_time_limit_is_not_extended() -> None:
    for read_s, is_loss in ((2.0, False), (60.0, True), (None, True)):
        request = httpx.Request(
            "POST", f"http://a{PATH}", json={"stream": True}, extensions={"timeout": {"read": read_s}}
        )
        request.read()
        stream = ResumingStream(request, RouterList([]), ResumePolicy())
        assert stream.attempt().extensions["timeout"] == {"connect": 5.0, "read": 5.0 if is_loss else read_s}
        if is_loss:
            stream.lose(httpx.ReadTimeout("silent"))
        else:
            with pytest.raises(httpx.ReadTimeout, match=r"^silent$"):
                stream.lose(httpx.ReadTimeout("silent"))


@pytest.mark.parametrize("values", [{"max_outage_s": -1.0}, {"silence_s": 0.0}, {"first_delay_s": -0.1}])
def test_time_limits_must_be_positive(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="times must be positive"):
        ResumePolicy(**values)
