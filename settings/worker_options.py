"""Help texts and bounds of a worker's options."""

from baton.engine.kv.dtype import KV_CACHE_DTYPES
from baton.settings.options import TLS_OPTIONS, OptionInfo

TRANSPORTS = ("auto", "shared_memory", "nixl", "tcp")
GPU_TRANSPORTS = ("auto", "nixl", "nccl", "staged")  # for workers on GPUs

ENGINE_OPTIONS = {
    "model": OptionInfo("Directory of a checkpoint in Hugging Face's format."),
    "dtype": OptionInfo(
        "Type of weights and activations; auto is the checkpoint's.", choices=("auto", "bfloat16", "float32")
    ),
    "quantization": OptionInfo(
        "int8, on CPUs: 8-bit weights and activations. Default: those of dtype.",
        choices=("int8",),
        aliases=("-q",),
    ),
    "device": OptionInfo("Device of the model: auto (a GPU if torch sees one), cpu, cuda or cuda:N."),
    "block_size": OptionInfo("Tokens per KV block.", minimum=1, maximum=1024),
    "kv_cache_memory_bytes": OptionInfo(
        "Memory of the KV cache. Default: a share of the free memory, on a GPU what gpu_memory_utilization leaves.",
        minimum=1 << 16,
    ),
    "gpu_memory_utilization": OptionInfo(
        "Share of a GPU's memory to use; the KV cache gets what the weights and the largest step leave of it.",
        minimum=0.01,
        maximum=1,
    ),
    "kv_cache_dtype": OptionInfo(
        "Type of the KV cache; auto is the type of the activations. int8, on CPUs, takes about half of bfloat16's "
        "memory; fp8 (fp8_e4m3), on GPUs, half.",
        choices=KV_CACHE_DTYPES,
        synonyms={"fp8_e4m3": "fp8"},
    ),
    "max_model_len": OptionInfo(
        "Longest prompt plus output in tokens. Default: what the checkpoint allows.", minimum=1
    ),
    "max_num_batched_tokens": OptionInfo("Token budget of an engine step. Default: 256, on a GPU 8192.", minimum=1),
    "max_num_seqs": OptionInfo("Maximum requests in a batch. Default: 64, on a GPU 256.", minimum=1),
    "max_num_waiting": OptionInfo("Maximum requests in the waiting queue; further ones are refused.", minimum=1),
    "enable_prefix_caching": OptionInfo("Keep the KV of finished requests for prompts with the same prefix."),
    "kv_parts": OptionInfo(
        "Shards of a KV block; equal for all workers that hand KV over to each other: the largest number of "
        "tensor-parallel ranks among them. Default: this worker's ranks.",
        minimum=1,
        maximum=1024,
    ),
    "num_threads": OptionInfo("Threads of torch.", minimum=1, maximum=4096),
    "cores": OptionInfo(
        "CPU cores of the engine, such as 0-3,8; the ranks of a worker divide them among themselves. Default: any."
    ),
    "async_scheduling": OptionInfo(
        "Launch a step while the previous one is running. Default: on GPUs. Steps with a request that uses top-k, "
        "top-p, penalties or logprobs wait for the previous one."
    ),
    "enforce_eager": OptionInfo("On a GPU, decode without CUDA graphs."),
}

WORKER_OPTIONS = {
    **ENGINE_OPTIONS,
    "role": OptionInfo("Role of the worker.", choices=("prefill", "decode", "both")),
    "worker_id": OptionInfo("Name of the worker, stable over restarts."),
    "host": OptionInfo("Address to listen on."),
    "port": OptionInfo("Port of its gRPC server; 0 for any free one.", minimum=0, maximum=65535),
    "uds": OptionInfo("Path of a Unix socket for the gRPC server instead of its port.", hidden=True),
    "transport": OptionInfo(
        "How KV blocks are read from other workers; on GPUs auto, nixl, nccl or staged.",
        choices=tuple(dict.fromkeys(TRANSPORTS + GPU_TRANSPORTS)),
    ),
    "kv_port": OptionInfo(
        "Port for KV reads by tcp, or for nixl's handshake; 0 for any free one. With auto, tcp has it and nixl the "
        "next one; staged takes three ports, and auto on GPUs four.",
        minimum=0,
        maximum=65534,
    ),
    "served_model_name": OptionInfo("Name of the model. Default: the checkpoint directory's name."),
    "transfer_deadline_s": OptionInfo("Maximum seconds for one read of announced blocks.", minimum=0),
    "orphan_timeout_s": OptionInfo(
        "Seconds for which a decode worker keeps the output of a resumable request after its end or the loss of its "
        "router; 0: none.",
        minimum=0,
    ),
    "registry": OptionInfo(
        "URL of the registry (redis://...) in which routers find the worker. Default: none.", secret=True
    ),
    "lease_s": OptionInfo(
        "Seconds after which the registry drops a worker that does not renew its entry.", minimum=1, maximum=3600
    ),
    "metrics_port": OptionInfo("Port for Prometheus metrics. Default: none.", minimum=0, maximum=65535),
    "drain_timeout_s": OptionInfo(
        "Maximum seconds to wait for running requests on shutdown.", minimum=0, aliases=("--shutdown-timeout",)
    ),
    "max_step_s": OptionInfo(
        "Maximum seconds of one engine step; a process whose step takes longer ends and is restarted. "
        "Default: 20, on a CPU 180.",
        minimum=0.1,
    ),
    "tensor_parallel": OptionInfo(
        "Ranks of the worker, processes of one machine; each computes a part of every layer.",
        minimum=1,
        maximum=64,
        aliases=("--tensor-parallel-size", "-tp"),
    ),
    "expert_parallel": OptionInfo(
        "Ranks over which a model's experts are spread; each is a worker with its own requests and KV.",
        minimum=1,
        maximum=1024,
    ),
    "enable_expert_parallel": OptionInfo(
        "Keep each expert whole on one of the tensor-parallel ranks, instead of a part of it on each."
    ),
    "rendezvous": OptionInfo(
        "host:port of the group's `baton rendezvous`; registry/NAME: the one registered under that name. Default: the "
        "one registered as `default`."
    ),
    "group": OptionInfo("Name of the group of ranks at the rendezvous."),
    "group_port": OptionInfo("Port on which other ranks wake this one; 0 for any free one.", minimum=0, maximum=65535),
    "min_expert_ranks": OptionInfo(
        "Minimum ranks of the group, whose memory must hold all experts; with fewer it pauses until more join. The "
        "group's size at its start is the upper limit.",
        minimum=1,
        maximum=1024,
    ),
    "all2all_backend": OptionInfo(
        "How tokens are sent to experts of other ranks: with the process group's all-to-all, or, in steps of few "
        "tokens, with nixl_ep between GPUs.",
        choices=("all_to_all", "nixl_ep"),
    ),
    "enable_eplb": OptionInfo("Rebalance experts by their measured load (EPLB)."),
    "num_redundant_experts": OptionInfo("Replicas of a layer's experts, over all ranks.", minimum=0, maximum=65536),
    "eplb_step_interval": OptionInfo("Steps between two rebalances of the experts.", minimum=1),
    "eplb_num_nodes": OptionInfo(
        "Nodes of the ranks, with the same number on each, in the order of their names; each of a model's expert "
        "groups stays on one node.",
        minimum=1,
        maximum=1024,
    ),
    "strict": OptionInfo("Start only if every check of the machine by `baton doctor` is ok."),
    **TLS_OPTIONS,
    "progress_fd": OptionInfo("File descriptor of a pipe for progress messages.", minimum=0, hidden=True),
}
