"""transformers: `generate` for one request at a time, which is faster, otherwise its continuous batching."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch
import transformers
from driver import Engine, NewTokens, Setting, serve
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.streamers import BaseStreamer

VERSION = f"transformers {transformers.__version__}"
PAGE_SIZE = 32  # tokens; small pages and a cache of the size needed are many times faster than the defaults
MIN_BATCH_TOKENS = 1024
SLACK = 1.25  # because it starts no prompt when few blocks are free
LONGEST_WAIT_S = 1.0


class TokenQueue(BaseStreamer):
    """Streamer into a queue that another thread reads. The first tokens are the prompt's."""

    def __init__(self, request: int, tokens: "SimpleQueue[NewTokens | BaseException]") -> None:
        self._request = request
        self._tokens = tokens
        self._is_prompt = True

    def put(self, value: torch.Tensor) -> None:
        """Handle a call from `generate`."""
        if not self._is_prompt:
            self._tokens.put(NewTokens(self._request, value.tolist()))
        self._is_prompt = False

    def end(self) -> None:
        """Handle a call from `generate`."""


class OneAtATime:
    """Owner of a model and its generating thread."""

    version = VERSION

    def __init__(self, model: PreTrainedModel, num_threads: int) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(num_threads,))
        self._tokens: SimpleQueue[NewTokens | BaseException] = SimpleQueue()

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Start generating."""
        self._thread.submit(self._generate, request, prompt, num_output_tokens)

    def step(self) -> Iterable[NewTokens]:
        """Wait for the next token."""
        new = self._tokens.get()
        if isinstance(new, BaseException):
            raise new
        return [new]

    def _generate(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        tokens = torch.tensor([prompt])
        config = GenerationConfig(
            max_new_tokens=num_output_tokens, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=True
        )
        try:
            self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                generation_config=config,
                streamer=TokenQueue(request, self._tokens),
            )
        except Exception as error:  # raised in the waiting thread
            self._tokens.put(error)


class ContinuousBatching:
    """Owner of a model and its generating thread."""

    version = VERSION

    def __init__(self, model: PreTrainedModel, setting: Setting) -> None:
        self._num_known: dict[int, int] = {}  # tokens of each request so far
        self._manager = model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True),
            ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=int(SLACK * setting.num_kv_tokens) // PAGE_SIZE + 2 * setting.max_num_seqs + 8,
                max_batch_tokens=max(MIN_BATCH_TOKENS, setting.max_model_len),
                max_requests_per_batch=setting.max_num_seqs,
                allow_block_sharing=setting.prefix_caching,
                use_async_batching=False,
            ),
        )
        self._manager.start()

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Add a request for the next step of the generating thread."""
        self._num_known[request] = 0
        self._manager.add_request(list(prompt), str(request), max_new_tokens=num_output_tokens, streaming=True)

    def step(self) -> Iterable[NewTokens]:
        """Wait for the next token of any request."""
        output = self._manager.get_result(timeout=LONGEST_WAIT_S)
        if output is None:
            if not self._manager.is_running():
                raise RuntimeError("the thread that generates has ended")
            return []
        if output.error is not None:
            raise RuntimeError(output.error)
        request = int(output.request_id)
        new = list(output.generated_tokens[self._num_known[request] :])
        self._num_known[request] += len(new)
        return [NewTokens(request, new)] if new else []


def load(setting: Setting) -> Engine:
    """Load the model. Only continuous batching has a prefix cache."""
    torch.set_num_threads(setting.num_threads)
    model = AutoModelForCausalLM.from_pretrained(setting.model, dtype="auto", attn_implementation="sdpa").eval()
    if setting.max_num_seqs == 1 and not setting.prefix_caching:
        return OneAtATime(model, setting.num_threads)
    return ContinuousBatching(model, setting)


if __name__ == "__main__":
    serve(load)
