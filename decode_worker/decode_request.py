"""A request in a decode worker: whose it is, how it is computed, and what was said about it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.decode_worker.service import RouterSession
from baton.engine.outputs import RequestOutput
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.scheduling.schedule import Received
from baton.protos import common_pb2, worker_pb2
from baton.rpc.requests import logprobs_to_proto, sampling_from_proto

ENGINE_IDS = "decode/"  # what our requests' ids in the engine begin with; it may have requests of others too
FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
}


@dataclass(slots=True, eq=False)
class DecodeRequest:
    """Turns what happens to a request into news for its router."""

    request: Request
    session: RouterSession
    command: worker_pb2.GenerateCommand
    served_by: common_pb2.ServedBy
    handover: "asyncio.Task[None] | None" = None
    is_served_by_sent: bool = field(default=False)  # as it is now, with a token
    recalled: worker_pb2.RecalledOutput | None = None  # its output so far; None: it cannot be recalled

    @classmethod
    def of(cls, command: worker_pb2.GenerateCommand, session: RouterSession, worker_id: str) -> "DecodeRequest":
        """The request that a command asks this worker for."""
        return cls(
            request=Request(
                request_id=engine_request_id(session, command.request_id),
                token_ids=list(command.token_ids),
                num_prompt_tokens=command.num_prompt_tokens,
                sampling=sampling_from_proto(command.sampling),
                cache_salt=command.cache_salt,
                priority=command.priority,
                receives_kv=receives_kv(command),
            ),
            session=session,
            command=command,
            served_by=common_pb2.ServedBy(
                prefill_worker=command.prefill.worker_id or worker_id, decode_worker=worker_id
            ),
            recalled=_recalled(command) if command.resume_key else None,
        )

    def prefill_request(
        self, peer: worker_pb2.PeerWorker, fingerprint: str, num_ranks: int, num_cached_tokens: int
    ) -> worker_pb2.PrefillRequest:
        """What a prefill worker is asked; this worker, of so many ranks, has the KV of the first tokens."""
        command = self.command
        has_source = command.HasField("prefix_source") and command.prefix_source.incarnation != peer.incarnation
        return worker_pb2.PrefillRequest(
            request_id=command.request_id,
            token_ids=command.token_ids,
            num_prompt_tokens=command.num_prompt_tokens,
            sampling=command.sampling,
            cache_salt=command.cache_salt,
            priority=command.priority,
            incarnation=peer.incarnation,
            fingerprint=fingerprint,
            num_cached_tokens=num_cached_tokens,
            prefix_source=command.prefix_source if has_source else None,
            router_id=self.session.router_id,
            number=command.number,
            num_ranks=num_ranks,
        )

    def say_output(self, output: RequestOutput) -> None:
        """Passes on what a step did for the request."""
        delta = worker_pb2.RequestDelta(request_id=self.command.request_id)
        if output.sampled is not None:
            delta.token_ids.append(output.sampled.token_id)
            if output.sampled.logprobs is not None:
                delta.logprobs.append(logprobs_to_proto(output.sampled.logprobs))
        delta.prompt_logprobs.extend(map(logprobs_to_proto, output.prompt_logprobs))
        if output.finish_reason is not None:
            delta.finish_reason = FINISH_REASONS[output.finish_reason]
        if not delta.token_ids and not delta.prompt_logprobs and output.finish_reason is None:
            return
        self.served_by.decode_cached_tokens = self.request.num_cached_tokens
        if output.finish_reason is not None or (delta.token_ids and not self.is_served_by_sent):
            delta.served_by.CopyFrom(self.served_by)
        self.is_served_by_sent = self.is_served_by_sent or bool(delta.token_ids)
        self._send_output(delta)

    def say_first_token(self, first: worker_pb2.FirstToken, finish_reason: FinishReason | None) -> None:
        """Passes on the token that a prefill worker sampled, and that it is the last one if it is."""
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
        """Passes on what a prefill worker says about the prompt."""
        self.session.add(worker_pb2.RequestDelta(request_id=self.command.request_id, prompt_logprobs=positions))

    def say_error(self, code: int, message: str) -> None:
        """The request failed; these are its last news."""
        self.session.add(
            worker_pb2.RequestDelta(
                request_id=self.command.request_id,
                finish_reason=common_pb2.FINISH_REASON_ERROR,
                error=common_pb2.RequestError(code=code, message=message),
                served_by=self.served_by,
            )
        )

    def say_handed_off(self) -> None:
        """Another worker is to go on with the request; these are its last news here."""
        self.session.add(
            worker_pb2.RequestDelta(
                request_id=self.command.request_id,
                finish_reason=common_pb2.FINISH_REASON_HANDED_OFF,
                served_by=self.served_by,
            )
        )

    def _send_output(self, delta: worker_pb2.RequestDelta) -> None:
        if self.recalled is not None:
            self.recalled.token_ids.extend(delta.token_ids)
            self.recalled.finish_reason = delta.finish_reason
        self.session.add(delta)


def _recalled(command: worker_pb2.GenerateCommand) -> worker_pb2.RecalledOutput:
    return worker_pb2.RecalledOutput(
        resume_key=command.resume_key,
        token_ids=command.token_ids[command.num_prompt_tokens :],
        num_prompt_tokens=command.num_prompt_tokens,
        seed=command.sampling.seed,
    )


def receives_kv(command: worker_pb2.GenerateCommand) -> bool:
    """Whether others have KV for the request. The logprobs of a prompt come with its computation: none of it is pulled
    here then.
    """
    if command.HasField("prefill"):
        return True
    return command.HasField("prefix_source") and not command.sampling.HasField("prompt_logprobs")


def engine_request_id(session: RouterSession, request_id: str) -> RequestId:
    """A request's id in the engine: routers choose ids without knowing of each other's."""
    return RequestId(f"{ENGINE_IDS}{session.session_id}/{request_id}")


LEAST_TOKENS = 256  # fewer are computed here sooner than another worker is asked for them


class PrefillWorkers:
    """Knows who was not asked yet; each is asked once."""

    def __init__(self, entry: DecodeRequest) -> None:
        self.first = entry.command.prefill
        self._request = entry.request
        self._others = iter(entry.command.prefill_fallbacks)

    def next_after(self, received: Received) -> worker_pb2.PeerWorker | None:
        """Whom to ask for the rest when one has failed; None if the rest is computed here.

        The logprobs of a prompt come in one piece, from one worker.
        """
        missing = self._request.num_tokens - received.num_tokens
        if missing < LEAST_TOKENS or self._request.sampling.prompt_logprobs is not None:
            return None
        return next(self._others, None)
