"""Limits of one request, the same for all front ends."""

from collections.abc import Iterable, Sequence

from baton.router.config import RouterConfig
from baton.router.errors import ContextExceeded, FieldError
from baton.router.generation import Generation
from baton.settings.names import NAME_RULE, is_name

MAX_STOP_CHARS = 1024
MAX_TEXT_CHARS = 1024  # of a text that identifies a request or its user
MAX_ENTRIES = 4096  # of any list or object among a request's options
MAX_TEMPLATE_OPTIONS = 64
MAX_METADATA = 16  # key-value pairs, as in OpenAI's API
MAX_METADATA_NAME_CHARS = 64
MAX_METADATA_CHARS = 512
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # OpenAI's code
MAX_ECHO_CHARS = 1 << 26  # of one response: each completion repeats its prompt
MAX_HELD_LOGPROBS = 1 << 20  # of one response; all are in memory at its end, about 250 bytes each


def check_num_completions(config: RouterConfig, num_prompts: int, n: int) -> None:
    """Raise FieldError for a request with too many completions."""
    limit = config.max_completions
    if num_prompts * n > limit:
        text = f"n is {n}" + (f" for each of {num_prompts} prompts" if num_prompts > 1 else "")
        raise FieldError("n", f"{text}, over the limit of {limit} completions of one request")


def check_stop(config: RouterConfig, stop: Sequence[str]) -> None:
    """Raise FieldError for stop strings that are too many, too long or empty."""
    if len(stop) > config.max_stop:
        raise FieldError("stop", f"stop has {len(stop)} strings, over the limit of {config.max_stop}")
    if any(not 0 < len(each) <= MAX_STOP_CHARS for each in stop):
        raise FieldError("stop", f"each stop string must have 1 to {MAX_STOP_CHARS} characters")


def check_text(field: str, text: str | None) -> None:
    """Raise FieldError for an identifying text of more than `MAX_TEXT_CHARS`."""
    if text and len(text) > MAX_TEXT_CHARS:
        raise FieldError(field, f"{field} has {len(text)} characters, over the limit of {MAX_TEXT_CHARS}")


def check_worker_name(field: str, name: str | None) -> None:
    """Raise FieldError for an invalid worker name."""
    if name and not is_name(name):
        raise FieldError(field, f"{field} must be {NAME_RULE}")


def check_logprobs(generations: Sequence[Generation], whole: bool) -> None:
    """Raise FieldError for more logprobs than may be held for one response. `whole`: output logprobs are held too."""
    num_held = 0
    for generation in generations:
        sampling, n = generation.sampling, generation.request.n
        if sampling.prompt_logprobs is not None:
            num_held += n * len(generation.token_ids) * (1 + sampling.prompt_logprobs)  # each completion repeats them
        if sampling.logprobs is not None and whole:
            num_held += n * sampling.max_tokens * (1 + sampling.logprobs)
    if num_held > MAX_HELD_LOGPROBS:
        text = f"the response may have {num_held} logprobs, over the limit of {MAX_HELD_LOGPROBS}"
        raise FieldError("logprobs", f"{text}; ask for fewer, for a smaller max_tokens, or for a stream")


def check_echo(texts: Iterable[str], n: int) -> None:
    """Raise FieldError for prompts that are too long to be repeated in each of `n` completions."""
    num_chars = n * sum(map(len, texts))
    if num_chars > MAX_ECHO_CHARS:
        text = f"the prompts have {num_chars} characters in all completions together"
        raise FieldError("echo", f"{text}, over the limit of {MAX_ECHO_CHARS} for an echo; ask for a smaller n")


def context_error(field: str, max_model_len: int, num_tokens: int, num_output_tokens: int = 0) -> ContextExceeded:
    """Return the error for a request that exceeds the context, in the wording that OpenAI clients match."""
    asked = f"your request has {num_tokens} input tokens"
    if num_output_tokens:
        asked = (
            f"you requested {num_tokens + num_output_tokens} tokens ({num_tokens} input tokens and "
            f"{num_output_tokens} in the output)"
        )
    return ContextExceeded(
        field,
        f"This model's maximum context length is {max_model_len} tokens. However, {asked}. Please reduce the length of "
        f"the input{' or max_tokens' if num_output_tokens else ''}.",
        CONTEXT_LENGTH_EXCEEDED,
        max_model_len=max_model_len,
        num_tokens=num_tokens,
        num_output_tokens=num_output_tokens,
    )


def text_length_error(field: str, max_model_len: int, num_chars: int, max_chars: int) -> FieldError:
    """Return the error for a text that is too long for the context, however it is tokenised."""
    return FieldError(
        field,
        f"This model's maximum context length is {max_model_len} tokens, at most {max_chars} characters. However, your "
        f"request has {num_chars} characters. Please reduce its length.",
        CONTEXT_LENGTH_EXCEEDED,
    )
