"""Configuration of a rendezvous; plain data."""

from dataclasses import dataclass

from baton.settings.names import DEFAULT_NAME, NAME_RULE, is_name
from baton.settings.options import TLS_OPTIONS, OptionInfo
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.settings.worker_config import WILDCARDS


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

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    uds: str | None = None  # path of a Unix socket instead of host and port; None: host:port
    timeout_s: float = 1.0  # a member without a heartbeat for this long is removed
    registry: str | None = None  # URL of the registry in which members find it; None: members have its address
    name: str = DEFAULT_NAME  # in the registry
    lease_s: float = 10.0  # lifetime of the registry entry without a renewal
    drain_timeout_s: float = 0.0  # wait for members to leave after SIGTERM
    tls_cert: str | None = None  # PEM files for mutual TLS with other processes; None: plaintext
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_server_name: str | None = None  # in every peer's certificate; None: the host of its address
    progress_fd: int | None = None  # progress is written here as JSON lines

    def __post_init__(self) -> None:
        """Raise OptionError for an unusable registry, host or name."""
        if self.registry is None:
            return
        parse_registry_url(self.registry)
        if self.host in WILDCARDS:
            raise OptionError(f"host: members cannot reach {self.host}; set an address that they can reach")
        if not is_name(self.name):
            raise OptionError(f"name: must be {NAME_RULE}")


RENDEZVOUS_OPTIONS = {
    "host": OptionInfo("Address to listen on."),
    "port": OptionInfo("Port of its gRPC server; 0 for any free one.", minimum=0, maximum=65535),
    "uds": OptionInfo("Path of a Unix socket to listen on instead of host and port.", hidden=True),
    "timeout_s": OptionInfo(
        "Seconds without a heartbeat after which a member is removed from its group.", minimum=0.1, maximum=600
    ),
    "registry": OptionInfo(
        "URL of the registry (redis://...) in which members find it. Default: none; members need its address.",
        secret=True,
    ),
    "name": OptionInfo("Name in the registry; the latest rendezvous registered under a name replaces the others."),
    "lease_s": OptionInfo(
        "Seconds after which the registry drops it if it does not renew its entry.", minimum=1, maximum=3600
    ),
    "drain_timeout_s": OptionInfo("Maximum seconds to wait for members to leave on shutdown.", minimum=0),
    **TLS_OPTIONS,
    "progress_fd": OptionInfo("File descriptor of a pipe for progress messages.", minimum=0, hidden=True),
}
