"""A request in a decode worker: its router session, its command, and the deltas it sends."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.decode_worker.service import RouterSession
from baton.decode_worker.shared_images import SharedImages
from baton.engine.kv.origin import NO_ORIGINS, KVOrigin, mixed_quantization
from baton.engine.outputs import RequestOutput
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.scheduling.schedule import Received
from baton.protos import common_pb2, worker_pb2
from baton.rpc.requests import image_from_proto, image_to_proto, logprobs_to_proto, sampling_from_proto
from baton.worker.base import StoredKV
from baton.worker.request_trace import WorkerTrace

ENGINE_IDS = "decode/"  # prefix of this service's request ids in the engine, which other services may share
FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
}


@dataclass(frozen=True, slots=True)
class RequestName:
    """A router's session, and the id that the router gave to a request."""

    session_id: str
    request_id: str


@dataclass(slots=True, eq=False)
class DecodeRequest:
    """One request of a router, and the deltas that the router receives about it."""

    request: Request
    session: RouterSession
    command: worker_pb2.GenerateCommand
    served_by: common_pb2.ServedBy
    origin: KVOrigin  # of the KV that this worker computes
    foreign: frozenset[KVOrigin] = NO_ORIGINS  # other models whose KV its tokens were sampled from
    handover: "asyncio.Task[None] | None" = None
    stored: StoredKV | None = None  # KV of its tokens in stores below the pool
    is_served_by_sent: bool = field(default=False)  # the current `served_by` went out with a token
    recalled: worker_pb2.RecalledOutput | None = None  # its output so far; None: the request is not resumable
    trace: WorkerTrace | None = None  # None: the router records no times of it

    @property
    def name(self) -> RequestName:
        """The request's id at its router; unique among running requests."""
        return RequestName(self.session.session_id, self.command.request_id)

    @classmethod
    def of(
        cls,
        command: worker_pb2.GenerateCommand,
        session: RouterSession,
        worker_id: str,
        number: int,
        origin: KVOrigin,
        shared: SharedImages,
    ) -> "DecodeRequest":
        """Return the request that a command describes; `number` is unique among the worker's requests.

        The number makes the engine id unique: two routers may choose one request id, and a router may reuse the id of
        an aborted request while blocks of that request are still being filled.
        """
        images = shared.of(map(image_from_proto, command.images))
        if images:  # a copy without pixels: a message never frees a field, nor the message that it came with
            command.ClearField("images")
            whole, command = command, worker_pb2.GenerateCommand()
            command.CopyFrom(whole)
        return cls(
            request=Request(
                request_id=RequestId(f"{ENGINE_IDS}{number}/{command.request_id}"),
                token_ids=list(command.token_ids),
                num_prompt_tokens=command.num_prompt_tokens,
                sampling=sampling_from_proto(command.sampling),
                cache_salt=command.cache_salt,
                images=images,
                adapter=command.adapter or None,
                adapter_digest=command.adapter_digest,
                tenant=command.tenant,
                priority=command.priority,
                num_marked_tokens=command.num_marked_tokens,
                receives_kv=receives_kv(command),
                receives_whole=command.HasField("prefill"),
            ),
            session=session,
            command=command,
            served_by=common_pb2.ServedBy(
                prefill_worker=command.prefill.worker_id or worker_id, decode_worker=worker_id
            ),
            origin=origin,
            recalled=_recalled(command) if command.resume_key else None,
        )

    def prefill_request(
        self, peer: worker_pb2.PeerWorker, fingerprint: str, num_ranks: int, num_cached_tokens: int
    ) -> worker_pb2.PrefillRequest:
        """Return the message for a prefill worker.

        This worker has `num_ranks` ranks, and already has the KV of the first `num_cached_tokens` tokens.
        """
        command = self.command
        has_source = command.HasField("prefix_source") and command.prefix_source.incarnation != peer.incarnation
        return worker_pb2.PrefillRequest(
            request_id=command.request_id,
            token_ids=command.token_ids,
            num_prompt_tokens=command.num_prompt_tokens,
            sampling=command.sampling,
            cache_salt=command.cache_salt,
            tenant=command.tenant,
            priority=command.priority,
            incarnation=peer.incarnation,
            fingerprint=fingerprint,
            num_cached_tokens=num_cached_tokens,
            prefix_source=command.prefix_source if has_source else None,
            router_id=self.session.router_id,
            number=command.number,
            num_ranks=num_ranks,
            images=map(image_to_proto, self.request.images),
            num_marked_tokens=command.num_marked_tokens,
            adapter=command.adapter,
            adapter_digest=self.request.adapter_digest,
        )

    def note_origins(self, announced: frozenset[KVOrigin] = NO_ORIGINS) -> None:
        """Report the other models that computed some of the request's KV so far, `announced` ones included."""
        self.foreign |= self.request.kv_origins | announced
        self.served_by.mixed_quantization = mixed_quantization(self.foreign, self.origin)

    def say_output(self, output: RequestOutput) -> None:
        """Send a step's output for this request to its router; no-op if the step brought nothing to report."""
        delta = worker_pb2.RequestDelta(request_id=self.command.request_id)
        delta.token_ids.extend(output.token_ids)
        delta.logprobs.extend(
            logprobs_to_proto(each.logprobs) for each in output.all_sampled if each.logprobs is not None
        )
        delta.prompt_logprobs.extend(map(logprobs_to_proto, output.prompt_logprobs))
        if output.finish_reason is not None:
            delta.finish_reason = FINISH_REASONS[output.finish_reason]
        if not delta.token_ids and not delta.prompt_logprobs and output.finish_reason is None:
            return
        self.served_by.decode_cached_tokens = self.request.num_cached_tokens
        if output.finish_reason is not None or (delta.token_ids and not self.is_served_by_sent):
            self.note_origins()
            delta.served_by.CopyFrom(self.served_by)
        self.is_served_by_sent = self.is_served_by_sent or bool(delta.token_ids)
        self._send_output(delta)

    def say_first_token(self, first: worker_pb2.FirstToken, finish_reason: FinishReason | None) -> None:
        """Send the token that a prefill worker sampled, with a finish reason if it ends the request."""
        self.is_served_by_sent = True
        delta = worker_pb2.RequestDelta(
            request_id=self.command.request_id, token_ids=[first.token_id], served_by=self.served_by
        )
        if first.HasField("logprobs"):
            delta.logprobs.append(first.logprobs)
        if finish_reason is not None:
            delta.finish_reason = FINISH_REASONS[finish_reason]
        self._send_output(delta)

    def say_prompt_logprobs(self, positions: Sequence[common_pb2.PositionLogprobs]) -> None:
        """Send prompt logprobs from a prefill worker."""
        self.session.add(worker_pb2.RequestDelta(request_id=self.command.request_id, prompt_logprobs=positions))

    def say_error(self, code: int, message: str) -> None:
        """Send the error that ends the request; its last delta."""
        self.session.add(
            worker_pb2.RequestDelta(
                request_id=self.command.request_id,
                finish_reason=common_pb2.FINISH_REASON_ERROR,
                error=common_pb2.RequestError(code=code, message=message),
                served_by=self.served_by,
                timings=() if self.trace is None else self.trace.timings(),
            )
        )

    def say_handed_off(self) -> None:
        """Ask the router to continue the request on another worker; the last delta from this one."""
        self.session.add(
            worker_pb2.RequestDelta(
                request_id=self.command.request_id,
                finish_reason=common_pb2.FINISH_REASON_HANDED_OFF,
                served_by=self.served_by,
                timings=() if self.trace is None else self.trace.timings(),
            )
        )

    def _send_output(self, delta: worker_pb2.RequestDelta) -> None:
        if self.trace is not None:
            self._record(self.trace, delta)
        if self.recalled is not None:
            self.recalled.token_ids.extend(delta.token_ids)
            self.recalled.finish_reason = delta.finish_reason
        self.session.add(delta)

    def _record(self, trace: WorkerTrace, delta: worker_pb2.RequestDelta) -> None:
        """Record a delta with output; the last one has the timings."""
        if delta.token_ids:
            trace.note_tokens(len(delta.token_ids))
        if delta.finish_reason:
            reason = common_pb2.FinishReason.Name(delta.finish_reason).removeprefix("FINISH_REASON_").lower()
            trace.root.attributes |= {
                "gen_ai.response.finish_reasons": (reason,),
                "baton.cached_tokens": self.request.num_cached_tokens,
                "baton.preemptions": self.request.num_preemptions,
            }
            delta.timings.extend(trace.timings())


