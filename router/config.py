"""Configuration of a router."""

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from baton.router.auth.api_key import hidden
from baton.settings.names import is_loopback, is_worker_address
from baton.settings.registry_url import parse_registry_url
from baton.settings.slo import parse_slo
from baton.settings.values import OptionError

PolicyName = Literal["cost", "round_robin", "least_loaded", "always_remote", "always_local"]
MIN_HEARTBEAT_TIMEOUT_S = 1.0  # less would kill processes that are only busy
MIN_SECRET_CHARS = 16
DEFAULT_PORTS = {"http": 80, "https": 443}  # browsers omit them in origins


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Options of a router process."""

    model: str  # directory with the tokenizer, config.json and generation_config.json
    served_model_name: str | None = None  # None: the directory's name
    host: str = "127.0.0.1"
    port: int = 8000  # HTTP; 0: any free one
    grpc_port: int | None = None  # 0: any free one; None: no gRPC
    workers: tuple[str, ...] = ()  # host:port of each worker's gRPC server
    registry: str | None = None  # URL of the registry of the workers, instead of `workers`
    policy: PolicyName = "cost"
    local_prefill_below: int | None = None  # fewer uncached tokens are prefilled at the decode worker; None: by cost
    slo: str | None = None  # latency targets, such as ttft=1s,tpot=50ms
    target_ttft_ms: float | None = None  # older form of `slo`; with target_tpot_ms, or neither
    target_tpot_ms: float | None = None
    max_inflight: int = 8192  # completions in progress, whatever the workers' capacity
    max_queue: int = 2048  # completions waiting in the router; further ones get 429
    max_queue_wait_s: float | None = None  # maximum wait in the queue, then 429; None: no limit
    default_timeout_s: float | None = None  # until the last token, of requests that set none; None: no limit
    max_choices: int = 128  # completions of one request: prompts times n
    max_stop: int = 16  # stop strings of one request
    max_body_bytes: int = 16 << 20  # of one request, over HTTP or gRPC
    max_body_bytes_in_flight: int = 512 << 20  # of requests not yet tokenised, or over gRPC not yet finished; then 429
    max_client_body_bytes_in_flight: int = 128 << 20  # the same for one API key or, without keys, for one address
    body_timeout_s: float = 60.0  # to receive an HTTP request, plus one second for each 16 KiB of it
    max_request_unread_bytes: int = 64 << 20  # output of one request that its client has not read
    max_key_unread_bytes: int = 512 << 20  # the same for all requests with one API key
    max_unread_bytes: int = 1 << 30  # the same for all requests
    cors_origins: tuple[str, ...] = ()  # of web pages that may read responses in a browser; *: all
    api_key: tuple[str, ...] | None = field(default=None, repr=False)  # always stored as digests
    api_keys_file: str | None = None  # YAML file of keys with their limits; without it and `api_key` no key is needed
    protect_operations: bool | None = None  # metrics, workers and the description need a key too; None: by the host
    shared_cache: bool = False  # keys share cached prompts
    cache_secret: str | None = field(default=None, repr=False)  # of keys' cache salts; None: the registry's, or random
    watch_interval_ms: int = 50  # minimum time between two load reports of a worker
    failover_attempts: int = 3  # maximum retries of a request after its worker was lost
    failover_timeout_s: float = 30.0  # maximum wait of such a request for a worker
    traffic_window_s: int = 60  # window of the traffic reports to the autoscaler
    drain_timeout_s: float = 30.0  # maximum wait for running requests after SIGTERM
    processes: int = 1  # router processes that share the ports
    heartbeat_timeout_s: float = 5.0  # without a heartbeat a supervisor kills and restarts a process; 0: never
    process: int | None = None  # number of this process among them, from 0; None: it shares nothing
    group_dir: str | None = None  # private directory through which they share metrics
    process_states: tuple[str, ...] = ()  # files in which supervisors keep the states of their processes
    tls_cert: str | None = None  # PEM files for mutual TLS with workers and gRPC clients; None: plaintext
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_server_name: str | None = None  # name in every worker's certificate; None: the host of its address
    ssl_certfile: str | None = None  # PEM files for HTTPS, named as in uvicorn and vLLM; None: plain HTTP
    ssl_keyfile: str | None = None
    ssl_ca_certs: str | None = None  # authorities that sign client certificates
    ssl_cert_reqs: int = 0  # client certificates: 0 not requested, 1 optional, 2 required
    progress_fd: int | None = None  # file descriptor for progress as JSON lines

    def __post_init__(self) -> None:
        """Raise OptionError for invalid workers, registry or keys, and for incomplete HTTPS options.

        Keys are replaced by their digests: a config becomes the flags of other processes, which all users can read.
        """
        if self.api_key is not None:
            if not self.api_key or not all(self.api_key):
                raise OptionError("api_key: must not be empty; omit it if there is no key")
            object.__setattr__(self, "api_key", tuple(map(hidden, self.api_key)))
        if self.protect_operations and not self.needs_key:
            raise OptionError("protect_operations: requires api_key or api_keys_file")
        if self.cache_secret is not None and len(self.cache_secret) < MIN_SECRET_CHARS:
            raise OptionError(f"cache_secret: must have at least {MIN_SECRET_CHARS} characters, chosen at random")
        if self.registry is not None:
            parse_registry_url(self.registry)
            if self.workers:
                raise OptionError("registry: give either registry or workers, not both")
        for address in self.workers:
            if not is_worker_address(address):
                raise OptionError(f"workers: {address!r} is neither host:port, such as 127.0.0.1:7000, nor unix:/path")
        if (self.process is None) != (self.group_dir is None):
            raise OptionError("process: process and group_dir must be given together")
        if (self.target_ttft_ms is None) != (self.target_tpot_ms is None):
            raise OptionError("target_ttft_ms: target_ttft_ms and target_tpot_ms must be given together")
        if self.slo is not None and self.target_ttft_ms is not None:
            raise OptionError("slo: it replaces target_ttft_ms and target_tpot_ms; give slo alone")
        if 0 < self.heartbeat_timeout_s < MIN_HEARTBEAT_TIMEOUT_S:
            raise OptionError(f"heartbeat_timeout_s: must be 0 or at least {MIN_HEARTBEAT_TIMEOUT_S:g}")
        self.promised_s()
        self._check_origins()
        self._check_https()

    def _check_origins(self) -> None:
        """Raise OptionError for an origin that no browser sends: it would have no effect."""
        for origin in self.cors_origins:
            if origin not in ("*", "null") and not _is_origin(origin):
                text = "must be * or scheme://host[:port], without a path and the scheme's default port"
                raise OptionError(f"cors_origins: {origin!r} {text}")

    def promised_s(self) -> dict[str, float]:
        """Return the targets `ttft` and `tpot` in seconds; empty: none. Raises OptionError."""
        if self.slo is None:
            if self.target_ttft_ms is None or self.target_tpot_ms is None:
                return {}
            return {"ttft": self.target_ttft_ms / 1000, "tpot": self.target_tpot_ms / 1000}
        try:
            limits = parse_slo(self.slo)
        except OptionError as error:
            raise OptionError(f"slo: {error}") from error
        if len(limits) < 2:
            raise OptionError(f"slo: {self.slo} must have both ttft and tpot, such as ttft=1s,tpot=50ms")
        return limits

    def _check_https(self) -> None:
        """Raise OptionError for HTTPS options that would have no effect because another one is missing."""
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise OptionError("ssl_certfile: ssl_certfile and ssl_keyfile must be given together")
        if (self.ssl_ca_certs is None) != (self.ssl_cert_reqs == 0):
            raise OptionError("ssl_ca_certs: ssl_ca_certs and an ssl_cert_reqs of 1 or 2 must be given together")
        if self.ssl_ca_certs is not None and self.ssl_certfile is None:
            raise OptionError("ssl_ca_certs: requires ssl_certfile and ssl_keyfile")

    @property
    def scheme(self) -> str:
        """Scheme of the HTTP server's URLs."""
        return "http" if self.ssl_certfile is None else "https"

    @property
    def needs_key(self) -> bool:
        """Whether clients need an API key."""
        return self.api_key is not None or self.api_keys_file is not None

    @property
    def protects_operations(self) -> bool:
        """Whether metrics, workers and the description need a key. Default: unless `host` is a loopback address."""
        if self.protect_operations is None:
            return self.needs_key and not is_loopback(self.host)
        return self.protect_operations

    @property
    def model_name(self) -> str:
        """The name that clients use for the model."""
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]


def _is_origin(text: str) -> bool:
    """Return whether browsers send this as an `origin` header."""
    try:
        parts = urlsplit(text)
        is_default_port = parts.port is not None and parts.port == DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return False
    is_plain = parts.username is None and text == f"{parts.scheme}://{parts.netloc}".lower()
    return bool(parts.hostname) and is_plain and not is_default_port
