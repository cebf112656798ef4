"""Help texts and bounds of the router's options."""

from collections.abc import Mapping
from dataclasses import replace

from baton.router.config import RouterConfig
from baton.settings.options import TLS_OPTIONS, OptionInfo

SECRETS = {  # environment variables
    "api_key": "BATON_API_KEY",
    "registry": "BATON_REGISTRY",
    "cache_secret": "BATON_CACHE_SECRET",
}

ROUTER_OPTIONS = {
    "model": OptionInfo("Directory with the tokenizer and config.json of the model that the workers serve."),
    "served_model_name": OptionInfo("Name of the model for clients. Default: the directory's name."),
    "host": OptionInfo("Address to listen on."),
    "port": OptionInfo("Port of the OpenAI HTTP server; 0 for any free one.", minimum=0, maximum=65535),
    "grpc_port": OptionInfo("Port of the gRPC server; 0 for any free one. Default: no gRPC.", minimum=0, maximum=65535),
    "workers": OptionInfo("Addresses (host:port) of the workers, separated by commas."),
    "registry": OptionInfo(
        "URL of the registry (redis://...) of the workers, instead of --workers. Put a URL with a password into"
        f" {SECRETS['registry']} or a file.",
        secret=True,
    ),
    "policy": OptionInfo("Routing policy: how the router chooses workers for a request."),
    "local_prefill_below": OptionInfo(
        "A decode worker prefills fewer uncached tokens than this itself; 0: never. Default in `baton router`: cost.",
        minimum=0,
    ),
    "slo": OptionInfo(
        "Target time to first token and time per output token, such as ttft=1s,tpot=50ms. The router places requests "
        "to meet both. Default: none."
    ),
    "target_ttft_ms": OptionInfo("Older form of slo, with target_tpot_ms.", minimum=0.001, hidden=True),
    "target_tpot_ms": OptionInfo("Older form of slo, with target_ttft_ms.", minimum=0.001, hidden=True),
    "max_inflight": OptionInfo("Maximum completions in progress, whatever the workers' capacity.", minimum=1),
    "max_queue": OptionInfo("Maximum completions waiting in the router; further ones get 429.", minimum=0),
    "max_queue_wait_s": OptionInfo(
        "Maximum seconds a request may wait in the router's queue; longer waits get 429. Default: unlimited.",
        minimum=0.001,
    ),
    "default_timeout_s": OptionInfo(
        "Time limit in seconds of requests that set none. Default: unlimited.", minimum=0.001
    ),
    "max_choices": OptionInfo("Maximum completions (prompts times n) of one request.", minimum=1),
    "max_stop": OptionInfo("Maximum stop strings of one request.", minimum=0),
    "max_body_bytes": OptionInfo("Largest request, over HTTP or gRPC.", minimum=1024),
    "max_body_bytes_in_flight": OptionInfo(
        "Maximum bytes of requests that are not yet tokenised, or over gRPC not yet finished; further ones get 429.",
        minimum=1024,
    ),
    "max_client_body_bytes_in_flight": OptionInfo(
        "The same for one API key; without keys, for one IPv4 address or IPv6 /64 network.", minimum=1024
    ),
    "body_timeout_s": OptionInfo(
        "Maximum seconds to receive an HTTP request, plus one for each 16 KiB of it; slower ones get 408.",
        minimum=0.001,
    ),
    "max_request_unread_bytes": OptionInfo(
        "Maximum bytes of output of one request that its client has not read; above it the request is aborted.",
        minimum=1 << 16,
    ),
    "max_key_unread_bytes": OptionInfo("The same for all requests with one API key.", minimum=1 << 16),
    "max_unread_bytes": OptionInfo("The same for all requests of a router process.", minimum=1 << 16),
    "cors_origins": OptionInfo(
        "Origins (https://chat.example.org) whose web pages may call the server from a browser, separated by commas;"
        " *: any. Default: none.",
        aliases=("--allowed-origins",),
    ),
    "api_key": OptionInfo(
        f"API key that clients must send, or several separated by commas. Other users of the machine can read command"
        f" lines: prefer {SECRETS['api_key']} or the file.",
        secret=True,
    ),
    "api_keys_file": OptionInfo("YAML file of API keys with their limits; reloaded when it changes."),
    "protect_operations": OptionInfo(
        "Require a key for /metrics, /workers, /pools, /version and the description too. Default: on if there are keys "
        "and the host is not a loopback address such as 127.0.0.1."
    ),
    "shared_cache": OptionInfo("Share cached prompts between all API keys."),
    "cache_secret": OptionInfo(
        "Secret from which the keys' cache salts are derived, the same for all routers of a cluster; at least 16 "
        f"random characters. Put it into {SECRETS['cache_secret']} or a file. Default: one that all routers of a "
        "registry share; without a registry each router has its own.",
        secret=True,
    ),
    "watch_interval_ms": OptionInfo("Minimum milliseconds between two load reports of a worker.", minimum=1),
    "failover_attempts": OptionInfo("Maximum retries of a request whose worker was lost.", minimum=0),
    "failover_timeout_s": OptionInfo(
        "Maximum seconds that a request whose worker was lost waits for another.", minimum=0
    ),
    "traffic_window_s": OptionInfo(
        "Seconds of traffic in the reports to the autoscaler: longer is steadier, shorter reacts sooner.",
        minimum=1,
        maximum=3600,
    ),
    "drain_timeout_s": OptionInfo(
        "Maximum seconds to wait for running requests at shutdown.", minimum=0, aliases=("--shutdown-timeout",)
    ),
    "processes": OptionInfo(
        "Processes that share the ports and the work.",
        minimum=1,
        maximum=256,
        aliases=("--api-server-count", "-asc"),
    ),
    "heartbeat_timeout_s": OptionInfo(
        "Seconds without a heartbeat after which `baton serve` and `baton router --processes` kill and restart a "
        "router process that was stopped or hangs; 0: never.",
        minimum=0,
    ),
    "process": OptionInfo("Number of this process among them.", minimum=0, hidden=True),
    "group_dir": OptionInfo("Private directory through which they share metrics.", hidden=True),
    "process_states": OptionInfo("Files in which supervisors keep the states of their processes.", hidden=True),
    **TLS_OPTIONS,
    "ssl_certfile": OptionInfo("PEM file with the certificate (and its chain) for HTTPS. Default: plain HTTP."),
    "ssl_keyfile": OptionInfo("PEM file with that certificate's key."),
    "ssl_ca_certs": OptionInfo("PEM file with the authorities that sign the certificates of HTTPS clients."),
    "ssl_cert_reqs": OptionInfo(
        "Certificates of HTTPS clients: 0 not requested, 1 optional, 2 required.", minimum=0, maximum=2
    ),
    "progress_fd": OptionInfo("File descriptor of a pipe for progress messages.", minimum=0, hidden=True),
}


def with_secrets(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """Return the flags plus the secrets of the environment, which keep secrets off command lines. Flags win.

    An empty variable counts as set, so that a server that was meant to have a key does not run without one.
    """
    given = dict(flags)
    for name, variable in SECRETS.items():
        if given.get(name) is None and variable in environ:
            given[name] = environ[variable]
    return given


def without_secrets(config: RouterConfig) -> tuple[RouterConfig, dict[str, str]]:
    """Return a config whose flags may appear on a command line, and environment variables for the secrets removed."""
    secrets = {"registry": config.registry, "cache_secret": config.cache_secret}  # the config has digests of API keys
    env = {SECRETS[name]: value for name, value in secrets.items() if value is not None}
    return replace(config, registry=None, cache_secret=None), env