def _recalled(command: worker_pb2.GenerateCommand) -> worker_pb2.RecalledOutput:
    return worker_pb2.RecalledOutput(
        resume_key=command.resume_key,
        token_ids=command.token_ids[command.num_prompt_tokens :],
        num_prompt_tokens=command.num_prompt_tokens,
        seed=command.sampling.seed,
    )


def receives_kv(command: worker_pb2.GenerateCommand) -> bool:
    """Return whether the request's KV, or part of it, comes from another worker.

    Prompt logprobs are a by-product of computing the prompt, so a request that asks for them pulls no prefix.
    """
    if command.HasField("prefill"):
        return True
    return command.HasField("prefix_source") and not command.sampling.HasField("prompt_logprobs")


MIN_REMOTE_TOKENS = 256  # computing fewer here is faster than asking another prefill worker


class PrefillWorkers:
    """The prefill workers of a plan, each of them asked at most once."""

    def __init__(self, entry: DecodeRequest) -> None:
        self.first = entry.command.prefill
        self._request = entry.request
        self._others = iter(entry.command.prefill_fallbacks)

    def next_after(self, received: Received) -> worker_pb2.PeerWorker | None:
        """Return the worker to ask for the rest after a failure; None if the rest is computed here.

        Prompt logprobs must all come from one worker, so such requests have no second one.
        """
        missing = self._request.num_tokens - received.num_tokens
        if missing < MIN_REMOTE_TOKENS or self._request.sampling.prompt_logprobs is not None:
            return None
        return next(self._others, None)
