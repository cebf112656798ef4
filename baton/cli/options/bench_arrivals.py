"""The options of `baton bench` that say when requests are sent, and how many."""

from typing import Any

import click

from baton.cli.options.flag_group import Flags, flag_group
from baton.loadtool.arrivals import Arrivals, MaxConcurrency, RequestRate, TraceTimes
from baton.loadtool.errors import SettingError
from baton.loadtool.plan import Limits

DEFAULT_NUM_PROMPTS = 1000


class NumberList(click.ParamType[Any]):
    """Numbers with commas between: `1,2,4`."""

    name = "N,..."

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads them; click calls it with the option's text, or with what it made of it before."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._kind(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} must be a number, or several like 1,2,4", param, ctx)


def _make_arrivals(flags: Flags) -> list[Arrivals]:
    """The loads of a sweep, in their order; none if nothing was said."""
    rates, clients, scale = flags["request_rate"], flags["max_concurrency"], flags["time_scale"]
    given = [name for name in ("request_rate", "max_concurrency", "time_scale") if flags[name] is not None]
    if len(given) > 1:
        names = " and ".join("--" + name.replace("_", "-") for name in given)
        raise SettingError(f"{names}: each says when to send, give one of them")
    if flags["burstiness"] != 1 and rates is None:
        raise SettingError("--burstiness goes with --request-rate")
    if rates is not None:
        return [RequestRate(rate, flags["burstiness"]) for rate in rates]
    if clients is not None:
        return [MaxConcurrency(count) for count in clients]
    return [TraceTimes(scale)] if scale is not None else []


def _make_limits(flags: Flags) -> Limits:
    num_prompts, duration_s = flags["num_prompts"], flags["duration_s"]
    return Limits(num_prompts or (None if duration_s is not None else DEFAULT_NUM_PROMPTS), duration_s)


length_flags = flag_group(
    "limits",
    _make_limits,
    click.option(
        "--num-prompts",
        type=click.IntRange(1),
        help=f"Requests a run [{DEFAULT_NUM_PROMPTS}; with --duration no limit].",
    ),
    click.option(
        "--duration", "duration_s", type=click.FloatRange(0, min_open=True), help="Seconds for which to send."
    ),
    panel="Length of a run",
)

arrival_flags = flag_group(
    "arrivals",
    _make_arrivals,
    click.option(
        "--request-rate",
        type=NumberList(float),
        help="Open loop: requests a second (inf: all at once); a list is a sweep.",
    ),
    click.option(
        "--burstiness",
        type=float,
        default=1.0,
        show_default=True,
        help="Of --request-rate: 1 is Poisson, less is more bursty, more is more even.",
    ),
    click.option(
        "--max-concurrency",
        type=NumberList(int),
        help="Closed loop: so many clients that each ask again at once; a list is a sweep.",
    ),
    click.option(
        "--time-scale", type=float, help="Open loop at the trace's own times, multiplied by this [1 for a trace]."
    ),
    panel="Load",
)
