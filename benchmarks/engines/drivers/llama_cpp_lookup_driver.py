"""llama.cpp through llama-cpp-python's `Llama`, with its own drafts by prompt lookup; one request at a time."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import llama_cpp
from driver import NewTokens, Setting, serve
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding


class LlamaCppLookup:
    """Owner of a model and the request that is generated."""

    version = f"llama-cpp-python {llama_cpp.__version__}"

    def __init__(self, setting: Setting) -> None:
        drafts = LlamaPromptLookupDecoding(num_pred_tokens=setting.num_drafts) if setting.num_drafts else None
        self._llama = llama_cpp.Llama(
            setting.model,
            n_ctx=setting.max_model_len + setting.num_drafts,
            n_threads=setting.num_threads,
            n_threads_batch=setting.num_threads,
            draft_model=drafts,
            verbose=False,
        )
        self._waiting: deque[tuple[int, Sequence[int], int]] = deque()
        self._current: tuple[int, int, Iterator[int]] | None = None  # request, tokens that are left, their source

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Add a request behind those before it."""
        self._waiting.append((request, prompt, num_output_tokens))

    def step(self) -> Iterable[NewTokens]:
        """Generate the next token of the oldest request."""
        if self._current is None:
            request, prompt, num_left = self._waiting.popleft()
            self._llama.reset()
            self._current = request, num_left, self._llama.generate(list(prompt), top_k=1, temp=0.0, repeat_penalty=1.0)
        request, num_left, tokens = self._current
        token_id = next(tokens)
        self._current = (request, num_left - 1, tokens) if num_left > 1 else None
        return [NewTokens(request, [token_id])]


if __name__ == "__main__":
    serve(LlamaCppLookup)
