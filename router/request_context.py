"""What a request says of itself beside its options: for how long, for whom, and by which workers."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

HintedPlan = Literal["local", "remote"]
PLANS: Mapping[str, HintedPlan] = {"local": "local", "remote": "remote"}


@dataclass(frozen=True, slots=True)
class RoutingHints:
    """Wishes of the client, for pinning and debugging; a worker that is not there is an error, not ignored."""

    decode_worker: str | None = None  # id
    prefill_worker: str | None = None  # id; implies a remote plan
    plan: HintedPlan | None = None


NO_HINTS = RoutingHints()


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Whose request it is, and until when it is wanted."""

    hints: RoutingHints = NO_HINTS
    fairness_key: str = ""  # requests of one key wait behind each other, not behind other keys'; "" is a key too
    timeout_s: float | None = None  # from its arrival to its last token; None: no limit
    priority: int = 0  # lower is served earlier
    arrived_s: float = field(default_factory=time.monotonic, compare=False)  # by `time.monotonic`
