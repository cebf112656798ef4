"""States of the supervised processes, for `/workers` and `/metrics`."""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from baton.process.states import ProcessState, read_states
from baton.router.config import RouterConfig
from baton.router.metrics.metrics import PREFIX

NAME_LABEL = "name"


class ProcessStates(Collector):
    """Collector that reads the states at each scrape. Without a supervisor there are none."""

    def __init__(self, config: RouterConfig) -> None:
        self._paths = [Path(path) for path in config.process_states]

    def read(self) -> list[ProcessState]:
        """Return the states of all processes."""
        return [state for path in self._paths for state in read_states(path)]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yield the series of all processes."""
        up = GaugeMetricFamily(
            f"{PREFIX}process_up", "1 for a supervised process that is ready, 0 while it is not.", labels=(NAME_LABEL,)
        )
        restarts = CounterMetricFamily(
            f"{PREFIX}process_restarts", "Restarts of a supervised process.", labels=(NAME_LABEL,)
        )
        for state in self.read():
            up.add_metric((state.name,), state.state == "ready")
            restarts.add_metric((state.name,), state.num_restarts)
        yield from (family for family in (up, restarts) if family.samples)
