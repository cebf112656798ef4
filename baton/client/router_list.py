"""Routers of one cluster, in the order to try."""

import time
from collections.abc import Sequence

import httpx

AVOIDED_S = 10.0  # a router that failed this recently is tried last


class RouterList:
    """Addresses of further routers, and the time at which each router last failed."""

    def __init__(self, base_urls: Sequence[str | httpx.URL]) -> None:
        """Raise ValueError for a URL with a path other than `/` or `/v1`."""
        self._others = [_origin(httpx.URL(url)) for url in base_urls]
        self._lost_s: dict[httpx.URL, float] = {}

    def choose(self, url: httpx.URL, num_losses: int) -> httpx.URL:
        """Return a request's URL at the next router, round-robin by `num_losses`; recently failed routers come last."""
        own = _origin(url, is_base=False)
        ring = [own, *(each for each in self._others if each != own)]
        first = num_losses % len(ring)
        ring = ring[first:] + ring[:first]
        since_s = time.monotonic() - AVOIDED_S
        chosen = min(ring, key=lambda each: max(since_s, self._lost_s.get(each, since_s)))
        return url.copy_with(scheme=chosen.scheme, host=chosen.host, port=chosen.port)

    def num_routers(self, url: httpx.URL) -> int:
        """Return the number of routers that can serve a request with this URL."""
        return len({_origin(url, is_base=False), *self._others})

    def lose(self, url: httpx.URL) -> None:
        """Prefer other routers for `AVOIDED_S`."""
        self._lost_s[_origin(url, is_base=False)] = time.monotonic()


def _origin(url: httpx.URL, is_base: bool = True) -> httpx.URL:
    if is_base and (not url.host or url.path.rstrip("/") not in ("", "/v1")):
        raise ValueError(f"a router's URL must be like http://host:8000, not {str(url)!r}")
    return httpx.URL(scheme=url.scheme, host=url.host, port=url.port)
