"""What a worker's options mean, in words and bounds."""

from baton.engine.kv_dtype import KV_CACHE_DTYPES
from baton.rpc.options import OptionInfo
from baton.rpc.tls_options import TLS_OPTIONS

TRANSPORTS = ("auto", "shared_memory", "nixl", "tcp")
GPU_TRANSPORTS = ("auto", "nixl", "nccl", "staged")  # for workers on GPUs

ENGINE_OPTIONS = {
    "model": OptionInfo("Directory of a checkpoint in Hugging Face's format."),
    "dtype": OptionInfo(
        "Type of weights and of what is computed; auto is the checkpoint's.", choices=("auto", "bfloat16", "float32")
    ),
    "quantization": OptionInfo(
        "int8: weights, and what they are multiplied with, have 8 bits each, on CPUs. Unset: as dtype says.",
        choices=("int8",),
        aliases=("-q",),
    ),
    "device": OptionInfo("Device of the model: auto (a GPU if torch sees one), cpu, cuda or cuda:N."),
    "block_size": OptionInfo("Tokens a KV block.", minimum=1, maximum=1024),
    "kv_cache_memory_bytes": OptionInfo(
        "Memory of the KV cache; unset: a share of the free memory, on a GPU what gpu_memory_utilization leaves.",
        minimum=1 << 16,
    ),
    "gpu_memory_utilization": OptionInfo(
        "Share of a GPU's memory to take: what the weights and the greatest step leave of it is the KV cache.",
        minimum=0.01,
        maximum=1,
    ),
    "kv_cache_dtype": OptionInfo(
        "Type of the KV cache; auto is that of what is computed; int8, on CPUs, takes about half of bfloat16's memory, "
        "fp8 (fp8_e4m3), on GPUs, half.",
        choices=KV_CACHE_DTYPES,
    ),
    "max_model_len": OptionInfo("Longest prompt plus output in tokens; unset: what the checkpoint allows.", minimum=1),
    "max_num_batched_tokens": OptionInfo("Token budget of an engine step; unset: 256, on a GPU 8192.", minimum=1),
    "max_num_seqs": OptionInfo("Most requests in a batch; unset: 64, on a GPU 256.", minimum=1),
    "max_num_waiting": OptionInfo("Most requests in the waiting queue; more are refused.", minimum=1),
    "enable_prefix_caching": OptionInfo("Keep the KV of finished requests for prompts that start alike."),
    "kv_parts": OptionInfo(
        "Parts that KV blocks are made of, the same for all workers that hand KV over: as many as the one with the "
        "most tensor-parallel ranks has. Unset: this worker's ranks.",
        minimum=1,
        maximum=1024,
    ),
    "num_threads": OptionInfo("Threads of torch.", minimum=1, maximum=4096),
    "cores": OptionInfo(
        "Cores that the engine computes on, and loads its weights from, such as 0-3,8; several ranks share them out. "
        "Unset: any."
    ),
    "async_scheduling": OptionInfo(
        "Launch a step while the one before it is under way; unset: on GPUs. A request with top-k, top-p, penalties or "
        "logprobs in the batch leaves it out for that step."
    ),
    "enforce_eager": OptionInfo("On a GPU, launch each kernel by itself: no CUDA graphs of decodes."),
}

WORKER_OPTIONS = {
    **ENGINE_OPTIONS,
    "role": OptionInfo("What the worker is for.", choices=("prefill", "decode", "both")),
    "worker_id": OptionInfo("Name of the worker, the same over restarts."),
    "host": OptionInfo("Address to listen on."),
    "port": OptionInfo("Port of its gRPC server; 0 for any free one.", minimum=0, maximum=65535),
    "transport": OptionInfo(
        "How KV blocks are read from other workers; on GPUs auto, nixl, nccl or staged.",
        choices=tuple(dict.fromkeys(TRANSPORTS + GPU_TRANSPORTS)),
    ),
    "kv_port": OptionInfo(
        "Port where other workers read KV blocks by tcp, or greet by nixl; 0 for any free one. With auto tcp has it, "
        "and nixl the next one; staged takes three, and auto on GPUs four.",
        minimum=0,
        maximum=65534,
    ),
    "served_model_name": OptionInfo("Name of the model; unset: the checkpoint directory's."),
    "transfer_deadline_s": OptionInfo("Longest wait in seconds for one read of announced blocks.", minimum=0),
    "registry": OptionInfo(
        "URL of the registry (redis://...) where routers find the worker; unset: none.", secret=True
    ),
    "lease_s": OptionInfo("Seconds after which the registry forgets a worker that is gone.", minimum=1, maximum=3600),
    "metrics_port": OptionInfo("Port for Prometheus metrics; unset: none.", minimum=0, maximum=65535),
    "drain_timeout_s": OptionInfo(
        "Longest wait in seconds for running requests at the end.", minimum=0, aliases=("--shutdown-timeout",)
    ),
    "max_step_s": OptionInfo(
        "Longest time in seconds of one engine step; after it the process ends, to be started again. "
        "Unset: 20, on a CPU 180.",
        minimum=0.1,
    ),
    "tensor_parallel": OptionInfo(
        "Ranks, processes of one machine, that have the model together: each computes a part of every layer.",
        minimum=1,
        maximum=64,
        aliases=("--tensor-parallel-size", "-tp"),
    ),
    "expert_parallel": OptionInfo(
        "Ranks over which a model's experts are spread; each is a worker with requests and KV of its own.",
        minimum=1,
        maximum=1024,
    ),
    "enable_expert_parallel": OptionInfo(
        "Keep each expert whole on one of the tensor-parallel ranks, instead of a part of it on each."
    ),
    "rendezvous": OptionInfo(
        "host:port of the `baton rendezvous` that knows the group's ranks; registry/NAME: the one that stands in the "
        "registry under that name; unset: under `default`."
    ),
    "group": OptionInfo("Name of the group of ranks at the rendezvous."),
    "group_port": OptionInfo("Port where other ranks wake this one; 0 for any free one.", minimum=0, maximum=65535),
    "min_expert_ranks": OptionInfo(
        "Ranks whose memory holds all experts: with fewer left the group computes nothing, and waits for more; at most "
        "as many as it begins with count.",
        minimum=1,
        maximum=1024,
    ),
    "all2all_backend": OptionInfo(
        "How tokens get to experts of other ranks: by the process group's all-to-all, or, in steps of few tokens, by "
        "nixl_ep between GPUs.",
        choices=("all_to_all", "nixl_ep"),
    ),
    "enable_eplb": OptionInfo("Place experts anew by their measured load (EPLB)."),
    "num_redundant_experts": OptionInfo("Replicas of a layer's experts, over all ranks.", minimum=0, maximum=65536),
    "eplb_step_interval": OptionInfo("Steps from one placement of the experts to the next.", minimum=1),
    "eplb_num_nodes": OptionInfo(
        "Nodes that the ranks are on, equally many on each, in the order of their names; a model's groups of experts "
        "then stay whole on a node.",
        minimum=1,
        maximum=1024,
    ),
    "strict": OptionInfo("Start only if `baton doctor` would find nothing wrong with the machine."),
    **TLS_OPTIONS,
    "progress_fd": OptionInfo("Descriptor of a pipe that takes progress messages.", minimum=0, hidden=True),
}
