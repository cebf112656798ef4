"""Help texts and bounds of the options of simulated workers."""

from baton.settings.options import OptionInfo

MAX_WORKERS = 10_000

SPEC_OPTIONS = {
    "block_size": OptionInfo("Tokens per KV block.", minimum=1, maximum=1024),
    "num_blocks": OptionInfo("Blocks in a worker's pool.", minimum=2),
    "max_num_seqs": OptionInfo("Maximum number of requests in a batch.", minimum=1),
    "max_num_batched_tokens": OptionInfo("Token budget of a step.", minimum=2),
    "max_model_len": OptionInfo("Maximum length of prompt plus output, in tokens.", minimum=2),
    "max_queue_len": OptionInfo("Maximum number of waiting requests; more are refused.", minimum=1),
    "step_s": OptionInfo("Seconds that every step takes at least.", minimum=0),
    "sequence_s": OptionInfo("Seconds that each decoding sequence adds to a step.", minimum=0),
    "prompts_step_s": OptionInfo("Seconds that prompts add to a step, however few tokens they have.", minimum=0),
    "prefill_tokens_per_s": OptionInfo("Prompt tokens computed per second, within steps.", minimum=1e-3),
    "attended_s": OptionInfo("Seconds that a prompt token takes for each token that it attends to.", minimum=0),
    "block_bytes": OptionInfo("Bytes of a block that a transfer reads.", minimum=1),
    "link_bytes_per_s": OptionInfo("Bytes per second that a worker reads from its peers.", minimum=1),
    "first_token_id": OptionInfo("Lowest token id that the workers generate.", minimum=0, maximum=1 << 30),
    "num_token_ids": OptionInfo("Number of different token ids that they generate.", minimum=1, maximum=1 << 30),
}

SIMULATION_OPTIONS = {
    **SPEC_OPTIONS,
    "prefill": OptionInfo("Prefill workers.", minimum=0, maximum=MAX_WORKERS),
    "decode": OptionInfo("Decode workers.", minimum=0, maximum=MAX_WORKERS),
    "both": OptionInfo("Colocated workers, which prefill and decode.", minimum=0, maximum=MAX_WORKERS),
    "host": OptionInfo("Address to listen on; each worker chooses a free port."),
    "model": OptionInfo("Name of the served model."),
    "fingerprint": OptionInfo("Fingerprint of their KV; only workers with equal fingerprints hand prompts over."),
    "worker_prefix": OptionInfo("Prefix of the workers' ids, so that they are unique among several processes."),
    "time_scale": OptionInfo("Real seconds for each second of the spec.", minimum=1e-6),
    "registry": OptionInfo("URL of the registry (redis://...) where routers find the workers. Default: none."),
    "lease_s": OptionInfo(
        "Seconds after which the registry drops a worker that no longer renews its entry.", minimum=1, maximum=3600
    ),
    "drain_timeout_s": OptionInfo("Maximum seconds to wait for running requests at shutdown.", minimum=0),
    "progress_fd": OptionInfo("Descriptor of a pipe for progress messages.", minimum=0, hidden=True),
}
