"""How large and how fast a simulated worker is."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A step takes `step_s`, plus `sequence_s` for each sequence that decodes, plus its prompt tokens' time.

    A step with prompts takes `prompts_step_s` more, however few tokens they have. A prompt token takes longer the more
    tokens it looks at, if `attended_s` says so. Left out is that long contexts decode slower.
    """

    block_size: int = 16  # tokens
    num_blocks: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048  # a step's prompt and output tokens together
    max_model_len: int = 1 << 17
    max_queue_len: int = 4096  # waiting requests; more are refused
    step_s: float = 0.010
    sequence_s: float = 0.0001
    prompts_step_s: float = 0.0  # more, of a step that computes prompts
    prefill_tokens_per_s: float = 20_000.0  # beside what they attend to
    attended_s: float = 0.0  # of a prompt token for each token that it looks at, itself among them
    block_bytes: int = 2 << 20
    link_bytes_per_s: float = 10e9  # at which a peer's blocks come
    first_token_id: int = 300  # of the token ids that it says, beyond a vocabulary's special tokens
    num_token_ids: int = 3000

    def scaled(self, time_scale: float) -> "WorkerSpec":
        """The same worker when each of its seconds takes `time_scale` seconds. Raises ValueError for what cannot be."""
        if not 0 < time_scale < float("inf"):
            raise ValueError(f"the time scale is {time_scale}, but must be above 0")
        self.check()
        return replace(
            self,
            step_s=self.step_s * time_scale,
            sequence_s=self.sequence_s * time_scale,
            prompts_step_s=self.prompts_step_s * time_scale,
            prefill_tokens_per_s=self.prefill_tokens_per_s / time_scale,
            attended_s=self.attended_s * time_scale,
            link_bytes_per_s=self.link_bytes_per_s / time_scale,
        )

    def check(self) -> None:
        """Raises ValueError naming the first value that no worker can have."""
        for name in ("block_size", "max_num_seqs", "max_model_len", "max_queue_len", "block_bytes", "num_token_ids"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 1 or more")
        for name in ("step_s", "sequence_s", "prompts_step_s", "attended_s", "first_token_id"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be 0 or more")
        for name in ("prefill_tokens_per_s", "link_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be above 0")
        if self.num_blocks < 2:
            raise ValueError(f"num_blocks is {self.num_blocks}, but must be 2 or more: one is for padding")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, but must exceed max_num_seqs "
                f"({self.max_num_seqs}), or prompts would starve behind decodes"
            )

    def step_time_s(self, num_sequences: int, num_prompt_tokens: int, num_attended: int = 0) -> float:
        """Seconds of a step that decodes so many sequences and computes so many prompt tokens, which look at so many
        tokens, all added up.
        """
        prompts_step_s = self.prompts_step_s if num_prompt_tokens else 0.0
        prompts_s = prompts_step_s + self.prompts_s(num_prompt_tokens, num_attended)
        return self.step_s + self.sequence_s * num_sequences + prompts_s

    def prompts_s(self, num_tokens: int, num_attended: int) -> float:
        """Seconds of prompt tokens that look at so many tokens, all added up."""
        return num_tokens / self.prefill_tokens_per_s + self.attended_s * num_attended
