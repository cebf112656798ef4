"""What the planner may use, where its settings and the cluster change while it runs."""

from collections.abc import Callable

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.kubernetes.budget_reader import BudgetReader

OpenReader = Callable[[ScalingSettings], BudgetReader | None]  # None: there is no cluster that could be asked


class LiveBudget:
    """Owns the reader of a cluster's budget: another one for other settings. One call at a time."""

    def __init__(self, read: Callable[[], ScalingSettings], open_reader: OpenReader) -> None:
        """`read` says the operator's settings as they are now; who opens a reader may refuse the first ones."""
        self._read = read
        self._open_reader = open_reader
        self._settings = read()
        self._reader = open_reader(self._settings)

    def __call__(self) -> ScalingSettings:
        """The settings within what the cluster has, if it can be asked."""
        settings = self._read()
        if settings is not self._settings:
            self.close()
            self._settings, self._reader = settings, self._open_reader(settings)
        return settings if self._reader is None else self._reader.read().settings

    def close(self) -> None:
        """Ends the connections to the cluster."""
        if self._reader is not None:
            self._reader.close()
