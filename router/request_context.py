"""A request's deadline, priority, fairness key and routing hints."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from baton.router.tracing.request_trace import RequestTrace

HintedPlan = Literal["local", "remote"]
PLANS: Mapping[str, HintedPlan] = {"local": "local", "remote": "remote"}
INT32_MAX = (1 << 31) - 1  # largest priority and largest count of tokens in the worker protocol


@dataclass(frozen=True, slots=True)
class RoutingHints:
    """The client's choice of workers, for pinning and debugging. An unknown worker is an error."""

    decode_worker: str | None = None  # id
    prefill_worker: str | None = None  # id; implies a remote plan
    plan: HintedPlan | None = None


NO_HINTS = RoutingHints()


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Options of a request that do not change its output."""

    hints: RoutingHints = NO_HINTS
    fairness_key: str = ""  # keys take turns in the queue; "" is a key too
    deadline_s: float | None = None  # of its last token, on the clock of `time.monotonic`; None: no deadline
    priority: int = 0  # lower is served earlier
    is_deferred: bool = False  # of a batch: served behind all interactive requests
    arrived_s: float = field(default_factory=time.monotonic, compare=False)
    tenant: str = ""  # shares bounds on a worker's threads; "": an anonymous client
    trace: RequestTrace | None = field(default=None, compare=False)  # None: it is not recorded
