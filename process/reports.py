"""Processes that a supervisor restarts, as a router reports them."""

from collections.abc import Mapping
from dataclasses import dataclass

RECENT_S = 600.0


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One process; a router of another version may leave fields out."""

    process: Mapping[str, object]

    @property
    def name(self) -> str:
        """Its name: a worker's id, or router, router-0, rendezvous."""
        return str(self.process.get("name"))

    @property
    def is_down(self) -> bool:
        """Whether it died and does not serve again yet."""
        return self.process.get("last_end") is not None and self.process.get("state") != "ready"

    @property
    def died_recently(self) -> bool:
        """Whether it died in the last ten minutes."""
        return 0 <= self._number("last_end_s_ago") < RECENT_S

    def describe(self) -> str:
        """Return its last death and what follows, in words; nothing for a process that never died."""
        if self.process.get("last_end") is None:
            return ""
        text = f"{self.name}: {self.process.get('last_end')} {self._number('last_end_s_ago'):.0f} s ago"
        if not self.is_down:
            return f"{text}, serves again; restarts: {self._number('restarts'):.0f}"
        if (num_deaths := self._number("deaths_in_a_row")) > 1:
            text += f", death {num_deaths:.0f} in a row"
        if self.process.get("state") == "waiting":
            return f"{text}; starts again in {max(0.0, self._number('next_start_in_s')):.0f} s"
        return f"{text}; is starting again"

    def _number(self, name: str) -> float:
        value = self.process.get(name)
        return float(value) if isinstance(value, int | float) else -1.0


def process_reports(content: object) -> list[ProcessReport]:
    """Return the processes of a /workers response; none without a supervisor."""
    match content:
        case {"processes": list() as processes}:
            return [ProcessReport(each) for each in processes if isinstance(each, Mapping)]
    return []
