"""What the options of simulated workers mean, in words and bounds."""

from baton.settings.options import OptionInfo

MAX_WORKERS = 10_000

SPEC_OPTIONS = {
    "block_size": OptionInfo("Tokens a KV block.", minimum=1, maximum=1024),
    "num_blocks": OptionInfo("Blocks in a worker's pool.", minimum=2),
    "max_num_seqs": OptionInfo("Most requests in a batch.", minimum=1),
    "max_num_batched_tokens": OptionInfo("Token budget of a step.", minimum=2),
    "max_model_len": OptionInfo("Longest prompt plus output in tokens.", minimum=2),
    "max_queue_len": OptionInfo("Most waiting requests; more are refused.", minimum=1),
    "step_s": OptionInfo("Seconds of any step.", minimum=0),
    "sequence_s": OptionInfo("Seconds that each decoding sequence adds to a step.", minimum=0),
    "prompts_step_s": OptionInfo("Seconds that a step with prompts takes more.", minimum=0),
    "prefill_tokens_per_s": OptionInfo("Prompt tokens computed a second, within steps.", minimum=1e-3),
    "attended_s": OptionInfo("Seconds that a prompt token takes for each token that it looks at.", minimum=0),
    "block_bytes": OptionInfo("Bytes of a block, as they go over the link.", minimum=1),
    "link_bytes_per_s": OptionInfo("Bytes a second that come to a worker from its peers.", minimum=1),
    "first_token_id": OptionInfo("First of the token ids that the workers say.", minimum=0, maximum=1 << 30),
    "num_token_ids": OptionInfo("How many token ids they say.", minimum=1, maximum=1 << 30),
}

SIMULATION_OPTIONS = {
    **SPEC_OPTIONS,
    "prefill": OptionInfo("Prefill workers.", minimum=0, maximum=MAX_WORKERS),
    "decode": OptionInfo("Decode workers.", minimum=0, maximum=MAX_WORKERS),
    "both": OptionInfo("Colocated workers, which prefill and decode.", minimum=0, maximum=MAX_WORKERS),
    "host": OptionInfo("Address to listen on; each worker has a free port of its own."),
    "model": OptionInfo("Name of the model that the workers say they serve."),
    "fingerprint": OptionInfo("Fingerprint of their KV; prompts are handed over between equal ones."),
    "worker_prefix": OptionInfo("Begins the workers' ids, to tell those of several processes apart."),
    "time_scale": OptionInfo("Real seconds for each second of the spec.", minimum=1e-6),
    "registry": OptionInfo("URL of the registry (redis://...) where routers find the workers; unset: none."),
    "lease_s": OptionInfo("Seconds after which the registry forgets a worker that is gone.", minimum=1, maximum=3600),
    "drain_timeout_s": OptionInfo("Longest wait in seconds for running requests at the end.", minimum=0),
    "progress_fd": OptionInfo("Descriptor of a pipe that takes progress messages.", minimum=0, hidden=True),
}
