"""The Attach stream between the router and a decode worker: commands out, one message per engine step in."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from grpc.aio import Channel, StreamStreamCall

from baton.engine.errors import InvalidRequest
from baton.protos import common_pb2
from baton.protos.worker_pb2 import AbortCommand, GenerateCommand, Hello, RequestDelta, RouterMessage, WorkerMessage
from baton.protos.worker_pb2_grpc import DecodeStub
from baton.router.errors import WorkerLost
from baton.rpc.grpc_options import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES
from baton.rpc.status import Unavailable


class Mailbox:
    """At most one delta: unread deltas are merged, so a slow reader needs no queue.

    One reader at a time. A patient reader gets the deltas up to the first token, and then all others merged.
    """

    def __init__(
        self,
        patient: bool = False,
        note_tokens: Callable[[int], None] = lambda _: None,
        may_move: Callable[[], bool] = lambda: False,
    ) -> None:
        """`note_tokens` is called with the number of tokens of each delta as it arrives; may_move: see `submit`."""
        self._patient = patient
        self._note_tokens = note_tokens
        self.may_move = may_move
        self._opened = False  # whether the reader has got the first token
        self._pending: RequestDelta | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: RequestDelta) -> None:
        """Merge a delta: repeated fields append, other fields overwrite."""
        self._note_tokens(len(delta.token_ids))
        if self._pending is None:
            self._pending = delta
        else:
            self._pending.MergeFrom(delta)
        if not self._waits:
            self._wake()

    def fail(self, error: Exception) -> None:
        """End the stream: `get` raises the error after the pending delta."""
        self._error = error
        self._wake()

    async def get(self) -> RequestDelta:
        """Wait for deltas and return them merged. Raises the error of `fail`."""
        while self._pending is None or self._waits:
            if self._error is not None:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        delta, self._pending = self._pending, None
        if delta is None:
            assert self._error is not None
            raise self._error
        self._opened = self._opened or bool(delta.token_ids)
        return delta

    @property
    def is_handed_off(self) -> bool:
        """Whether an unread delta hands the request off."""
        return self._pending is not None and self._pending.finish_reason == common_pb2.FINISH_REASON_HANDED_OFF

    @property
    def _waits(self) -> bool:
        """Whether the pending delta is held back until the last one arrives."""
        return self._patient and self._opened and self._pending is not None and not self._pending.finish_reason

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


MAX_COMMAND_BYTES = MAX_REQUEST_BYTES * 7 // 8  # decode workers forward most of a command to prefill workers
MAX_UNSENT_BYTES = 16 << 20  # while more bytes are unsent, further requests wait before they make their commands
TOKEN_BYTES = 5  # maximum size of a token id as a varint
COMMAND_BYTES = 1 << 10  # approximate size of the names and addresses in a command


@dataclass(slots=True)
class _Outgoing:
    """An unsent message to which further commands may be added."""

    message: RouterMessage
    num_bytes: int = 0  # approximate


class AttachStream:
    """The stream to one incarnation of a decode worker, and the mailboxes of this router's requests there."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._mailboxes: dict[str, Mailbox] = {}
        self._outgoing: deque[_Outgoing] = deque()
        self._unsent_bytes = 0  # in `_outgoing` and in the message that is being sent
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._lost: Unavailable | None = None

    async def room(self) -> None:
        """Wait until a command may be submitted. Raises the error that the stream was closed with.

        This bounds the memory of a worker that does not read: further commands are made only when there is room.
        """
        while self._unsent_bytes >= MAX_UNSENT_BYTES and self._lost is None:
            self._has_room.clear()
            await self._has_room.wait()
        if self._lost is not None:
            raise self._lost

    def submit(
        self,
        command: GenerateCommand,
        patient: bool = False,
        note_tokens: Callable[[int], None] = lambda _: None,
        may_move: Callable[[], bool] = lambda: False,
    ) -> Mailbox:
        """Send a request and return the mailbox of its deltas.

        Raises the error that the stream was closed with, and InvalidRequest if the command is too large for a worker.
        `patient`: the deltas between the first token and the last may be merged; `note_tokens` still gets each.
        `may_move` returns whether another worker can continue the request now.
        """
        if self._lost is not None:
            raise self._lost
        num_bytes = len(command.token_ids) * TOKEN_BYTES + command.sampling.ByteSize() + COMMAND_BYTES
        num_bytes += sum(len(image.pixels) for image in command.images)
        if num_bytes > MAX_COMMAND_BYTES:
            raise InvalidRequest(
                f"the prompt's {len(command.token_ids)} tokens with its images and the sampling options take up to "
                f"{num_bytes} bytes, over the limit of {MAX_COMMAND_BYTES} for a request to a worker"
            )
        mailbox = self._mailboxes[command.request_id] = Mailbox(patient, note_tokens, may_move)
        self._last_message(num_bytes).generate.append(command)
        return mailbox

    def abort(self, command_id: str) -> None:
        """Cancel a request if it has not ended. Its mailbox gets no more deltas."""
        if self._mailboxes.pop(command_id, None) is not None and self._lost is None:
            self._send_abort(command_id)

    def release(self, command_id: str) -> None:
        """Report that the worker need not wait for a pull of the KV of a request that it has handed off."""
        if self._lost is None:
            self._send_abort(command_id)

    async def run(self, channel: Channel, hello: Hello) -> None:
        """Run the stream until it ends, always with an error: AioRpcError or WorkerLost."""
        call = DecodeStub(channel).Attach()  # type: ignore[call-arg]  # the stubs lack the default: we write by hand
        await call.write(RouterMessage(hello=hello))
        writer = asyncio.create_task(self._write(call))
        try:
            async for message in call:
                for delta in message.deltas:
                    mailbox = self._mailboxes.get(delta.request_id)
                    if mailbox is None:
                        continue  # aborted meanwhile
                    if delta.finish_reason:
                        del self._mailboxes[delta.request_id]
                    mailbox.put(delta)
            raise WorkerLost(f"decode worker {self._worker_id} ended its stream")
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            call.cancel()

    def close(self, error: Unavailable) -> None:
        """Close the stream: all current and future requests fail with the error."""
        self._lost = error
        self._has_room.set()
        mailboxes, self._mailboxes = self._mailboxes, {}
        for mailbox in mailboxes.values():
            mailbox.fail(error)

    def move(self, error: Unavailable) -> None:
        """Fail the requests that other workers can continue now with the error; the others go on waiting."""
        for mailbox in list(self._mailboxes.values()):
            if mailbox.may_move():
                mailbox.fail(error)

    def _send_abort(self, command_id: str) -> None:
        self._last_message(len(command_id)).abort.append(AbortCommand(request_id=command_id))

    def _last_message(self, num_bytes: int) -> RouterMessage:
        """Return the last unsent message, or a new one if `num_bytes` more would exceed the message limit.

        All commands that are submitted while the previous message is being sent share one message.
        """
        if not self._outgoing or self._outgoing[-1].num_bytes + num_bytes > MAX_MESSAGE_BYTES:
            self._outgoing.append(_Outgoing(RouterMessage()))
            self._wake.set()
        last = self._outgoing[-1]
        last.num_bytes += num_bytes
        self._unsent_bytes += num_bytes
        return last.message

    async def _write(self, call: StreamStreamCall[RouterMessage, WorkerMessage]) -> None:
        while True:
            await self._wake.wait()
            while self._outgoing:
                outgoing = self._outgoing.popleft()
                await call.write(outgoing.message)
                self._unsent_bytes -= outgoing.num_bytes
                self._has_room.set()
            self._wake.clear()
