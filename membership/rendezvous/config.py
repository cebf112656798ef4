"""Configuration of a rendezvous; plain data."""

from dataclasses import dataclass

from baton.settings.names import DEFAULT_NAME, NAME_RULE, WILDCARDS, is_name
from baton.settings.options import LEASE_S, PROGRESS_FD, TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME, option
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError


@dataclass(frozen=True, slots=True)
class RendezvousSettings:
    """Timeouts and limits of a rendezvous's groups."""

    timeout_s: float = 1.0  # a member without a heartbeat for this long is removed
    settle_s: float = 0.02  # changes within this time of the first one share an epoch
    broken_interval_s: float = 0.05  # minimum between two epochs due to broken ones, against a storm of epochs
    return_s: float = 1.0  # after a restart of the rendezvous, wait for the members of a known epoch to return
    forget_s: float = 600.0  # a group without members is dropped after this
    max_groups: int = 1024
    max_members: int = 1024  # of one group


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConfig:
    """Options of a rendezvous process."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(0, "Port of its gRPC server; 0 for any free one.", minimum=0, maximum=65535)
    uds: str | None = option(None, "Path of a Unix socket to listen on instead of host and port.", hidden=True)
    timeout_s: float = option(
        1.0, "Seconds without a heartbeat after which a member is removed from its group.", minimum=0.1, maximum=600
    )
    registry: str | None = option(
        None,
        "URL of the registry (redis://...) in which members find it. Default: none; members need its address.",
        secret=True,
    )
    name: str = option(
        DEFAULT_NAME, "Name in the registry; the latest rendezvous registered under a name replaces the others."
    )
    lease_s: float = option(10.0, LEASE_S, minimum=1, maximum=3600)
    drain_timeout_s: float = option(0.0, "Maximum seconds to wait for members to leave on shutdown.", minimum=0)
    tls_cert: str | None = option(None, TLS_CERT)
    tls_key: str | None = option(None, TLS_KEY)
    tls_ca: str | None = option(None, TLS_CA)
    tls_server_name: str | None = option(None, TLS_SERVER_NAME)
    progress_fd: int | None = option(None, PROGRESS_FD, minimum=0, hidden=True)

    def __post_init__(self) -> None:
        """Raise OptionError for an unusable registry, host or name."""
        if self.registry is None:
            return
        parse_registry_url(self.registry)
        if self.host in WILDCARDS:
            raise OptionError(f"host: members cannot reach {self.host}; set an address that they can reach")
        if not is_name(self.name):
            raise OptionError(f"name: must be {NAME_RULE}")
