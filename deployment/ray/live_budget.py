"""Scaling settings and GPU budget that may change while the planner runs."""

from collections.abc import Callable

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.kubernetes.budget_reader import BudgetReader

OpenReader = Callable[[ScalingSettings], BudgetReader | None]  # None: no cluster to read from


class LiveBudget:
    """Owner of the cluster's budget reader, which it reopens when the settings change. Not thread-safe."""

    def __init__(self, read: Callable[[], ScalingSettings], open_reader: OpenReader) -> None:
        """Open a reader for the current settings. `read` returns these; `open_reader` may raise for invalid ones."""
        self._read = read
        self._open_reader = open_reader
        self._settings = read()
        self._reader = open_reader(self._settings)

    def __call__(self) -> ScalingSettings:
        """Return the current settings, with the budget limited to the cluster's free capacity if it can be read."""
        settings = self._read()
        if settings is not self._settings:
            self.close()
            self._settings, self._reader = settings, self._open_reader(settings)
        return settings if self._reader is None else self._reader.read().settings

    def close(self) -> None:
        """Close the connections to the cluster."""
        if self._reader is not None:
            self._reader.close()
