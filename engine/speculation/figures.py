"""Counters of speculative decoding."""

from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class SpeculationCounters:
    """Counts since the start of an engine."""

    num_drafts: int = 0  # drafts that were verified, each of one or more tokens
    num_draft_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)  # accepted tokens by their place in the draft
    drafting_s: float = 0.0  # time of the draft model or head; 0 for drafts that are looked up

    @property
    def num_accepted_tokens(self) -> int:
        """Drafted tokens that were right."""
        return sum(self.accepted_by_position)

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """Count a draft of `num_drafted` tokens, of which the first `num_accepted` were right."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        missing = num_drafted - len(self.accepted_by_position)
        self.accepted_by_position += [0] * missing
        for place in range(num_accepted):
            self.accepted_by_position[place] += 1

    def copy(self) -> "SpeculationCounters":
        """Return a copy that later drafts do not change."""
        return replace(self, accepted_by_position=list(self.accepted_by_position))
