"""What a rendezvous is told; plain data."""

from dataclasses import dataclass

from rpc.options import OptionInfo
from rpc.tls_options import TLS_OPTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousConfig:
    """Options of a rendezvous process."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    timeout_s: float = 1.0  # a member that is silent for so long is out of its group
    tls_cert: str | None = None  # PEM files for mutual TLS with other processes; None: plaintext
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_server_name: str | None = None  # in every peer's certificate; None: the host of its address
    progress_fd: int | None = None  # progress is written here as JSON lines


RENDEZVOUS_OPTIONS = {
    "host": OptionInfo("Address to listen on."),
    "port": OptionInfo("Port of its gRPC server; 0 for any free one.", minimum=0, maximum=65535),
    "timeout_s": OptionInfo(
        "Seconds after which a member that is silent is out of its group.", minimum=0.1, maximum=600
    ),
    **TLS_OPTIONS,
    "progress_fd": OptionInfo("Descriptor of a pipe that takes progress messages.", minimum=0, hidden=True),
}
