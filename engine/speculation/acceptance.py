"""How often a request's drafted tokens are right, and when to try again after they were not."""

from dataclasses import dataclass

PRIOR = 0.5  # acceptance of a request without drafts yet
DECAY = 0.9  # of a draft's weight with each later draft
LASTING = 0.99  # the same, for the drafts of all requests
SHARED_WEIGHT = 4.0  # drafted tokens of others that count at the beginning of a request
FIRST_INTERVAL, LAST_INTERVAL = 32, 512  # drafts that are left out between two probes


@dataclass(slots=True)
class Acceptance:
    """Measured acceptance of a request's drafted tokens. Recent drafts count most."""

    num_left_out: int = 0  # consecutive drafts of which no token was verified
    _tested: float = 1.0  # decayed: tokens whose predecessors in the draft were right
    _accepted: float = PRIOR
    _interval: int = FIRST_INTERVAL
    _decay: float = DECAY

    @classmethod
    def of_all(cls) -> "Acceptance":
        """Return the acceptance of all requests' drafts together, which changes slowly."""
        return cls(_tested=SHARED_WEIGHT, _accepted=PRIOR * SHARED_WEIGHT, _decay=LASTING)

    def of_another(self) -> "Acceptance":
        """Return the acceptance with which another request begins if its drafts are likely to be as good."""
        return Acceptance(_tested=SHARED_WEIGHT, _accepted=self.rate * SHARED_WEIGHT)

    @property
    def rate(self) -> float:
        """Probability that a drafted token is right if those before it are."""
        return self._accepted / self._tested

    @property
    def is_probe_due(self) -> bool:
        """Whether one token of the next draft should be verified at any price."""
        return self.num_left_out >= self._interval

    def leave_out(self, num_drafts: int = 1) -> None:
        """Note drafts of which no token was verified."""
        self.num_left_out += num_drafts

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """Note that the first `num_accepted` of `num_drafted` tokens were right.

        Probes become rarer as long as they fail. One that is right counts as much as all drafts before it.
        """
        decay = self._decay
        if not self.is_probe_due or num_accepted:
            self._interval = FIRST_INTERVAL
        else:
            self._interval = min(2 * self._interval, LAST_INTERVAL)
        if self.is_probe_due and num_accepted:
            decay = min(decay, num_accepted / self._tested)
        self.num_left_out = 0
        self._tested = decay * self._tested + min(num_accepted + 1, num_drafted)
        self._accepted = decay * self._accepted + num_accepted
