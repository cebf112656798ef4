"""The autoscaler's last plan: the sizes of the pools and the reasons for them.

Redis may hold texts that no autoscaler wrote, so every field has bounds, as in `router_report.py`.
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated

import orjson
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from baton.membership.registry.router_report import MAX_MODEL_CHARS, MAX_SHOWN_CHARS, Count, Name, Seconds

MAX_REASON_CHARS = 4096
MAX_PLANS = 100  # plans that a router reads, one for each application

Factor = Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)]


def _check_printable(text: str) -> str:
    """Return the text. Raises ValueError if it could control a terminal."""
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One pool's part of a plan, in replicas."""

    target: Count  # what the autoscaler has asked for
    needed: Count  # what the model says the traffic needs
    factor: Factor  # of the measured latencies, with which the model multiplies a replica's times


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """The plan of one application at one time."""

    application: Name
    model: Annotated[str, Field(max_length=MAX_MODEL_CHARS)]
    time_s: Seconds  # Unix time
    prefill: PoolPlan
    decode: PoolPlan
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS), AfterValidator(_check_printable)]


def encode_plan(plan: PlanReport) -> str:
    """Return a plan as JSON."""
    return orjson.dumps(plan).decode()


def decode_plan(text: str) -> PlanReport:
    """Return the plan in a JSON text, without fields of later versions. Raises ValueError if it is none."""
    try:
        return _adapter().validate_json(text.encode(errors="surrogateescape"))
    except ValidationError as error:
        first = error.errors()[0]
        field_path = ".".join(map(str, first["loc"]))[:MAX_SHOWN_CHARS]
        raise ValueError(f"{text[:MAX_SHOWN_CHARS]!r} is no plan: {field_path}: {first['msg']}") from error


@cache
def _adapter() -> TypeAdapter[PlanReport]:
    """Return the adapter, made on first use."""
    return TypeAdapter(PlanReport)
