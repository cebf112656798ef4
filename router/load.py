"""What a worker has to do: its last report, and what this router sent that the report may not know of."""

from protos.worker_pb2 import WorkerLoad


class LoadEstimate:
    """Owns a worker's last load report and this router's requests there.

    A report may be older than a request that was sent just before it came, so the estimate is never below the
    router's own account; nor is it ever below the report plus what was sent since, for other routers' requests.
    """

    def __init__(self) -> None:
        self.reported = WorkerLoad()
        self._pending_tokens: dict[str, int] = {}  # by command: tokens to compute before its first token
        self._own_tokens = 0  # sum of the above
        self._sent_requests = 0  # since the report
        self._sent_tokens = 0

    def report(self, load: WorkerLoad) -> None:
        """The worker's news of itself."""
        self.reported = load
        self._sent_requests = self._sent_tokens = 0

    def add(self, command_id: str, num_tokens: int) -> None:
        """A request was sent that has so many tokens to compute there."""
        self._pending_tokens[command_id] = num_tokens
        self._own_tokens += num_tokens
        self._sent_requests += 1
        self._sent_tokens += num_tokens

    def computed(self, command_id: str) -> None:
        """The request's first token came: only decoding is left."""
        if command_id in self._pending_tokens:
            self._own_tokens -= self._pending_tokens[command_id]
            self._pending_tokens[command_id] = 0

    def remove(self, command_id: str) -> None:
        """The request is no longer there."""
        self._own_tokens -= self._pending_tokens.pop(command_id, 0)

    @property
    def num_own_requests(self) -> int:
        """This router's requests there."""
        return len(self._pending_tokens)

    @property
    def num_requests(self) -> int:
        """Requests running and waiting there."""
        reported = self.reported.num_running + self.reported.num_waiting
        return max(reported + self._sent_requests, self.num_own_requests)

    @property
    def num_queued_tokens(self) -> int:
        """Tokens to compute before all of them are decoding."""
        return max(self.reported.num_queued_tokens + self._sent_tokens, self._own_tokens)
