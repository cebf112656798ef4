"""Result of one run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load import percentile
from benchmarks.routing.topology import Topology
from benchmarks.routing.workers.counts import WorkerCounts
from benchmarks.routing.workload import Workload


@dataclass(frozen=True, slots=True)
class RunResult:
    """Metrics of a run."""

    hit_rate: float  # fraction of prompt tokens that were cached; NaN if a request failed
    ttft_s: list[float]
    load_max_over_mean: float  # of the engines' busy time within their pool; pools are weighted by busy time
    requests_max_over_mean: float
    busy_share: float  # of the engines' time
    max_lag_s: float
    num_failed: int

    def ttft_ms(self, percent: int) -> float:
        """Return a percentile of TTFT in ms."""
        return percentile(self.ttft_s, percent) * 1000


def summarise(
    topology: Topology, workload: Workload, counts: Sequence[WorkerCounts], ttft_s: list[float], elapsed_s: float,
    num_failed: int = 0,
) -> RunResult:  # fmt: skip
    """Summarize a run of `workload`."""
    prefilled = sum(each.prefilled_tokens for each in counts)
    pools = topology.pools.values()
    return RunResult(
        hit_rate=math.nan if num_failed else 1 - prefilled / workload.num_prompt_tokens,
        ttft_s=ttft_s,
        load_max_over_mean=_max_over_mean([[counts[i].busy_s for i in pool] for pool in pools]),
        requests_max_over_mean=_max_over_mean([[counts[i].requests for i in pool] for pool in pools]),
        busy_share=sum(each.busy_s for each in counts) / len(counts) / elapsed_s,
        max_lag_s=max(each.max_lag_s for each in counts),
        num_failed=num_failed,
    )


def _max_over_mean(pools: Sequence[Sequence[float]]) -> float:
    total = sum(sum(pool) for pool in pools)
    return sum(max(pool) * len(pool) for pool in pools) / total if total else 1.0
