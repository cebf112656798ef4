"""Who may use the console, and who may control workers there."""

from collections.abc import Mapping

from baton.router.auth.client import Gate
from baton.router.config import RouterConfig
from baton.rpc.status import Forbidden
from baton.settings.names import is_loopback

NEEDS_ADMIN = (
    "the console needs an admin key: one of --admin-api-key (of --api-key if that is not given), or one with "
    "`admin: true` in the file of --api-keys-file"
)

PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-real-ip")


class ConsoleAccess:
    """Checks of the console's requests. Without API keys, every client of the router may look at the state."""

    def __init__(self, gate: Gate, config: RouterConfig) -> None:
        self._gate = gate
        self._needs_key = config.needs_key
        self._is_local = is_loopback(config.host)

    def check_view(self, headers: Mapping[str, str]) -> None:
        """Raise Unauthenticated without a valid API key, Forbidden without an admin key."""
        client = self._gate.client(headers)
        if self._needs_key and (client.key is None or not client.key.is_admin):
            raise Forbidden(NEEDS_ADMIN)

    def can_control(self, headers: Mapping[str, str]) -> bool:
        """Return whether a viewer may control workers: with an admin key, or on this machine if there are no keys.

        Without keys, the host must be this machine by its own name: a page of another site, whose name was pointed to
        this machine's address, would otherwise be able to send requests. Proxies serve other machines.
        """
        if self._needs_key:
            return True
        is_here = self._is_local and is_loopback(host_name(headers.get("host", "")))
        return is_here and not any(name in headers for name in PROXY_HEADERS)

    def check_control(self, headers: Mapping[str, str]) -> None:
        """Raise as `check_view`, or Forbidden for what another site's page may have sent without a key."""
        self.check_view(headers)
        if self._needs_key:
            return  # a browser sends no key by itself
        if not self.can_control(headers):
            text = "without API keys, workers are controlled only from the router's own machine"
            raise Forbidden(f"{text}; with API keys {NEEDS_ADMIN}")
        origin = headers.get("origin", "")
        is_other = bool(origin) and origin.partition("://")[2] != headers.get("host")
        if is_other or headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Forbidden("the request comes from the page of another site")


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
