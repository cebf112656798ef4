"""The signals by which a command that serves is told to end."""

import asyncio
import signal
from dataclasses import dataclass, field

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class EndSignals:
    """The first signal asks for an end, the second for one at once."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    kill: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        """Takes the signals of the running event loop's process."""
        loop = asyncio.get_running_loop()
        for number in END_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
                loop.add_signal_handler(number, self._take)

    def _take(self) -> None:
        (self.kill if self.stop.is_set() else self.stop).set()
