"""Listener that reports a cluster's state to the program that started it, and keeps a detached server's record."""

from baton.deployment.local.detached.server import DetachedServer
from baton.deployment.local.events import ClusterReady, Died, Ending, Event, Listener, Progressed
from baton.process.progress import Loading, Ready
from baton.process.service_manager import ServiceManager


class ServiceReport:
    """Reports of one cluster; `record` is None unless the server is detached."""

    def __init__(self, manager: ServiceManager, record: DetachedServer | None = None) -> None:
        self._manager = manager
        self.record = record

    def is_starting(self, model: str, url: str, drain_timeout_s: float) -> None:
        """Record the model, by its name for clients, the URL, and how long a shutdown waits for requests."""
        if self.record is not None:
            self.record.is_starting(model, url, drain_timeout_s)

    def and_to(self, listener: Listener) -> Listener:
        """Return a listener that passes each event on to another one, and reports it."""

        def show(event: Event) -> None:
            listener(event)
            self._report(event)

        return show

    def _report(self, event: Event) -> None:
        match event:
            case ClusterReady(url):
                if self.record is not None:
                    self.record.is_ready()
                self._manager.ready(f"Serving at {url}")
            case Ending():
                if self.record is not None:
                    self.record.is_stopping()
                self._manager.stopping()
            case Progressed(name, Loading(fraction)):
                self._manager.status(f"{name}: {fraction:.0%} loaded")
            case Progressed(name, Ready()):
                self._manager.status(f"{name}: ready")
            case Died(name, reason):
                self._manager.status(f"{name}: {reason}; restarting")
