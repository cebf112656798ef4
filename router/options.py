"""What a router's options mean, in words and bounds."""

from rpc.options import OptionInfo

ROUTER_OPTIONS = {
    "model": OptionInfo("Directory with the tokenizer and config.json of the model that the workers serve."),
    "served_model_name": OptionInfo("Name of the model for clients; unset: the directory's."),
    "host": OptionInfo("Address to listen on."),
    "port": OptionInfo("Port of the OpenAI HTTP server; 0 for any free one.", minimum=0, maximum=65535),
    "grpc_port": OptionInfo("Port of the gRPC server; 0 for any free one, unset: no gRPC.", minimum=0, maximum=65535),
    "workers": OptionInfo("Addresses (host:port) of the workers, with commas between."),
    "registry": OptionInfo("URL of the registry (redis://...) that has the workers, instead of --workers."),
    "policy": OptionInfo("How workers are chosen for a request."),
    "local_prefill_below": OptionInfo(
        "A decode worker prefills fewer uncached tokens than this itself; 0: never, unset: what is cheaper.", minimum=0
    ),
    "max_inflight": OptionInfo("Most choices being generated, however many the workers can run.", minimum=1),
    "max_queue": OptionInfo("Most choices waiting in the router; more are refused with 429.", minimum=0),
    "default_timeout_s": OptionInfo("Longest time in s of a request that states none; unset: any.", minimum=0.001),
    "max_choices": OptionInfo("Most choices (prompts times n) of one request.", minimum=1),
    "max_stop": OptionInfo("Most stop strings of one request.", minimum=0),
    "max_body_bytes": OptionInfo("Largest request, over HTTP or gRPC.", minimum=1024),
    "watch_interval_ms": OptionInfo("Least time in ms between two load reports of a worker.", minimum=1),
    "failover_attempts": OptionInfo("How often a request is sent again after its worker was lost.", minimum=0),
    "failover_timeout_s": OptionInfo("Longest wait in seconds of such a request for a worker.", minimum=0),
    "drain_timeout_s": OptionInfo("Longest wait in seconds for running requests at the end.", minimum=0),
    "processes": OptionInfo("Processes that share the ports and the work.", minimum=1, maximum=256),
    "process": OptionInfo("Number of this process among them.", minimum=0, hidden=True),
    "group_dir": OptionInfo("Private directory where they meet.", hidden=True),
    "progress_fd": OptionInfo("Descriptor of a pipe that takes progress messages.", minimum=0, hidden=True),
}
