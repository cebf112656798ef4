"""`LLM`: offline inference with private prefill and decode workers.

1. The constructor starts a child process, which runs a router and workers for this LLM alone, and loads the tokenizer
   meanwhile.
2. A call tokenises and checks all prompts before it sends the first one.
3. The requests go to the router, as many at a time as the workers can use. Their outputs return in order.
4. `close`, the end of a `with` block, the garbage collector or the end of this process ends the child and all workers.
"""

import random
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TypeVar

from transformers import PreTrainedTokenizerFast

from baton.offline.adapters import LoadedAdapters, LoRARequest, load
from baton.offline.batch_size import max_in_flight
from baton.offline.completions import Completions
from baton.offline.conversations import IMAGES_IN_FLIGHT, Conversations
from baton.offline.embeddings import Embedding
from baton.offline.errors import Ended, RequestFailed
from baton.offline.images import LocalImages
from baton.offline.options import StrPath, read_options
from baton.offline.outputs import EmbeddingRequestOutput, RequestOutput, ScoringRequestOutput
from baton.offline.own_loop import run_on_own_loop
from baton.offline.per_prompt import one_each
from baton.offline.private_server import PrivateServer
from baton.offline.progress_bar import ProgressBar, UseTqdm
from baton.offline.prompts import Message, Prompt, PromptReader, Tokens, as_list
from baton.offline.requests import Job, Request, Requests
from baton.offline.sampling_params import SamplingParams
from baton.offline.scores import LABELS, check_pairs, failure_of_input, scores
from baton.router.model_info import read_model_info
from baton.router.text.tokenizer import Tokenizer
from baton.router.text.tokenizer_files import read_tokenizer

SEED_BITS = 63
RESET_PATH = "/reset_prefix_cache"
T = TypeVar("T")
Conversation = Sequence[Message]


