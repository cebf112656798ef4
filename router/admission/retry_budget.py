"""How often requests that busy workers refused may be sent again: not so often that it keeps the workers busy.

A share of the requests that come, saved up to a bound (the retry budget of Finagle, Twitter 2016).
"""

SHARE = 0.2  # of the requests
MOST_SAVED = 100.0


class RetryBudget:
    """Owns what is left."""

    def __init__(self) -> None:
        self._left = MOST_SAVED

    def note_request(self) -> None:
        """A request came, and is sent for the first time."""
        self._left = min(self._left + SHARE, MOST_SAVED)

    def take(self) -> bool:
        """Whether one may be sent again; counts it."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
