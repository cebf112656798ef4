"""The trace of one request at the router.

1. A front end begins it with the client's context, if any (`Recording.begin`). The root span lasts until the response
   is generated.
2. `admission`: until the request leaves the queue. `tokenize`: until its prompt and limits are known.
3. For each completion and attempt: `plan`, and `attempt`, whose context the decode worker's spans continue
   (`CompletionTrace`).
4. The front end ends it, and `Recording` exports it and keeps its timeline.

Attributes have counts, times, names of workers and of the model, but never text of the prompt, the output or a key.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from baton.engine.errors import QueueFull
from baton.protos.worker_pb2 import TimedSpan
from baton.router.errors import KeyLimitReached
from baton.rpc.status import DeadlineExceeded, Unavailable
from baton.rpc.tracing.context import TraceContext
from baton.rpc.tracing.span import Span, SpanRecorder

HTTP_STATUS, GRPC_STATUS = "http.response.status_code", "rpc.response.status_code"
CLIENT_GONE = "client_gone"  # an event of the root
CHAT, TEXT_COMPLETION, EMBEDDINGS = "chat", "text_completion", "embeddings"  # gen_ai.operation.name


@dataclass(frozen=True, slots=True)
class WorkerTiming:
    """A worker's span, which starts some time after its attempt."""

    attempt: Span
    timing: TimedSpan


class RequestTrace:
    """The spans of one request, and the timings that its workers returned."""

    def __init__(
        self, operation: str, request_id: str, context: TraceContext, parent: TraceContext | None, owner: str = ""
    ) -> None:
        """`operation`: by the semantic conventions for generative AI, such as chat. `owner`: may see the timeline."""
        self.request_id = request_id
        self.owner = owner
        self.recorder = SpanRecorder(operation, context, parent)
        self.root = self.recorder.root
        self.model = ""  # empty: the request named none that is served
        self.worker_timings: list[WorkerTiming] = []
        self.root.attributes |= {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "baton",
            "gen_ai.request.id": request_id,
        }
        self._admission: Span | None = None
        self._finish_reasons: list[str] = []
        self._first_s: float | None = None  # until the first token of any completion

    @property
    def begun_at(self) -> float:
        """Unix time at which the request began."""
        return self.root.begun_s + self.recorder.wall_offset_s

    @property
    def exemplar(self) -> str | None:
        """The trace's id for exemplars of metrics; None if it is not exported."""
        return f"{self.root.context.trace_id:032x}" if self.root.context.is_sampled else None

    def wait(self, model: str) -> None:
        """Begin the wait for admission to a served model."""
        self.model = model
        self.root.name = f"{self.root.name} {model}"
        self.root.attributes |= {"gen_ai.request.model": model, "gen_ai.response.model": model}
        self._admission = self.recorder.begin("admission")

    @contextmanager
    def step(self, name: str) -> Iterator[Span]:
        """Begin a step of the request, which ends with the block. The first one ends the wait for admission."""
        if self._admission is not None:
            self._admission.end()
        with self.recorder.span(name) as span:
            yield span

    def note_cached(self, num_tokens: int) -> None:
        """Add prompt tokens that no worker had to compute."""
        self._add("gen_ai.usage.cache_read.input_tokens", num_tokens)

    def note_prompt(self, num_tokens: int, max_tokens: int | None = None, num_completions: int = 1) -> None:
        """Add a prompt; its options are those of all prompts of the request. `max_tokens`: None: of embeddings."""
        self._add("gen_ai.usage.input_tokens", num_tokens)
        if max_tokens is not None:
            self.root.attributes["gen_ai.request.max_tokens"] = max_tokens
        if num_completions > 1:
            self.root.attributes["gen_ai.request.choice.count"] = num_completions

    def note_completion(self, reason: str, num_tokens: int, first_s: float) -> None:
        """Add a completion that ended. `first_s`: monotonic time of its first token, if it has any tokens."""
        self._finish_reasons.append(reason)
        self._add("gen_ai.usage.output_tokens", num_tokens)
        if num_tokens:
            waited_s = first_s - self.root.begun_s
            self._first_s = waited_s if self._first_s is None else min(self._first_s, waited_s)
            for name in ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token"):
                self.root.attributes[name] = self._first_s

    def note_failure(self, error: Exception, status: int | str | None = None) -> None:
        """Record the error that ends the request. `status`: of the HTTP response, or the name of a gRPC code."""
        self.root.fail(type(error).__name__, reason_of(error))
        if status is not None:
            self.root.attributes[HTTP_STATUS if isinstance(status, int) else GRPC_STATUS] = status

    def note_client_gone(self) -> None:
        """Record that the client has disconnected or cancelled the request."""
        self.root.event(CLIENT_GONE)

    @property
    def is_client_gone(self) -> bool:
        """Whether the client has disconnected or cancelled the request."""
        return any(event.name == CLIENT_GONE for event in self.root.events)

    def close(self) -> None:
        """End all spans."""
        if self._finish_reasons:
            self.root.attributes["gen_ai.response.finish_reasons"] = tuple(self._finish_reasons)
        self.root.end()
        self.root.attributes["gen_ai.latency.e2e"] = self.root.duration_s
        self.recorder.end()

    def _add(self, name: str, num_tokens: int) -> None:
        known = self.root.attributes.get(name, 0)
        assert isinstance(known, int)
        self.root.attributes[name] = known + num_tokens


def reason_of(error: BaseException) -> str:
    """Return an error's text if it is about the cluster; empty for others, which may quote the request."""
    if isinstance(error, KeyLimitReached) or not isinstance(error, Unavailable | QueueFull | DeadlineExceeded):
        return ""
    return str(error)
