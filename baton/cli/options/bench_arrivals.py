"""Options of `baton bench` for the arrival process and the number of requests."""

from typing import Any

import click

from baton.cli.options.flag_group import Flags, flag_group
from baton.loadtool.arrivals import Arrivals, MaxConcurrency, RequestRate, TraceTimes
from baton.loadtool.errors import SettingError
from baton.loadtool.plan import Limits

DEFAULT_NUM_PROMPTS = 1000


class NumberList(click.ParamType[Any]):
    """Comma-separated numbers: `1,2,4`."""

    name = "N,..."

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the option's text; click may also pass a value that was converted before."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._kind(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} must be a number, or a list like 1,2,4", param, ctx)


def _make_arrivals(flags: Flags) -> list[Arrivals]:
    """Return the arrivals of each run of a sweep, in order; empty if none of the options is set."""
    rates, clients, scale = flags["request_rate"], flags["max_concurrency"], flags["time_scale"]
    given = [name for name in ("request_rate", "max_concurrency", "time_scale") if flags[name] is not None]
    if len(given) > 1:
        names = " and ".join("--" + name.replace("_", "-") for name in given)
        raise SettingError(f"{names} are mutually exclusive; give one of them")
    if flags["burstiness"] != 1 and rates is None:
        raise SettingError("--burstiness needs --request-rate")
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
        help=f"Requests per run [default: {DEFAULT_NUM_PROMPTS}; unlimited with --duration].",
    ),
    click.option(
        "--duration", "duration_s", type=click.FloatRange(0, min_open=True), help="Seconds to send requests for."
    ),
    panel="Length of a run",
)

arrival_flags = flag_group(
    "arrivals",
    _make_arrivals,
    click.option(
        "--request-rate",
        type=NumberList(float),
        help="Open loop: requests per second (inf: all at once). A list runs a sweep.",
    ),
    click.option(
        "--burstiness",
        type=float,
        default=1.0,
        show_default=True,
        help="Burstiness of --request-rate: 1 is Poisson, below 1 is burstier, above 1 is more uniform.",
    ),
    click.option(
        "--max-concurrency",
        type=NumberList(int),
        help="Closed loop: number of concurrent requests. A list runs a sweep.",
    ),
    click.option(
        "--time-scale", type=float, help="Open loop: replay the trace's times multiplied by this [default: 1]."
    ),
    panel="Load",
)
