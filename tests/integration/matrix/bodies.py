"""Bodies of the requests that use a feature."""

import base64
import io
import random
from collections.abc import Mapping
from typing import Any

from PIL import Image

from tests.architectures import VOCAB_SIZE

Body = Mapping[str, Any]

NUM_TOKENS = 120
NUM_WORDS = 24
END_OF_REASONING = 4097  # in the vocabulary of `checkpoints.thinking`
END_TOKENS = (0, 2)  # of the bundled model

GREEDY: Body = {"temperature": 0, "repetition_penalty": 1}
SEEDED: Body = {"temperature": 1, "seed": 7, "top_k": -1, "top_p": 1, "repetition_penalty": 1}
WHOLE: Body = {"max_tokens": NUM_TOKENS, "ignore_eos": True}


def prompt(seed: int) -> list[int]:
    """Return token ids of text in every vocabulary here."""
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=90)


def text_prompt(seed: int) -> list[int]:
    """Return token ids of the bundled model's texts, which are longer than characters."""
    return random.Random(seed).choices(range(300, 4000), k=90)


def repeated_prompt() -> list[int]:
    """Return a prompt whose greedy outputs repeat, as drafts need."""
    return [*range(300, 325)] * 4


BIASED = {  # a random model repeats itself, too, if few tokens are likely
    "prompt": [7, 8, 9, 7, 11] * 20,
    "logit_bias": {"7": 20, "8": 20, "9": 20},
    **GREEDY,
    **WHOLE,
}


def picture(width: int, height: int, seed: int) -> str:
    """Return the URL of an image of noise."""
    pixels = random.Random(seed).randbytes(3 * width * height)
    file = io.BytesIO()
    Image.frombytes("RGB", (width, height), pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def chat(content: object, **options: object) -> Body:
    """Return the body of a chat request with one message."""
    return {"messages": [{"role": "user", "content": content}], **options}


WORDS = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[a-z]{2,9}$"},
    "minItems": NUM_WORDS,
    "maxItems": NUM_WORDS,
}
OBJECT = {"type": "object", "properties": {"words": WORDS}, "required": ["words"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "say", "parameters": OBJECT}}

PENALISED: Body = {
    "prompt": text_prompt(3), **SEEDED, **WHOLE,
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2,
}  # fmt: skip
STOPPED: Body = {"prompt": text_prompt(5), **SEEDED, **WHOLE, "max_tokens": 300, "stop": ["http_error", "zzz"]}
SHORTEST: Body = {  # without the minimum, it would end at once
    "prompt": text_prompt(6), **SEEDED, "max_tokens": 2 * NUM_TOKENS, "min_tokens": NUM_TOKENS,
    "logit_bias": {str(token): 20 for token in END_TOKENS},
}  # fmt: skip
GRAMMAR: Body = {
    "prompt": text_prompt(7), **SEEDED, "max_tokens": 400,
    "structured_outputs": {"regex": "([a-z]{2,9} [0-9]{3}; ){20}end"},
}  # fmt: skip
SCHEMA: Body = {"prompt": text_prompt(8), **SEEDED, "max_tokens": 400, "structured_outputs": {"json": OBJECT}}
TOOL_CALL: Body = chat(
    "Say some words. " * 12, **SEEDED, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=400
)
REASONING: Body = chat("Think of some words. " * 12, **SEEDED, **WHOLE, logit_bias={str(END_OF_REASONING): 6})
IMAGE: Body = chat(
    [
        {"type": "text", "text": "What is in "},
        {"type": "image_url", "image_url": {"url": picture(150, 90, 1)}},
        {"type": "text", "text": "? Say it in one word."},
    ],
    **SEEDED,
    **WHOLE,
)
