"""Requests that move between workers with and without drafts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.unit.engine.grammar_rig import steps

MODEL = Path(str(files("baton"))) / "bundled_model"
PROMPT = list(range(300, 330)) * 4  # greedy outputs repeat
SAMPLING = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
BODY = {
    "prompt": PROMPT, "max_tokens": SAMPLING.max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
    "repetition_penalty": 1, "return_token_ids": True,
}  # fmt: skip


def plain_output() -> list[int]:
    """The output of an engine without drafts."""
    engine = Engine(EngineConfig(model=str(MODEL), dtype="float32", num_threads=1, kv_cache_memory_bytes=64 << 20))
    request = Request(RequestId("plain"), list(PROMPT), len(PROMPT), SAMPLING)
    engine.add(request)
    for _ in steps(engine):
        pass
    return request.token_ids[len(PROMPT) :]


@asynccontextmanager
async def moved_requests(
    directory: Path, prefill_flags: tuple[str, ...], decode_flags: tuple[str, ...], expected: list[int]
) -> AsyncIterator[tuple[WorkerProcess, WorkerProcess, WorkerProcess]]:
    """Run a prefill worker and two decode workers, and check the tokens of two requests.

    The first one is handed over. The second one begins at one decode worker and goes on at the other, which pulls its
    KV.
    """
    roles = (("prefill", *prefill_flags), ("decode", *decode_flags), ("decode", *decode_flags))
    async with (
        worker_processes(MODEL, directory, *roles) as (prefill, first, second),
        decode_client(first) as client,
        decode_client(second) as other,
    ):
        handed_over = await client.generate(PROMPT, SAMPLING, await prefill.peer())
        assert handed_over.served_by.handed_over_tokens == len(PROMPT)
        assert handed_over.token_ids == expected
        begun = await client.submit(PROMPT, SAMPLING)
        while len(begun.token_ids) < 60:
            begun.progressed.clear()
            await begun.progressed.wait()
        await client.abort(begun)
        tokens = [*PROMPT, *begun.token_ids]
        continued = await other.submit(
            tokens, SAMPLING, prefix_source=await first.peer(), num_prompt_tokens=len(PROMPT)
        )
        await continued.ended.wait()
        assert begun.token_ids + continued.token_ids == expected
        assert continued.served_by.prefix_pulled_tokens > len(PROMPT)
        yield prefill, first, second
