"""Simulated workers with SGLang's HTTP protocol: `python -m benchmarks.routing.workers.sglang TOPOLOGY MODEL`.

In the router's prefill/decode mode, both workers of a request get it with the same `bootstrap_room`.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from typing import cast

import orjson
import uvloop

from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import SimulatedRequest
from benchmarks.routing.topology import Role, Topology
from benchmarks.routing.workers.control import announce, answer_until_end
from benchmarks.routing.workers.counts import WorkerCounts
from benchmarks.routing.workers.http_worker import Fields, HttpWorker
from benchmarks.routing.workers.rendezvous import Rendezvous

MODEL = "bench"
CHAT_PROMPT = list(range(300, 320))  # for any chat: this worker does not tokenise, and no router routes by it


class SglangWorker:
    """One engine and its HTTP server."""

    def __init__(self, role: Role, engine: SimulatedEngine, rendezvous: Rendezvous, model: str) -> None:
        self.engine = engine
        self._role = role
        self._rendezvous = rendezvous
        self._numbers = count()
        self._server: asyncio.Server | None = None
        info = {"model_path": model, "tokenizer_path": model, "served_model_name": MODEL, "is_generation": True}
        page = orjson.dumps(info)
        self._pages = {"/health": b"", "/server_info": page, "/model_info": page}

    async def start(self) -> str:
        """Start serving on a free port, and return the URL."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: HttpWorker(self._pages, self._stream), "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop serving."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()
        await self.engine.close()

    async def _stream(self, path: str, fields: Fields) -> AsyncGenerator[bytes, None]:
        room = cast(int | None, fields.get("bootstrap_room"))
        request = self._request(fields)
        if room is not None and self._role == "prefill":
            await self._rendezvous.offer(room, self.engine)
            yield _event(request.request_id, 0, is_last=True)
            return
        prefill = None if room is None else await self._rendezvous.find(room, request)
        is_whole = path != "/generate" and not fields.get("stream")
        try:
            async with aclosing(self.engine.generate(request, prefill)) as tokens:
                number = 0
                async for token in tokens:
                    number += 1
                    if path == "/generate":
                        yield _event(request.request_id, number, token.is_last)
                    elif not is_whole:
                        yield _chat_event(request.request_id, number, token.is_last)
                    if room is not None:
                        self._rendezvous.end(room)
            yield _whole_chat(request.request_id, number) if is_whole else b"data: [DONE]\n\n"
        finally:
            if room is not None:
                self._rendezvous.end(room)

    def _request(self, fields: Fields) -> SimulatedRequest:
        text = cast(str | None, fields.get("text"))
        chat_limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
        sampling = cast(Fields, fields.get("sampling_params") or {"max_new_tokens": chat_limit})
        return SimulatedRequest(
            request_id=str(next(self._numbers)),
            token_ids=CHAT_PROMPT if text is None else [int(word) for word in text.split()],
            num_output_tokens=cast(int, sampling["max_new_tokens"]),
        )


def _event(request_id: str, number: int, is_last: bool) -> bytes:
    reason = '{"type":"length"}' if is_last else "null"
    return (
        f'data: {{"text":"{"word " * number}","meta_info":{{"id":"{request_id}","completion_tokens":{number},'
        f'"finish_reason":{reason}}}}}\n\n'
    ).encode()


def _chat_event(request_id: str, number: int, is_last: bool) -> bytes:
    reason = '"length"' if is_last else "null"
    return (
        f'data: {{"id":"{request_id}","object":"chat.completion.chunk","created":0,"model":"{MODEL}","choices":[{{'
        f'"index":0,"delta":{{"content":"word "}},"finish_reason":{reason}}}]}}\n\n'
    ).encode()


def _whole_chat(request_id: str, number: int) -> bytes:
    return (
        f'{{"id":"{request_id}","object":"chat.completion","created":0,"model":"{MODEL}","choices":[{{"index":0,'
        f'"message":{{"role":"assistant","content":"{"word " * number}"}},"finish_reason":"length"}}],"usage":{{'
        f'"prompt_tokens":1,"completion_tokens":{number},"total_tokens":{number + 1}}}}}'
    ).encode()


async def main(topology: Topology, model: str) -> None:
    """Serve until standard input ends."""
    rendezvous = Rendezvous()
    workers = [SglangWorker(role, SimulatedEngine(topology.spec), rendezvous, model) for role in topology.roles]
    announce([await worker.start() for worker in workers])
    await answer_until_end(lambda: [WorkerCounts.of(worker.engine.counters) for worker in workers])


if __name__ == "__main__":
    uvloop.run(main(Topology.from_json(sys.argv[1]), sys.argv[2]))
