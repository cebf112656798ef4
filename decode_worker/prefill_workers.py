"""The prefill workers that a request's plan names, asked one after the other."""

from baton.decode_worker.decode_request import DecodeRequest
from baton.engine.scheduling.schedule import Received
from baton.protos import worker_pb2

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
