"""How much one request may ask for, whichever front end it comes through."""

from collections.abc import Sequence

from router.config import RouterConfig
from router.errors import FieldError

MAX_STOP_CHARS = 1024
MAX_SALT_CHARS = 1024
MAX_ENTRIES = 4096  # of any list or object among a request's options


def check_choices(config: RouterConfig, num_prompts: int, n: int) -> None:
    """Raises FieldError for more choices than are ever taken from one request."""
    limit = min(config.max_choices, config.max_inflight)
    if num_prompts * n > limit:
        text = f"n is {n}" + (f" for each of {num_prompts} prompts" if num_prompts > 1 else "")
        raise FieldError("n", f"{text}, over the limit of {limit} choices of one request")


def check_stop(config: RouterConfig, stop: Sequence[str]) -> None:
    """Raises FieldError for stop strings that are too many, too long or empty."""
    if len(stop) > config.max_stop:
        raise FieldError("stop", f"stop has {len(stop)} strings, over the limit of {config.max_stop}")
    if any(not 0 < len(each) <= MAX_STOP_CHARS for each in stop):
        raise FieldError("stop", f"stop has a string that has not 1 to {MAX_STOP_CHARS} characters")


def check_salt(cache_salt: str) -> None:
    """Raises FieldError for a cache salt that is too long."""
    if len(cache_salt) > MAX_SALT_CHARS:
        raise FieldError(
            "cache_salt", f"cache_salt has {len(cache_salt)} characters, over the limit of {MAX_SALT_CHARS}"
        )


def context_error(field: str, max_model_len: int, num_tokens: int) -> FieldError:
    """The error for a prompt that leaves no room in the context, in the words that OpenAI's clients look for."""
    return FieldError(
        field,
        f"This model's maximum context length is {max_model_len} tokens. However, your request has {num_tokens} "
        "input tokens. Please reduce the length of the input messages.",
    )
