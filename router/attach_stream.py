"""The one stream between this router and a decode worker: commands out, one message an engine step in."""

import asyncio
from collections import deque
from collections.abc import Callable

from grpc.aio import Channel, StreamStreamCall

from baton.protos.worker_pb2 import AbortCommand, GenerateCommand, Hello, RouterMessage, WorkerMessage
from baton.protos.worker_pb2_grpc import DecodeStub
from baton.router.errors import WorkerLost
from baton.router.mailbox import Mailbox
from baton.rpc.status import Unavailable

MAX_MESSAGE_TOKENS = 1 << 16  # a message with more tokens of prompts than this takes no further command


class AttachStream:
    """Owns the mailboxes of this router's requests at one decode worker, in one life of it."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._mailboxes: dict[str, Mailbox] = {}
        # Bounded by the router's bound on requests: one command and at most one abort each.
        self._outgoing: deque[RouterMessage] = deque()
        self._num_last_tokens = 0  # of the last message's prompts
        self._wake = asyncio.Event()
        self._lost: Unavailable | None = None

    def submit(
        self, command: GenerateCommand, patient: bool = False, note_tokens: Callable[[int], None] = lambda _: None
    ) -> Mailbox:
        """Sends a request; its news come to the mailbox. Raises what the stream was closed with, if it was.

        `patient`: nobody needs the news between the first and the last as they come; `note_tokens` does all the same.
        """
        if self._lost is not None:
            raise self._lost
        mailbox = self._mailboxes[command.request_id] = Mailbox(patient, note_tokens)
        self._last_message().generate.append(command)
        self._num_last_tokens += len(command.token_ids)
        return mailbox

    def abort(self, command_id: str) -> None:
        """Cancels a request if it has not ended; nothing of it is delivered any more."""
        if self._mailboxes.pop(command_id, None) is not None and self._lost is None:
            self._last_message().abort.append(AbortCommand(request_id=command_id))

    async def run(self, channel: Channel, hello: Hello) -> None:
        """Runs the stream to its end, which is always an error: AioRpcError or WorkerLost."""
        call = DecodeStub(channel).Attach()  # type: ignore[call-arg]  # the stubs lack the default: we write by hand
        await call.write(RouterMessage(hello=hello))
        writer = asyncio.create_task(self._write(call))
        try:
            async for message in call:
                for delta in message.deltas:
                    mailbox = self._mailboxes.get(delta.request_id)
                    if mailbox is None:
                        continue  # aborted while this was on its way
                    if delta.finish_reason:
                        del self._mailboxes[delta.request_id]
                    mailbox.put(delta)
            raise WorkerLost(f"decode worker {self._worker_id} ended its stream")
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            call.cancel()

    def close(self, error: Unavailable) -> None:
        """No request goes on: every one, and any to come, fails with the error."""
        self._lost = error
        mailboxes, self._mailboxes = self._mailboxes, {}
        for mailbox in mailboxes.values():
            mailbox.fail(error)

    def _last_message(self) -> RouterMessage:
        """The message that is sent last; all commands that come while the one before is sent share it."""
        if not self._outgoing or self._num_last_tokens > MAX_MESSAGE_TOKENS:
            self._outgoing.append(RouterMessage())
            self._num_last_tokens = 0
            self._wake.set()
        return self._outgoing[-1]

    async def _write(self, call: StreamStreamCall[RouterMessage, WorkerMessage]) -> None:
        while True:
            await self._wake.wait()
            while self._outgoing:
                await call.write(self._outgoing.popleft())
            self._wake.clear()
