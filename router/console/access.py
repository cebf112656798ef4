"""Access to the console, and to its controls of workers."""

from collections.abc import Mapping

from baton.router.auth.client import Gate
from baton.router.config import RouterConfig
from baton.rpc.status import Forbidden
from baton.settings.names import is_loopback

NEEDS_ADMIN = (
    "the console needs an admin key: one of --admin-api-key (of --api-key if that is not given), or one with "
    "`admin: true` in the file of --api-keys-file"
)

PROXY_HEADERS = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip")


class ConsoleAccess:
    """Checks of the console's requests. Without API keys, every client of the router may see the state."""

    def __init__(self, gate: Gate, config: RouterConfig) -> None:
        self._gate = gate
        self._needs_key = config.needs_key
        self._is_local = is_loopback(config.host)

    def check_view(self, headers: Mapping[str, str]) -> None:
        """Raise Unauthenticated without a valid API key, Forbidden without an admin key.

        Without API keys, raise Forbidden for what another site's page sent: it would take a viewer's place, and
        read the state if that site may call the API. A browser sends no key by itself.
        """
        client = self._gate.client(headers)
        if self._needs_key and (client.key is None or not client.key.is_admin):
            raise Forbidden(NEEDS_ADMIN)
        if not self._needs_key and _is_foreign(headers):
            raise Forbidden("the request comes from the page of another site")

    def can_control(self, headers: Mapping[str, str]) -> bool:
        """Return whether a viewer may control workers: with an admin key, or on this machine if there are no keys.

        Without keys, the host must be this machine by its own name: a page of another site, whose name was pointed to
        this machine's address, would otherwise be able to send requests. Proxies serve other machines.
        """
        if self._needs_key:
            return True
        is_here = self._is_local and is_loopback(host_name(headers.get("host", "")))
        return is_here and not any(name in PROXY_HEADERS or name.startswith("x-forwarded-") for name in headers)

    def check_control(self, headers: Mapping[str, str]) -> None:
        """Raise as `check_view`, or Forbidden for a viewer without the right to control workers."""
        self.check_view(headers)
        if not self.can_control(headers):
            text = "without API keys, workers are controlled only from the router's own machine"
            raise Forbidden(f"{text}; with API keys {NEEDS_ADMIN}")


def _is_foreign(headers: Mapping[str, str]) -> bool:
    origin = headers.get("origin", "")
    is_other = bool(origin) and origin.partition("://")[2] != headers.get("host")
    return is_other or headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
