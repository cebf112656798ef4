"""What a rendezvous is told; plain data."""

from dataclasses import dataclass

from baton.settings.names import DEFAULT_NAME, NAME_RULE, is_name
from baton.settings.options import TLS_OPTIONS, OptionInfo
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.settings.worker_config import WILDCARDS


@dataclass(frozen=True, slots=True)
class RendezvousSettings:
    """What the groups of one rendezvous keep to."""

    timeout_s: float = 1.0  # a member that is silent for so long is out
    settle_s: float = 0.02  # changes within this time of the first are one
    broken_interval_s: float = 0.05  # between two epochs because of a broken one: else they could come in a storm
    return_s: float = 1.0  # how long members that others know of are waited for, when the rendezvous was away
    forget_s: float = 600.0  # a group without members is forgotten after this
    max_groups: int = 1024
    max_members: int = 1024  # of one group


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConfig:
    """Options of a rendezvous process."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    uds: str | None = None  # path of a Unix socket instead of host and port; None: host:port
    timeout_s: float = 1.0  # a member that is silent for so long is out of its group
    registry: str | None = None  # URL of the registry where members find it; None: they are told its address
    name: str = DEFAULT_NAME  # under which it stands there
    lease_s: float = 10.0  # how long it stands there without a sign of life
    drain_timeout_s: float = 0.0  # how long it serves on after SIGTERM for members that are still there
    tls_cert: str | None = None  # PEM files for mutual TLS with other processes; None: plaintext
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_server_name: str | None = None  # in every peer's certificate; None: the host of its address
    progress_fd: int | None = None  # progress is written here as JSON lines

    def __post_init__(self) -> None:
        """Raises OptionError for a registry that cannot work."""
        if self.registry is None:
            return
        parse_registry_url(self.registry)
        if self.host in WILDCARDS:
            raise OptionError(f"host: members cannot reach {self.host}; a registered rendezvous listens where they can")
        if not is_name(self.name):
            raise OptionError(f"name: must be {NAME_RULE}")


RENDEZVOUS_OPTIONS = {
    "host": OptionInfo("Address to listen on."),
    "port": OptionInfo("Port of its gRPC server; 0 for any free one.", minimum=0, maximum=65535),
    "uds": OptionInfo("Path of a Unix socket to listen on instead of host and port.", hidden=True),
    "timeout_s": OptionInfo(
        "Seconds after which a member that is silent is out of its group.", minimum=0.1, maximum=600
    ),
    "registry": OptionInfo(
        "URL of the registry (redis://...) where members find it; unset: they are told its address.", secret=True
    ),
    "name": OptionInfo("Its name in the registry: the last to come under a name has it."),
    "lease_s": OptionInfo("Seconds after which the registry forgets it if it is gone.", minimum=1, maximum=3600),
    "drain_timeout_s": OptionInfo("Longest wait in seconds for members to leave at the end.", minimum=0),
    **TLS_OPTIONS,
    "progress_fd": OptionInfo("Descriptor of a pipe that takes progress messages.", minimum=0, hidden=True),
}
