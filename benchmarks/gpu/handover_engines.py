"""Two engines in separate processes: one prefills, the other reads the KV and decodes."""

import asyncio
import multiprocessing
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import torch

from baton.engine.engine import Engine
from baton.engine.outputs import SampledToken
from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.base import KVTransport, PeerId, PoolDescription, PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from benchmarks.gpu.engine_session import EngineSession, greedy, request, start_engine
from benchmarks.gpu.stage import Setting

HOST = "127.0.0.1"
ANSWER_S = 120.0  # includes loading the model
READ_S = 30.0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prefilled prompt: its first token, and its blocks in the order of a transfer."""

    first_token: int
    blocks: list[int]


def transports_of(setting: Setting) -> tuple[str, ...]:
    """Return the transports: between GPU memories and through host memory; on a CPU sockets, as a smoke test.

    NCCL is not among them, because both processes share one GPU.
    """
    return ("nixl", "staged") if setting.device.type == "cuda" else ("tcp",)


def serve(pipe: Connection, model: Path, setting: Setting, transport: str, num_pool_bytes: int) -> None:
    """Run the prefill engine: receive prompts and send their blocks, until the pipe is closed."""
    try:
        asyncio.run(_serve(pipe, model, setting, transport, num_pool_bytes))
    except Exception:
        pipe.send(traceback.format_exc())


async def _serve(pipe: Connection, model: Path, setting: Setting, name: str, num_pool_bytes: int) -> None:
    engine = start_engine(model, setting, kv_cache_memory_bytes=num_pool_bytes)
    identity = PoolIdentity("prefill/1", engine.fingerprint)
    transport = create_transport(name, identity, SharedPool(), HOST, device=setting.device)
    pipe.send(transport.register_pool(engine.pool))
    try:
        while (prompts := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send(_prefill(engine, prompts))
    finally:
        await transport.close()
        engine.close()


def _prefill(engine: Engine, prompts: list[list[int]]) -> list[Prefilled]:
    session = EngineSession(engine)
    requests = [request(str(index), prompt, greedy(1), keep_blocks=True) for index, prompt in enumerate(prompts)]
    for each in requests:
        engine.add(each)
    while engine.has_work:
        session.step()
    if engine.pool.is_cuda:
        torch.cuda.synchronize(engine.pool.device)  # another process reads the announced blocks
    return [
        Prefilled(session.answers[each.request_id].token_ids[0], _blocks(engine, each, each.current_state))
        for each in requests
    ]


def _blocks(engine: Engine, prompt: Request, state: list[int], first: int = 0) -> list[int]:
    """Return the blocks of a prompt from the `first` one on, and those of its recurrent state, if it has one."""
    order = engine.groups.transfer_order(prompt.num_prompt_tokens)
    return order.blocks(prompt.block_tables, first, state=state)


class PrefillProcess:
    """Owner of the prefill engine's process."""

    def __init__(self, model: Path, setting: Setting, transport: str, num_pool_bytes: int = 64 << 20) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, model, setting, transport, num_pool_bytes)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> "PrefillProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill() if kind else self._pipe.send(None)
        self._process.join()

    def description(self) -> PoolDescription:
        """Receive the description of its pool. Must be called first, and once."""
        answer = self._receive()
        assert isinstance(answer, PoolDescription)
        return answer

    def prefill(self, prompts: list[list[int]]) -> list[Prefilled]:
        """Prefill prompts. Their blocks are kept until the process ends."""
        self._pipe.send(prompts)
        answer = self._receive()
        assert isinstance(answer, list)
        return answer

    def _receive(self) -> object:
        if not self._pipe.poll(ANSWER_S):
            raise TimeoutError(f"the prefill engine did not respond within {ANSWER_S:.0f} s")
        try:
            answer = self._pipe.recv()
        except EOFError as error:
            raise RuntimeError("the prefill engine's process ended") from error
        if isinstance(answer, str):
            raise RuntimeError(f"the prefill engine failed:\n{answer}")
        return answer


@dataclass(frozen=True, slots=True)
class Reader:
    """Connected transport of the decode engine."""

    session: EngineSession
    transport: KVTransport
    peer: PeerId

    @classmethod
    async def connect(
        cls, session: EngineSession, setting: Setting, name: str, description: PoolDescription
    ) -> "Reader":
        """Register the engine's pool and connect to the other one."""
        engine = session.engine
        identity = PoolIdentity("decode/1", engine.fingerprint)
        transport = create_transport(name, identity, SharedPool(), HOST, device=setting.device)
        transport.register_pool(engine.pool)
        return cls(session, transport, await transport.connect(description))

    async def take_over(self, name: str, prompt: list[int], prefilled: Prefilled, num_tokens: int) -> None:
        """Add a request that was prefilled there, read its KV, and continue it here."""
        taken = request(name, prompt, greedy(num_tokens, logprobs=2), receives_kv=True)
        engine = self.session.engine
        engine.add(taken)
        schedule = self.session.step()
        assert schedule.receiving == [taken], "the pool is too small"
        first = taken.num_computed_tokens // engine.config.block_size  # locally cached blocks are not read
        local = _blocks(engine, taken, taken.state_blocks, first)
        await self.transport.read(self.peer, prefilled.blocks[-len(local) :], local, READ_S)
        sampled = SampledToken(prefilled.first_token)
        engine.end_receive(taken.request_id, Received(len(prompt), sampled))

    async def seconds(self, num_blocks: int) -> float:
        """Return the seconds to read this many scattered blocks."""
        pool = self.session.engine.pool
        wanted = torch.randperm(len(pool) - 1)[:num_blocks] + 1
        remote, local = wanted.tolist(), wanted.flip(0).tolist()
        started_s = time.perf_counter()
        await self.transport.read(self.peer, remote, local, READ_S)
        if pool.is_cuda:
            torch.cuda.synchronize(pool.device)
        return time.perf_counter() - started_s
