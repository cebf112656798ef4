"""Configuration of a router."""

from dataclasses import dataclass, field
from typing import Literal

from baton.router import config_checks as checks
from baton.router.admission.shared_places import reserved_places
from baton.router.model_options import (
    MODEL_FORM,
    REASONING_PARSERS,
    TOOL_PARSERS,
    ModelOptions,
    directory_name,
    read_model_options,
)
from baton.router.request_limits import RequestLimits
from baton.settings.names import MetricsNames, is_loopback
from baton.settings.options import (
    METRICS_NAMES,
    PROGRESS_FD,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    TLS_SERVER_NAME,
    described,
    option,
)
from baton.settings.otlp_endpoint import OTLP_ENDPOINT, check_otlp_endpoint
from baton.settings.values import JsonText, OptionError

SECRETS = {  # environment variables
    "api_key": "BATON_API_KEY",
    "admin_api_key": "BATON_ADMIN_API_KEY",
    "registry": "BATON_REGISTRY",
    "cache_secret": "BATON_CACHE_SECRET",
}
PolicyName = Literal["cost", "round_robin", "least_loaded", "always_remote", "always_local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig(RequestLimits):
    """Options of a router process."""

    model: str = field(
        metadata=described("Directory with the tokenizer and config.json of the model that the workers serve.")
    )
    tokenizer: str | None = option(
        None, "Directory of the tokenizer and its chat template; the workers need it too. Default: the model's."
    )
    hf_overrides: JsonText | None = option(
        None, "Values that replace those of the model's config.json, the same as for its workers. Default: none."
    )
    served_model_name: str | None = option(None, "Name of the model for clients. Default: the directory's name.")
    also_serve: tuple[str, ...] = option(
        (),
        f"Further models, separated by commas, each as {MODEL_FORM}. Requests choose by name among them and --model.",
    )
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port of the OpenAI HTTP server; 0 for any free one.", minimum=0, maximum=65535)
    grpc_port: int | None = option(
        None, "Port of the gRPC server; 0 for any free one. Default: no gRPC.", minimum=0, maximum=65535
    )
    workers: tuple[str, ...] = option((), "Addresses (host:port) of the workers, separated by commas.")
    registry: str | None = option(
        None,
        "URL of the registry (redis://...) of the workers, instead of --workers. Put a URL with a password into"
        f" {SECRETS['registry']} or a file.",
        secret=True,
    )
    policy: PolicyName = option("cost", "Routing policy: how the router chooses workers for a request.")
    local_prefill_below: int | None = option(
        None,
        "A decode worker prefills fewer uncached tokens than this itself; 0: never. Default in `baton router`: cost.",
        minimum=0,
    )
    slo: str | None = option(
        None,
        "Target time to first token and time per output token. The router places requests to meet both. none: it "
        f"minimises the delays themselves. Default: {checks.DEFAULT_SLO}.",
    )
    target_ttft_ms: float | None = option(None, "Older form of slo, with target_tpot_ms.", minimum=0.001, hidden=True)
    target_tpot_ms: float | None = option(None, "Older form of slo, with target_ttft_ms.", minimum=0.001, hidden=True)
    cors_origins: tuple[str, ...] = option(
        (),
        "Origins (https://chat.example.org) whose web pages may call the server from a browser, separated by commas;"
        " *: any. Default: none.",
        aliases=("--allowed-origins",),
    )
    api_key: tuple[str, ...] | None = option(
        None,
        f"API key that clients must send, or several separated by commas. Other users of the machine can read command"
        f" lines: prefer {SECRETS['api_key']} or the file.",
        secret=True,
    )
    admin_api_key: tuple[str, ...] | None = option(
        None,
        "API key that may also use the web console, clear caches and load LoRA adapters, or several separated by "
        f"commas; keys of api_key then may not. Prefer {SECRETS['admin_api_key']} or the file.",
        secret=True,
    )
    console: bool = option(True, "Serve the web console at /console.")
    api_keys_file: str | None = option(None, "YAML file of API keys with their limits; reloaded when it changes.")
    protect_operations: bool | None = option(
        None,
        "Require a key for /metrics, /workers, /pools, /version and the description too. Default: on if there are keys "
        "and the host is not a loopback address such as 127.0.0.1.",
    )
    shared_cache: bool = option(False, "Share cached prompts between all API keys.")
    cache_secret: str | None = option(
        None,
        "Secret from which the keys' cache salts are derived, the same for all routers of a cluster; at least 16 "
        f"random characters. Put it into {SECRETS['cache_secret']} or a file. Default: one that all routers of a "
        "registry share; without a registry each router has its own.",
        secret=True,
    )
    response_store_ttl_s: float = option(
        86400.0,
        "Seconds for which a response of /v1/responses is stored, from its creation or its last continuation.",
        minimum=1,
        maximum=31536000,
    )
    response_store_bytes: int = option(
        64 << 20,
        "Maximum bytes of stored responses, of this router or of all routers of a registry; the least recently used "
        "ones are deleted first. With API keys, a tenant has at most a quarter. 0: none are stored.",
        minimum=0,
    )
    files_dir: str | None = option(
        None,
        "Directory for the files and batches of clients (/v1/files, /v1/batches); all routers of a deployment share "
        "it. Default: none, and these paths return 404.",
    )
    files_bytes: int = option(
        10 << 30,
        "Maximum bytes of all files in files_dir. With API keys, a tenant has at most a quarter. One file has at most "
        "200 MiB.",
        minimum=1 << 20,
    )
    batch_inflight: int = option(
        256, "Maximum completions of batches in flight, of one router process, behind all other requests.", minimum=1
    )
    pin_prefix: tuple[str, ...] = option(
        (),
        "Files, separated by commas, with the beginning of prompts of --model: texts, or messages as .json. Their KV "
        "stays cached on all workers that compute prompts, for the life of the server. Default: none.",
    )
    enable_lora: bool = option(False, "Serve LoRA adapters of the model, which requests choose by name.")
    lora_modules: tuple[str, ...] = option(
        (),
        "LoRA adapters to load at the start, separated by commas or blanks, as NAME=PATH or in JSON: "
        '{"name": "NAME", "path": "PATH", "base_model_name": "MODEL"}.',
    )
    lora_dir: str | None = option(
        None,
        "Directory of LoRA adapters that /v1/load_lora_adapter or the first request for one may load: NAME is in "
        "lora_dir/NAME. Default: none; adapters are loaded only at the start.",
    )
    adapters_dir: str | None = option(None, "Private directory with the list of the LoRA adapters.", hidden=True)
    tool_call_parser: str | None = option(
        None,
        "Format of the model's tool calls, under vLLM's names. Default: found in the chat template; none: outputs are "
        "not searched for calls.",
        choices=TOOL_PARSERS,
    )
    reasoning_parser: str | None = option(
        None,
        "Format of the model's reasoning, under vLLM's names. Default: found in the chat template; none: reasoning is "
        "part of the content.",
        choices=REASONING_PARSERS,
    )
    watch_interval_ms: int = option(50, "Minimum milliseconds between two load reports of a worker.", minimum=1)
    failover_attempts: int = option(3, "Maximum retries of a request whose worker was lost.", minimum=0)
    failover_timeout_s: float = option(30.0, "Maximum seconds a request waits after its worker was lost.", minimum=0)
    cold_start_timeout_s: float | None = option(
        None, "Maximum seconds a completion waits for a first worker. Default: it gets 503 at once.", minimum=0.001
    )
    traffic_window_s: int = option(
        60,
        "Seconds of traffic in the reports to the autoscaler: longer is steadier, shorter reacts sooner.",
        minimum=1,
        maximum=3600,
    )
    drain_timeout_s: float = option(
        30.0, "Maximum seconds to wait for running requests at shutdown.", minimum=0, aliases=("--shutdown-timeout",)
    )
    metrics_names: MetricsNames = option("baton", METRICS_NAMES)
    otlp_traces_endpoint: str | None = option(None, OTLP_ENDPOINT, aliases=("--otlp-endpoint",))
    trace_sample_ratio: float = option(
        1.0,
        "Share of requests without a traceparent whose traces are exported; the others follow their parent.",
        minimum=0,
        maximum=1,
    )
    keep_timelines: int | None = option(
        None,
        "Number of recent requests whose timelines the router keeps for `baton trace` and the console. "
        "Default: 1000 with otlp_traces_endpoint, otherwise none.",
        minimum=0,
        maximum=100000,
    )
    processes: int = option(
        1,
        "Processes that share the ports and the work.",
        minimum=1,
        maximum=256,
        aliases=("--api-server-count", "-asc"),
    )
    heartbeat_timeout_s: float = option(
        5.0,
        "Seconds without a heartbeat after which `baton serve` and `baton router --processes` kill and restart a "
        "router process that was stopped or hangs; 0: never.",
        minimum=0,
    )
    process: int | None = option(None, "Number of this process among them.", minimum=0, hidden=True)
    group_dir: str | None = option(None, "Private directory through which they share metrics.", hidden=True)
    process_states: tuple[str, ...] = option(
        (), "Files in which supervisors keep the states of their processes.", hidden=True
    )
    tls_cert: str | None = option(None, TLS_CERT)
    tls_key: str | None = option(None, TLS_KEY)
    tls_ca: str | None = option(None, TLS_CA)
    tls_server_name: str | None = option(None, TLS_SERVER_NAME)
    ssl_certfile: str | None = option(
        None, "PEM file with the certificate (and its chain) for HTTPS. Default: plain HTTP."
    )
    ssl_keyfile: str | None = option(None, "PEM file with that certificate's key.")
    ssl_ca_certs: str | None = option(
        None, "PEM file with the authorities that sign the certificates of HTTPS clients."
    )
    ssl_cert_reqs: int = option(
        0, "Certificates of HTTPS clients: 0 not requested, 1 optional, 2 required.", minimum=0, maximum=2
    )
    progress_fd: int | None = option(None, PROGRESS_FD, minimum=0, hidden=True)

    def __post_init__(self) -> None:
        """Raise OptionError for invalid workers, registry or keys, and for incomplete HTTPS options.

        Keys are replaced by their digests: a config becomes the flags of other processes, which all users can read.
        """
        for name, keys in (("api_key", self.api_key), ("admin_api_key", self.admin_api_key)):
            if keys is not None:
                object.__setattr__(self, name, checks.hidden_keys(name, keys))
        if self.protect_operations and not self.needs_key:
            raise OptionError("protect_operations: requires api_key or api_keys_file")
        checks.check_cache_secret(self.cache_secret)
        checks.check_members(self.registry, self.workers)
        checks.check_together(process=self.process, group_dir=self.group_dir)
        checks.check_heartbeat_timeout(self.heartbeat_timeout_s)
        check_otlp_endpoint(self.otlp_traces_endpoint)
        self.promised_s()
        checks.check_pin_prefix(self.pin_prefix, self.needs_key and not self.shared_cache)
        self.check_images()
        self._check_models()
        checks.check_origins(self.cors_origins)
        checks.check_https(self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs, self.ssl_cert_reqs)

    def _check_models(self) -> None:
        """Raise OptionError for models that cannot be read, or of which two have the same name, and their adapters."""
        try:
            names = [model.name for model in self.models]
        except OptionError as error:
            raise OptionError(f"also_serve: {error}") from error
        checks.check_names(names)
        checks.check_reserved(self._num_reserved, len(names))
        checks.check_lora(self.enable_lora, self.lora_modules, self.lora_dir, names)

    def promised_s(self) -> dict[str, float]:
        """Return the targets `ttft` and `tpot` in seconds; empty: none. Raises OptionError."""
        return checks.read_targets(self.slo, self.target_ttft_ms, self.target_tpot_ms)

    @property
    def scheme(self) -> str:
        """Scheme of the HTTP server's URLs."""
        return "http" if self.ssl_certfile is None else "https"

    @property
    def needs_key(self) -> bool:
        """Whether clients need an API key."""
        return any(each is not None for each in (self.api_key, self.admin_api_key, self.api_keys_file))

    @property
    def protects_operations(self) -> bool:
        """Whether metrics, workers and the description need a key. Default: unless `host` is a loopback address."""
        if self.protect_operations is None:
            return self.needs_key and not is_loopback(self.host)
        return self.protect_operations

    @property
    def model_name(self) -> str:
        """The name that clients use for `model`."""
        return self.served_model_name or directory_name(self.model)

    @property
    def models(self) -> tuple[ModelOptions, ...]:
        """All models that the router serves. Raises OptionError."""
        parsers = self.tool_call_parser, self.reasoning_parser
        first = ModelOptions(self.model, self.model_name, *parsers, self.tokenizer, self.hf_overrides)
        return first, *map(read_model_options, self.also_serve)

    @property
    def max_model_inflight(self) -> int:
        """Maximum completions of one model in progress: the others keep their reserved places."""
        return self.max_inflight - len(self.also_serve) * self._num_reserved

    @property
    def max_completions(self) -> int:
        """Maximum completions of one request."""
        return min(self.max_choices, self._num_reserved)

    @property
    def _num_reserved(self) -> int:
        """Places of completions that each model has for itself."""
        return reserved_places(self.max_inflight, 1 + len(self.also_serve))
