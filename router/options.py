"""What a router's options mean, in words and bounds."""

from collections.abc import Mapping

from baton.rpc.options import OptionInfo
from baton.rpc.tls_options import TLS_OPTIONS

SECRETS = {"api_key": "BATON_API_KEY", "registry": "BATON_REGISTRY"}  # variables of the environment

ROUTER_OPTIONS = {
    "model": OptionInfo("Directory with the tokenizer and config.json of the model that the workers serve."),
    "served_model_name": OptionInfo("Name of the model for clients; unset: the directory's."),
    "host": OptionInfo("Address to listen on."),
    "port": OptionInfo("Port of the OpenAI HTTP server; 0 for any free one.", minimum=0, maximum=65535),
    "grpc_port": OptionInfo("Port of the gRPC server; 0 for any free one, unset: no gRPC.", minimum=0, maximum=65535),
    "workers": OptionInfo("Addresses (host:port) of the workers, with commas between."),
    "registry": OptionInfo(
        "URL of the registry (redis://...) that has the workers, instead of --workers; one with a password better in"
        f" {SECRETS['registry']} or a file.",
        secret=True,
    ),
    "policy": OptionInfo("How workers are chosen for a request."),
    "local_prefill_below": OptionInfo(
        "A decode worker prefills fewer uncached tokens than this itself; 0: never, unset: what is cheaper.", minimum=0
    ),
    "slo": OptionInfo(
        "Time to the first token and time per further token that requests are promised, such as ttft=1s,tpot=50ms; "
        "prices follow them. Default: none."
    ),
    "target_ttft_ms": OptionInfo("Older form of slo, with target_tpot_ms.", minimum=0.001, hidden=True),
    "target_tpot_ms": OptionInfo("Older form of slo, with target_ttft_ms.", minimum=0.001, hidden=True),
    "max_inflight": OptionInfo("Most choices being generated, however many the workers can run.", minimum=1),
    "max_queue": OptionInfo("Most choices waiting in the router; more are refused with 429.", minimum=0),
    "max_queue_wait_s": OptionInfo(
        "Longest wait in s in the router's queue; who would wait for longer gets 429. Unset: any.", minimum=0.001
    ),
    "default_timeout_s": OptionInfo("Longest time in s of a request that states none; unset: any.", minimum=0.001),
    "max_choices": OptionInfo("Most choices (prompts times n) of one request.", minimum=1),
    "max_stop": OptionInfo("Most stop strings of one request.", minimum=0),
    "max_body_bytes": OptionInfo("Largest request, over HTTP or gRPC.", minimum=1024),
    "cors_origins": OptionInfo(
        "Origins (https://chat.example.org) whose web pages may call the server from a browser, with commas between;"
        " *: any. Default: none.",
        aliases=("--allowed-origins",),
    ),
    "api_key": OptionInfo(
        f"API key that clients must show, or several with commas between; better in {SECRETS['api_key']} or the file"
        " than on a command line, which anybody on the machine can see.",
        secret=True,
    ),
    "api_keys_file": OptionInfo("YAML file of API keys with their limits; read again when it changes."),
    "protect_operations": OptionInfo("Ask for a key at /metrics, /workers, /pools, /version and the description too."),
    "shared_cache": OptionInfo("Let all API keys find each other's prompts in caches."),
    "watch_interval_ms": OptionInfo("Least time in ms between two load reports of a worker.", minimum=1),
    "failover_attempts": OptionInfo("How often a request is sent again after its worker was lost.", minimum=0),
    "failover_timeout_s": OptionInfo("Longest wait in seconds of such a request for a worker.", minimum=0),
    "traffic_window_s": OptionInfo(
        "Last seconds whose traffic is told to whoever sizes the pools: more are surer, fewer are sooner.",
        minimum=1,
        maximum=3600,
    ),
    "drain_timeout_s": OptionInfo(
        "Longest wait in seconds for running requests at the end.", minimum=0, aliases=("--shutdown-timeout",)
    ),
    "processes": OptionInfo(
        "Processes that share the ports and the work.",
        minimum=1,
        maximum=256,
        aliases=("--api-server-count", "-asc"),
    ),
    "process": OptionInfo("Number of this process among them.", minimum=0, hidden=True),
    "group_dir": OptionInfo("Private directory where they meet.", hidden=True),
    **TLS_OPTIONS,
    "ssl_certfile": OptionInfo("PEM file with the certificate (and its chain) for HTTPS; unset: plain HTTP."),
    "ssl_keyfile": OptionInfo("PEM file with that certificate's key."),
    "ssl_ca_certs": OptionInfo("PEM file with the authorities whose certificates HTTPS clients are asked for."),
    "ssl_cert_reqs": OptionInfo(
        "HTTPS clients' certificates: 0 not asked for, 1 checked if there is one, 2 needed.", minimum=0, maximum=2
    ),
    "progress_fd": OptionInfo("Descriptor of a pipe that takes progress messages.", minimum=0, hidden=True),
}


def with_secrets(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """The flags, with the secrets of the environment unless they have them: command lines can be seen by everybody.

    A variable that is empty counts too: it was to have a key, and the server must not be open for the lack of it.
    """
    given = dict(flags)
    for name, variable in SECRETS.items():
        if given.get(name) is None and variable in environ:
            given[name] = environ[variable]
    return given
