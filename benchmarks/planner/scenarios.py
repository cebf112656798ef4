"""Traffic and machines of the comparison."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from baton.deployment.autoscaling.settings import SLO
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.study.reader import read_trace
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.trace_request import TraceRequest
from benchmarks.planner.traffic import Lengths, Workload, bursts, day, steady

DATA = Path(__file__).parent.parent / "data"
BLOCK_SIZE = 64  # larger blocks are faster to simulate
SMALL = Machine().with_block_size(BLOCK_SIZE)
LARGE = Machine(
    spec=WorkerSpec(step_s=0.020, sequence_s=0.0003, prefill_tokens_per_s=8000.0, num_blocks=16384)
).with_block_size(BLOCK_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A trace, a replica and the SLO."""

    name: str
    requests: Callable[[int], list[TraceRequest]]  # by seed
    machine: Machine
    slo: SLO
    start: int = 2  # replicas of each pool at the start
    workload: Workload | None = None  # of single turns at a known rate, for the oracle; None: the rate is not known


def _trace(file: str, rate_scale: float, seed: int) -> list[TraceRequest]:
    return read_trace(DATA / file, block_size=BLOCK_SIZE, rate_scale=rate_scale, seed=seed)


def _synthetic(workload: Workload) -> Callable[[int], list[TraceRequest]]:
    return lambda seed: workload.requests(seed, BLOCK_SIZE)


CHAT = Workload(
    seconds=1200, rate=steady(10), prompt=Lengths(300, 1.5), output=Lengths(250, 1), num_turns=5, num_shared_tokens=640
)
BURSTS = Workload(seconds=2400, rate=bursts(3, 9, 1200), prompt=Lengths(1200, 1.2), output=Lengths(250, 1))
DAY = Workload(seconds=14400, rate=day(2.5, 14400), prompt=Lengths(1200, 1.2), output=Lengths(250, 1))
SCENARIOS = [
    Scenario(name="azure", requests=partial(_trace, "azure_conv.csv", 1.0), machine=LARGE, slo=SLO()),
    Scenario(name="azure, 2 x", requests=partial(_trace, "azure_conv.csv", 2.0), machine=LARGE, slo=SLO()),
    Scenario(
        name="mooncake", requests=partial(_trace, "mooncake_conversation.csv", 1.0), machine=SMALL, slo=SLO(ttft_s=4)
    ),
    Scenario(name="chat", requests=_synthetic(CHAT), machine=LARGE, slo=SLO()),
    Scenario(
        name="code completion",
        requests=_synthetic(Workload(seconds=1200, rate=steady(8), prompt=Lengths(3000, 0.8), output=Lengths(40, 1))),
        machine=LARGE,
        slo=SLO(),
    ),
    Scenario(
        name="reasoning",
        requests=_synthetic(Workload(seconds=600, rate=steady(2), prompt=Lengths(400, 1), output=Lengths(1500, 1))),
        machine=LARGE,
        slo=SLO(),
    ),
    Scenario(name="bursts", requests=_synthetic(BURSTS), machine=LARGE, slo=SLO(), workload=BURSTS),
    Scenario(name="day", requests=_synthetic(DAY), machine=LARGE, slo=SLO(), workload=DAY),
]