class LLM:
    """A model with private prefill and decode workers. A context manager, which closes it."""

    def __init__(
        self,
        model: StrPath | None = None,
        *,
        num_prefill: int = 1,
        num_decode: int = 1,
        seed: int | None = 0,
        log_dir: StrPath | None = None,
        allowed_local_media_path: StrPath | None = None,
        **options: object,
    ) -> None:
        """Start the workers and wait until they serve.

        `model`: a directory, a GGUF file or a Hugging Face id; None: the bundled model. `num_prefill`: 0 for decode
        workers that prefill too. `seed`: from which those of requests without one are derived; None: at random.
        `allowed_local_media_path`: directory of the files that conversations may name as images; None: none.
        `options`: those of `baton serve`, with underscores, or vLLM's names for them.

        Raises OptionError, a ValueError, for an invalid option; ValueError for a model that cannot be served;
        StartFailed if the processes cannot start.
        """
        images = LocalImages.of(allowed_local_media_path)
        chosen = read_options(model, num_prefill, num_decode, log_dir, options)
        checkpoint = chosen.checkpoint()
        self._seeds = None if seed is None else random.Random(seed)
        self._numbers = count()
        self._adapters = LoadedAdapters() if chosen.has_lora else None
        self._adapter_turn = Lock()
        self._tokenizer_turn = Lock()
        self._tokenizer_directory = str(checkpoint.tokenizer or checkpoint.directory)
        server = PrivateServer(chosen.at(checkpoint))
        self._finalizer = weakref.finalize(self, server.close)
        try:
            self._tokenizer = Tokenizer(self._tokenizer_directory)
            info = read_model_info(str(checkpoint.directory), checkpoint.name, chosen.hf_overrides)
            serving = server.wait_ready()
        except BaseException:
            self.close()
            raise
        self._reader = PromptReader(self._tokenizer, info, serving.max_model_len)
        self._requests = Requests(serving.url, chosen.key, server.check)
        self._conversations = Conversations(self._reader, images, self._requests)
        self._max_in_flight = max_in_flight(num_decode, chosen.max_num_seqs)
        self.log_dir: Path = server.log_dir

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Return the completions of each prompt, in order.

        A prompt is a text, a list of token ids, or a mapping with `prompt` or `prompt_token_ids`. `sampling_params`:
        one for all prompts or one for each; None: the model's defaults. `priority`: lower ones are served first.

        Raises ValueError for invalid input before any work begins, RequestFailed with the index of a prompt that
        failed, Ended if the LLM was closed.
        """
        given = as_list(prompts)
        tokens = self._tokenize(partial(self._reader.read, given, room=1))
        return self._complete(tokens, sampling_params, use_tqdm, lora_request, priority)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Return the completions of each conversation, in order; `messages` is one conversation or several.

        The outputs are the model's text as it is, tool calls and reasoning included. Raises as `generate` does, and
        RequestFailed before any work begins for an image that the router refuses.
        """
        options = {
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message,
            "tools": list(tools or ()),
            "chat_template_kwargs": dict(chat_template_kwargs or {}),
        }
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        bodies = [{"messages": list(each), **options} for each in conversations]
        tokens = self._tokenize(partial(self._conversations.read, bodies))
        return self._complete(tokens, sampling_params, use_tqdm, lora_request, None)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: UseTqdm = True, dimensions: int | None = None
    ) -> list[EmbeddingRequestOutput]:
        """Return the embedding of each prompt, in order, of a model with a pooling. Raises as `generate` does."""
        tokens = self._tokenize(partial(self._reader.read, as_list(prompts), room=0))
        return self._embed(tokens, dimensions, use_tqdm)

    def score(
        self, data_1: Prompt | Sequence[Prompt], data_2: Prompt | Sequence[Prompt], *, use_tqdm: UseTqdm = True
    ) -> list[ScoringRequestOutput]:
        """Return the similarity of each pair of texts: the cosine of their embeddings; one `data_1` stands for all.

        Raises as `embed` does; the errors name `data_1` or `data_2`, and the index there.
        """
        lists = as_list(data_1, "data_1"), as_list(data_2, "data_2")
        num_first = len(lists[0])
        check_pairs(num_first, len(lists[1]))
        first, second = (
            self._tokenize(partial(self._reader.read, prompts, room=0, label=label))
            for label, prompts in zip(LABELS, lists, strict=True)
        )
        try:
            found = self._embed([*first, *second], None, use_tqdm)
        except RequestFailed as error:
            raise failure_of_input(error, num_first) from None
        return scores(found[:num_first], found[num_first:])

    def reset_prefix_cache(self) -> bool:
        """Have the workers forget the cached blocks that no request uses; return True. Raises RequestFailed."""
        self._run(partial(self._requests.post, Request(RESET_PATH, {})))
        return True

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the parameters in the model's generation_config.json, otherwise the usual ones."""
        given, max_tokens = self._reader.model.sampling_defaults, self._reader.model.default_max_tokens
        usual = SamplingParams()
        return SamplingParams(
            max_tokens=usual.max_tokens if max_tokens is None else max_tokens,
            temperature=given.temperature,
            top_p=given.top_p,
            top_k=given.top_k,
            min_p=given.min_p,
            repetition_penalty=given.repetition_penalty,
        )

    def get_tokenizer(self) -> PreTrainedTokenizerFast:
        """Return the model's tokenizer, as `transformers` has it."""
        return read_tokenizer(self._tokenizer_directory)

    def close(self) -> None:
        """End the workers and wait for their end. A call that is in progress in another thread fails."""
        self._finalizer()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _complete(
        self,
        tokens: Sequence[Tokens],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: UseTqdm,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        usual = self.get_default_sampling_params()
        given = one_each("sampling_params", sampling_params, SamplingParams, len(tokens))
        params = [each or usual for each in given]
        adapters = one_each("lora_request", lora_request, LoRARequest, len(tokens))
        priorities = one_each("priority", priority, int, len(tokens))
        for each in {id(each): each for each in params}.values():
            each.check(self._reader.model.vocab_size)
        self._load(adapters)
        jobs = [
            Completions(
                request_id=self._next_id(),
                prompt=prompt,
                params=chosen,
                seed=self._seed(chosen),
                max_model_len=self._reader.max_model_len,
                tokenizer=self._tokenizer,
                adapter=adapter,
                priority=urgency or 0,
            )
            for prompt, chosen, adapter, urgency in zip(tokens, params, adapters, priorities, strict=True)
        ]
        most = IMAGES_IN_FLIGHT if any(prompt.chat for prompt in tokens) else self._max_in_flight
        num_each = max((each.n for each in params), default=1)
        return self._send(jobs, max(1, min(most, self._max_in_flight) // num_each), use_tqdm)

    def _embed(
        self, tokens: Sequence[Tokens], dimensions: int | None, use_tqdm: UseTqdm
    ) -> list[EmbeddingRequestOutput]:
        jobs = [Embedding(self._next_id(), each, dimensions) for each in tokens]
        return self._send(jobs, self._max_in_flight, use_tqdm)

    def _send(self, jobs: Sequence[Job[T]], max_in_flight: int, use_tqdm: UseTqdm) -> list[T]:
        with ProgressBar(use_tqdm, len(jobs), "Processed prompts") as bar:
            return self._run(partial(self._requests.run, jobs, max_in_flight, bar.advance))

    def _load(self, adapters: Sequence[LoRARequest | None]) -> None:
        if not any(adapters):
            return
        if self._adapters is None:
            raise ValueError("lora_request needs an LLM with enable_lora=True")
        with self._adapter_turn:
            for name, path in self._adapters.missing(adapters).items():
                self._run(partial(load, self._requests, name, path))
                self._adapters.add(name, path)

    def _tokenize(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run work of the tokenizer. Calls from several threads take turns at it."""
        with self._tokenizer_turn:
            return self._run(work)

    def _run(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        if not self._finalizer.alive:
            raise Ended("the LLM is closed")
        return run_on_own_loop(work)

    def _next_id(self) -> str:
        return str(next(self._numbers))

    def _seed(self, params: SamplingParams) -> int | None:
        """Return the seed of a request: the given one, or the next one of the LLM."""
        if params.seed is not None:
            return params.seed
        return None if self._seeds is None else self._seeds.getrandbits(SEED_BITS)
