"""A worker without a model: a real gRPC server whose tokens are a hash of all earlier tokens, or scripted."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc

from baton.engine.kv.block_hash import hash_blocks
from baton.protos import common_pb2, worker_pb2, worker_pb2_grpc

BLOCK_SIZE = 4
FIRST_TOKEN, NUM_TOKENS = 300, 3000  # of the bundled vocabulary: words and pieces of words

Script = Callable[[Sequence[int], common_pb2.SamplingParams], int]


def hashed_token(token_ids: Sequence[int], sampling: common_pb2.SamplingParams) -> int:
    """Return a token that depends on all earlier ones, and on the seed unless greedy."""
    seed = sampling.seed if sampling.temperature else 0
    digest = hashlib.sha256(repr((list(token_ids), seed)).encode()).digest()
    return FIRST_TOKEN + int.from_bytes(digest[:4], "little") % NUM_TOKENS


def scripted(output: Sequence[int], num_prompt_tokens: int) -> Script:
    """Return a script: these tokens after a prompt of this length, then the last one repeatedly."""
    return lambda token_ids, _: output[min(len(token_ids) - num_prompt_tokens, len(output) - 1)]


def scripted_turn(output: Sequence[int], header: Sequence[int]) -> Script:
    """Return a script: these tokens after the last header of a turn, then the last one; any tokens without a turn."""

    def script(token_ids: Sequence[int], sampling: common_pb2.SamplingParams) -> int:
        if header[0] not in token_ids:
            return hashed_token(token_ids, sampling)
        begin = len(token_ids) - 1 - token_ids[::-1].index(header[0]) + len(header)
        return output[min(len(token_ids) - begin, len(output) - 1)]

    return script


class ScriptedWorker(worker_pb2_grpc.WorkerServicer, worker_pb2_grpc.DecodeServicer):
    """A worker; `restart` begins a new incarnation at the same address."""

    def __init__(self, worker_id: str = "decode-0", role: int = worker_pb2.WORKER_ROLE_DECODE) -> None:
        self.worker_id = worker_id
        self.role = role
        self.model = "bundled_model"
        self.fingerprint = "fingerprint"
        self.vocabulary = ""
        self.max_model_len = 256
        self.script: Script = hashed_token
        self.end_token: int | None = None
        self.refusal: worker_pb2.RequestDelta | None = None  # sent instead of any token
        self.go_on = asyncio.Event()  # cleared: decoding pauses before each token after the first
        self.go_on.set()
        self.num_pauses = 0  # of requests whose decoding has waited for it
        self.may_tell = asyncio.Event()  # cleared: watchers are told nothing
        self.may_tell.set()
        self.gives_away = False  # each request, after its first token, once it may go on
        self.draining = False
        self.short_of_ranks = False  # set: watchers hear nothing of the cache
        self.remembered: list[worker_pb2.RecalledOutput] | None = None  # None: it knows no `Recall`
        self.may_recall = asyncio.Event()  # cleared: `Recall` hangs
        self.may_recall.set()
        self.commands: list[worker_pb2.GenerateCommand] = []
        self.aborted: list[str] = []
        self.num_lives = 0
        self.address = "127.0.0.1:0"
        self.skip_sequence = False
        self.num_watches = 0
        self.load = worker_pb2.WorkerLoad()  # merged into its reports
        self.kv_stores: tuple[str, ...] = ()
        self.adapters: dict[str, str] | None = None  # digests by name; None: it takes none
        self.saved: list[bytes] = []  # hashes in its stores, sent with the next update
        self.lost: list[bytes] = []
        self._cached: set[bytes] = set()
        self._news: asyncio.Event = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """Start an incarnation and return its address."""
        self.num_lives += 1
        self._cached = set()
        server = self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        self.add_services(server)
        port = server.add_insecure_port(self.address)
        self.address = f"127.0.0.1:{port}"
        await server.start()
        return self.address

    def add_services(self, server: grpc.aio.Server) -> None:
        """Add the worker's services to a server."""
        worker_pb2_grpc.add_WorkerServicer_to_server(self, server)
        worker_pb2_grpc.add_DecodeServicer_to_server(self, server)

    async def stop(self) -> None:
        """Stop at once; calls break."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    @property
    def incarnation(self) -> str:
        """The description of the current incarnation."""
        return f"{self.worker_id}/{self.num_lives}"

    async def Describe(self, request: Any, context: Any) -> worker_pb2.WorkerDescription:  # noqa: N802
        return worker_pb2.WorkerDescription(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            role=self.role,
            address=self.address,
            model=self.model,
            vocabulary=self.vocabulary,
            fingerprint=self.fingerprint,
            block_size=BLOCK_SIZE,
            num_blocks=1000,
            max_model_len=self.max_model_len,
            kv_stores=self.kv_stores,
            adapters=None if self.adapters is None else worker_pb2.AdapterLimits(max_loras=2),
        )

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[worker_pb2.WorkerUpdate]:  # noqa: N802
        self.num_watches += 1
        sequence, known = 0, set[bytes]()
        while True:
            await self.may_tell.wait()
            self._news.clear()  # before the update is made: what comes from now on is told with the next one
            if self.short_of_ranks:
                yield worker_pb2.WorkerUpdate(incarnation=self.incarnation, load=self._load(), short_of_ranks=True)
                await self._news.wait()
                continue
            stored, known = self._cached - known, set(self._cached)
            events = worker_pb2.CacheEvents(
                sequence=sequence,
                stored=b"".join(sorted(stored)),
                saved=b"".join(self.saved),
                lost=b"".join(self.lost),
            )
            self.saved, self.lost = [], []
            sequence += 2 if self.skip_sequence else 1
            self.skip_sequence = False
            yield worker_pb2.WorkerUpdate(
                incarnation=self.incarnation,
                load=self._load(),
                cache=events,
                draining=self.draining,
                adapters=None if self.adapters is None else adapter_list(self.adapters),
            )
            await self._news.wait()

    async def Attach(self, requests: Any, context: Any) -> AsyncIterator[worker_pb2.WorkerMessage]:  # noqa: N802
        outgoing: asyncio.Queue[worker_pb2.WorkerMessage] = asyncio.Queue()
        running: dict[str, asyncio.Task[None]] = {}
        reader = asyncio.create_task(self._read(requests, running, outgoing))
        try:
            while True:
                yield await outgoing.get()
        finally:
            for task in (reader, *running.values()):
                task.cancel()

    async def Recall(self, request: Any, context: Any) -> worker_pb2.RecallResponse:  # noqa: N802
        await self.may_recall.wait()
        if self.remembered is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        outputs = [each for each in self.remembered or () if each.resume_key in request.resume_keys]
        return worker_pb2.RecallResponse(outputs=outputs)

    def news(self) -> None:
        """Send updates to the watchers now."""
        self._news.set()

    def cache(self, token_ids: Sequence[int], cache_salt: str = "", adapter_digest: str = "") -> None:
        """Cache the full blocks of these tokens."""
        self._cached.update(hash_blocks(token_ids, BLOCK_SIZE, cache_salt, adapter_digest))
        self.news()

    def _load(self) -> worker_pb2.WorkerLoad:
        load = worker_pb2.WorkerLoad(
            num_free_blocks=900,
            num_blocks=1000,
            handovers=3,
            peer_transports={"peer-1": "shared_memory: one host"},
            completed_handovers=[worker_pb2.TransportHandovers(transport="tcp", num_bytes=64)],
            tiers=[worker_pb2.KVTier(name="host", num_blocks=7, saved_blocks=9)],
            weights_offload=worker_pb2.OffloadedWeights(stored_bytes=1 << 30, expert_hits=3, expert_misses=1),
        )
        load.MergeFrom(self.load)
        return load

    async def _read(self, requests: Any, running: dict[str, asyncio.Task[None]], outgoing: Any) -> None:
        async for message in requests:
            if message.HasField("hello"):
                assert message.hello.incarnation == self.incarnation
            for command in message.generate:
                self.commands.append(command)
                running[command.request_id] = asyncio.create_task(self._generate(command, outgoing))
            for abort in message.abort:
                self.aborted.append(abort.request_id)
                running[abort.request_id].cancel()

    async def _generate(self, command: worker_pb2.GenerateCommand, outgoing: Any) -> None:
        if self.refusal is not None:
            refusal = worker_pb2.RequestDelta(request_id=command.request_id)
            refusal.MergeFrom(self.refusal)
            outgoing.put_nowait(worker_pb2.WorkerMessage(deltas=[refusal]))
            return
        tokens, num_old = list(command.token_ids), len(command.token_ids)
        served_by = self._served_by(command)
        while True:
            if len(tokens) > num_old:
                self.num_pauses += not self.go_on.is_set()
                await self.go_on.wait()
                if self.gives_away:
                    outgoing.put_nowait(worker_pb2.WorkerMessage(deltas=[given_away(command)]))
                    return
            delta = self._step(command, tokens, is_first=len(tokens) == num_old)
            if len(tokens) == num_old + 1 or delta.finish_reason:
                delta.served_by.CopyFrom(served_by)
            outgoing.put_nowait(worker_pb2.WorkerMessage(deltas=[delta]))
            if delta.finish_reason:
                self.cache(tokens[:-1], command.cache_salt, command.adapter_digest)
                return
            await asyncio.sleep(0)

    def _step(self, command: worker_pb2.GenerateCommand, tokens: list[int], is_first: bool) -> worker_pb2.RequestDelta:
        sampling = command.sampling
        delta = worker_pb2.RequestDelta(request_id=command.request_id)
        if is_first and sampling.HasField("prompt_logprobs"):
            for place in range(1, command.num_prompt_tokens):
                delta.prompt_logprobs.append(position_logprobs(tokens[place], sampling.prompt_logprobs))
        token_id = self.script(tokens, sampling)
        tokens.append(token_id)
        delta.token_ids.append(token_id)
        if sampling.HasField("logprobs"):
            delta.logprobs.append(position_logprobs(token_id, sampling.logprobs))
        num_output = len(tokens) - command.num_prompt_tokens
        ends = token_id in sampling.stop_token_ids or (token_id == self.end_token and not sampling.ignore_eos)
        if ends and num_output >= sampling.min_tokens:
            delta.finish_reason = common_pb2.FINISH_REASON_STOP
        elif num_output >= sampling.max_tokens:
            delta.finish_reason = common_pb2.FINISH_REASON_LENGTH
        return delta

    def _served_by(self, command: worker_pb2.GenerateCommand) -> common_pb2.ServedBy:
        hashes = hash_blocks(list(command.token_ids), BLOCK_SIZE, command.cache_salt, command.adapter_digest)
        cached = next((index for index, each in enumerate(hashes) if each not in self._cached), len(hashes))
        served_by = common_pb2.ServedBy(decode_worker=self.worker_id, decode_cached_tokens=cached * BLOCK_SIZE)
        served_by.prefill_worker = command.prefill.worker_id or self.worker_id
        if command.HasField("prefill"):
            served_by.kv_transport = "shared_memory"
            served_by.handed_over_tokens = len(command.token_ids) - cached * BLOCK_SIZE
        return served_by


def adapter_list(digests: Mapping[str, str]) -> worker_pb2.AdapterList:
    """Return the message of these adapters, digests by name."""
    adapters = [worker_pb2.Adapter(name=name, digest=digest, rank=8) for name, digest in sorted(digests.items())]
    return worker_pb2.AdapterList(adapters=adapters)


def given_away(command: worker_pb2.GenerateCommand) -> worker_pb2.RequestDelta:
    """Return the last delta of a request at a draining worker."""
    return worker_pb2.RequestDelta(request_id=command.request_id, finish_reason=common_pb2.FINISH_REASON_HANDED_OFF)


def position_logprobs(token_id: int, num_top: int) -> common_pb2.PositionLogprobs:
    """Return logprobs: the chosen token at -0.5, and the next ids below."""
    candidates = [
        common_pb2.TokenLogprob(token_id=token_id + index, logprob=-0.5 - index, rank=index + 1)
        for index in range(num_top)
    ]
    chosen = common_pb2.TokenLogprob(token_id=token_id, logprob=-0.5, rank=1)
    return common_pb2.PositionLogprobs(chosen=chosen, top=candidates)
