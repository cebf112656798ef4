"""The output tensors of an inference."""

from collections.abc import Sequence

from baton.router.generation import CompletionDelta
from baton.router.kserve.inference import Inference
from baton.router.kserve.tensors import (
    FINISH_REASON,
    NUM_INPUT_TOKENS,
    NUM_OUTPUT_TOKENS,
    TEXT_OUTPUT,
    TOKEN_IDS,
    OutputTensor,
)

UNFINISHED = "None"  # finish reason of a completion that continues, as in Triton's vLLM backend


class Outputs:
    """Converter from the completions of one inference to its output tensors."""

    def __init__(self, inference: Inference, num_input_tokens: int, prefix: str) -> None:
        """`num_input_tokens`: of the prompt. `prefix`: of whole texts, the prompt or nothing."""
        self._wanted = inference.wanted
        self._num_completions = inference.body.n
        self._num_input_tokens = num_input_tokens
        self._prefix = prefix
        self._needs_tokens = bool({NUM_OUTPUT_TOKENS, TOKEN_IDS}.intersection(self._wanted))

    def of_delta(self, delta: CompletionDelta) -> list[OutputTensor]:
        """Return the tensors of new output of one completion; none while a character or stop string is incomplete."""
        if not (delta.text or delta.finish_reason or (self._needs_tokens and delta.token_ids)):
            return []
        completions = [CompletionDelta(index) for index in range(self._num_completions)]
        completions[delta.index] = delta
        return [OutputTensor(name, self._values(name, completions)) for name in self._wanted]

    def of_whole(self, completions: Sequence[CompletionDelta]) -> list[OutputTensor]:
        """Return the tensors of all completions, which are whole and in order, with the prompt if it is wanted."""
        tensors = []
        for name in self._wanted:
            values = self._values(name, completions)
            if name == TEXT_OUTPUT:
                values = [self._prefix + completion.text for completion in completions]
            tensors.append(OutputTensor(name, values))
        return tensors

    def _values(self, name: str, completions: Sequence[CompletionDelta]) -> Sequence[str] | Sequence[int]:
        if name == TEXT_OUTPUT:
            return [completion.text for completion in completions]
        if name == FINISH_REASON:
            return [completion.finish_reason or UNFINISHED for completion in completions]
        if name == NUM_INPUT_TOKENS:
            return [self._num_input_tokens]
        if name == NUM_OUTPUT_TOKENS:
            return [len(completion.token_ids) for completion in completions]
        assert name == TOKEN_IDS
        return completions[0].token_ids
