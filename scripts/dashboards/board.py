"""A dashboard as data: sections of panels, and the selectors and forms of their queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ROUTERS = 'namespace=~"$namespace",service=~"$service"'  # all series of the chosen routers
MODELS = f'{ROUTERS},model_name=~"$model"'
WORKERS = f'{MODELS},worker=~"$worker"'  # of the chosen pool
INTERVAL = "[$__rate_interval]"
INFO = f"max by (worker, role) (baton:worker_info{{{WORKERS}}})"

Kind = Literal["timeseries", "stat"]


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel. The legend may have labels, such as {{worker}}."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. The unit is one of Grafana's ids."""

    title: str
    text: str
    unit: str
    queries: Sequence[Query]
    kind: Kind = "timeseries"
    stacked: bool = False
    good_from: float | None = None  # of a stat, which is then red below it
    good_below: float | None = None  # of a stat, which is then red from it on


@dataclass(frozen=True, slots=True)
class Section:
    """A row of panels under a title."""

    title: str
    panels: Sequence[Panel]
    is_collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable with given values, the first of which is the default."""

    name: str
    label: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    name: str  # of the file, and in the uid
    title: str
    text: str
    sections: Sequence[Section]
    choices: Sequence[Choice] = ()


def rate(name: str, selector: str = MODELS) -> str:
    """Return the rate of a counter, of each of its series."""
    return f"rate(baton:{name}{{{selector}}}{INTERVAL})"


def total(name: str, selector: str = MODELS, by: str = "") -> str:
    """Return the sum of a counter's rates. For counters of routers, which each count their own."""
    return f"sum{f' by ({by}) ' if by else ''}({rate(name, selector)})"


def of_workers(expression: str, by: str = "worker") -> str:
    """Return a value for each worker: several routers report the same one."""
    return f"max by ({by}) ({expression})"


def by_role(expression: str, aggregation: str = "sum") -> str:
    """Return the values of workers, aggregated by their role."""
    return f"{aggregation} by (role) ({of_workers(expression)} * on (worker) group_left (role) {INFO})"


def gauge(name: str, selector: str = WORKERS) -> str:
    """Return a gauge."""
    return f"baton:{name}{{{selector}}}"


def quantile(share: float, name: str, by: str = "") -> str:
    """Return a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) ({rate(f'{name}_bucket')}))"


def quantiles(name: str) -> tuple[Query, ...]:
    """Return queries for the quantiles of a histogram that panels show."""
    return tuple(Query(quantile(share, name), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))
