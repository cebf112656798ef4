"""Capacity and speed of a simulated worker."""

from dataclasses import dataclass, replace

from baton.settings.options import option, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker's limits, and the times of its steps and transfers.

    A step takes `step_s`, plus `sequence_s` for each sequence that decodes, plus the time of its prompt tokens. A step
    with prompts takes `prompts_step_s` more, however few tokens they have. With `attended_s`, a prompt token takes
    longer the more tokens it attends to. Decoding does not slow down with the length of the context.
    """

    block_size: int = option(16, "Tokens per KV block.", minimum=1, maximum=1024)
    num_blocks: int = option(8192, "Blocks in a worker's pool.", minimum=2)
    max_num_seqs: int = option(256, "Maximum requests in a batch.", minimum=1)
    max_num_batched_tokens: int = option(
        2048, "Token budget of a step, for prompt and output tokens together.", minimum=2
    )
    max_model_len: int = option(1 << 17, "Longest prompt plus output in tokens.", minimum=2)
    max_queue_len: int = option(4096, "Maximum waiting requests; further ones are refused.", minimum=1)
    step_s: float = option(0.010, "Seconds of every step.", minimum=0)
    sequence_s: float = option(0.0001, "Additional seconds of a step for each decoding sequence.", minimum=0)
    prompts_step_s: float = option(0.0, "Additional seconds of a step that computes prompts.", minimum=0)
    prefill_tokens_per_s: float = option(
        20_000.0, "Prompt tokens computed per second within steps, apart from attention.", minimum=1e-3
    )
    attended_s: float = option(
        0.0, "Seconds of a prompt token for each token that it attends to, including itself.", minimum=0
    )
    block_bytes: int = option(2 << 20, "Bytes of a block, as sent over the link.", minimum=1)
    link_bytes_per_s: float = option(10e9, "Bytes per second that a worker receives from its peers.", minimum=1)
    first_token_id: int = option(
        300, "First of the output token ids, beyond a vocabulary's special tokens.", minimum=0, maximum=1 << 30
    )
    num_token_ids: int = option(3000, "Number of different output token ids.", minimum=1, maximum=1 << 30)

    def scaled(self, time_scale: float) -> "WorkerSpec":
        """Return the spec in which each second takes `time_scale` seconds. Raises ValueError for impossible values."""
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
        """Raise ValueError with the first value that is impossible: a spec may be made without its options' parser."""
        for name, each in options_of(WorkerSpec).items():
            if not each.help.allows(value := getattr(self, name)):
                raise ValueError(f"{name} is {value}, but must be {each.allowed}")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, but must exceed max_num_seqs "
                f"({self.max_num_seqs}), or prompts would starve behind decodes"
            )

    def step_time_s(self, num_sequences: int, num_prompt_tokens: int, num_attended: int = 0) -> float:
        """Return the seconds of a step.

        num_sequences: decoding ones; num_attended: sum over the prompt tokens of the tokens that each attends to.
        """
        prompts_step_s = self.prompts_step_s if num_prompt_tokens else 0.0
        prompts_s = prompts_step_s + self.prompts_s(num_prompt_tokens, num_attended)
        return self.step_s + self.sequence_s * num_sequences + prompts_s

    def prompts_s(self, num_tokens: int, num_attended: int) -> float:
        """Return the seconds of prompt tokens; num_attended: see `step_time_s`."""
        return num_tokens / self.prefill_tokens_per_s + self.attended_s * num_attended
