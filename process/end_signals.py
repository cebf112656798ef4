"""Signals that end a serving command."""

import asyncio
import signal
from dataclasses import dataclass, field

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class EndSignals:
    """The events of two signals: the first stops the command in order, the second kills it."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    kill: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        """Install the handlers on the running event loop."""
        loop = asyncio.get_running_loop()
        for number in END_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                loop.add_signal_handler(number, self._take)

    def _take(self) -> None:
        (self.kill if self.stop.is_set() else self.stop).set()
