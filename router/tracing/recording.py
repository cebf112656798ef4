"""Recording of requests: the decision which ones are recorded, and the export of their traces."""

import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from baton.router.auth.client import ANONYMOUS, Client
from baton.router.config import RouterConfig
from baton.router.tracing.request_trace import RequestTrace
from baton.router.tracing.timeline import Timeline
from baton.router.tracing.timeline_group import TimelineGroup
from baton.router.tracing.timelines import ANY_OWNER, TimelineQuery, Timelines
from baton.rpc.tracing.base import Tracer
from baton.rpc.tracing.context import TraceContext, new_span_id, new_trace_id, read_context
from baton.rpc.tracing.factory import open_tracer
from baton.settings.names import is_name

logger = logging.getLogger(__name__)

DEFAULT_TIMELINES = 1000


@dataclass(frozen=True, slots=True)
class Recording:
    """Traces of a router's requests; the sampled ones are exported."""

    tracer: Tracer | None  # None: nothing is exported
    timelines: Timelines | None  # None: none are kept
    group: TimelineGroup | None = None  # of the processes that share the ports; None: a single process

    def begin(
        self, operation: str, request_id: str, headers: Mapping[str, str], client: Client = ANONYMOUS
    ) -> RequestTrace | None:
        """Return the trace of a client's request with these headers or metadata; None if nothing of it is needed.

        The trace continues that in the headers, if there is one and the router exports traces.
        """
        parent = None if self.tracer is None else read_context(headers)
        trace_id = new_trace_id() if parent is None else parent.trace_id
        is_sampled = self.tracer is not None and self.tracer.is_sampled(trace_id, parent)
        if not is_sampled and self.timelines is None:
            return None
        context = TraceContext(trace_id, new_span_id(), is_sampled, "" if parent is None else parent.state)
        trace = RequestTrace(operation, request_id, context, parent, client.owner)
        if self.timelines is not None and request_id:
            self.timelines.begin(trace)
        return trace

    def end(self, trace: RequestTrace) -> None:
        """Export the trace of a request that has ended, and keep its timeline. Logs its own errors."""
        try:
            self._end(trace)
        except Exception:  # the request has its response
            logger.exception("the trace of %s is lost", trace.request_id)

    def _end(self, trace: RequestTrace) -> None:
        trace.close()
        if self.tracer is not None and trace.root.context.is_sampled:
            self.tracer.export(trace.recorder)
        if self.timelines is not None and trace.request_id:
            self.timelines.keep(trace)

    async def find(self, client: Client, request_id: str, begun_at: float | None = None) -> Timeline | None:
        """Return the timeline of a request, whichever process serves it; None if its tenant has none.

        A client with an admin key finds the requests of all tenants: by a time any of them, without one its own first.
        `begun_at`: Unix time, to choose among requests with the same id; None: the one that began last.
        """
        if not is_name(request_id):
            return None
        owners = [client.owner]
        if client.key is not None and client.key.is_admin:
            owners = [ANY_OWNER] if begun_at is not None else [client.owner, ANY_OWNER]
        for owner in owners:
            timeline = await self._find(TimelineQuery(owner, request_id, begun_at))
            if timeline is not None:
                return timeline
        return None

    async def _find(self, query: TimelineQuery) -> Timeline | None:
        if self.group is not None:
            return await self.group.find(query)
        return None if self.timelines is None else self.timelines.find(query)

    async def __aenter__(self) -> "Recording":
        if self.group is not None:
            await self.group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Export what is queued."""
        if self.group is not None:
            await self.group.__aexit__(kind, error, trace)
        if self.tracer is not None:
            await self.tracer.close()


def open_recording(config: RouterConfig) -> Recording | None:
    """Return what the options ask for; None if they ask for nothing. Raises MissingExtra."""
    num_timelines = config.keep_timelines
    if num_timelines is None:
        num_timelines = 0 if config.otlp_traces_endpoint is None else DEFAULT_TIMELINES
    if config.otlp_traces_endpoint is None and not num_timelines:
        return None
    instance = socket.gethostname() if config.process is None else f"{socket.gethostname()}-{config.process}"
    tracer = open_tracer(config.otlp_traces_endpoint, "baton-router", instance, config.trace_sample_ratio)
    if not num_timelines:
        return Recording(tracer, None)
    timelines, group = Timelines(num_timelines), None
    if config.process is not None and config.group_dir is not None:
        group = TimelineGroup(Path(config.group_dir), config.process, config.processes, timelines)
    return Recording(tracer, timelines, group)
