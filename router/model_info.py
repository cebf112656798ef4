"""Facts about the model that the router reads from its directory, without the tokenizer."""

import time
from dataclasses import dataclass
from pathlib import Path

from baton.engine.checkpoint.model_config import read_generation_defaults, read_model_config
from baton.engine.sampling.params import SamplingParams
from baton.engine.vision.config import VisionConfig
from baton.settings.values import JsonText, parsed_json


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The served model."""

    name: str  # for clients
    vocab_size: int  # logits per position
    max_model_len: int  # context length of the checkpoint in tokens; workers may have less
    sampling_defaults: SamplingParams  # from generation_config.json, otherwise the usual defaults
    default_max_tokens: int | None  # from generation_config.json
    created_s: int  # Unix time at which this router started to serve it
    vision: VisionConfig | None = None  # None: it takes no images


def read_model_info(directory: str, name: str, hf_overrides: JsonText | None = None) -> ModelInfo:
    """Read config.json and generation_config.json. Raises InvalidCheckpoint or UnsupportedModel."""
    path = Path(directory)
    given = read_generation_defaults(path)
    usual = SamplingParams()
    defaults = SamplingParams(
        temperature=usual.temperature if given.temperature is None else given.temperature,
        top_p=usual.top_p if given.top_p is None else given.top_p,
        top_k=usual.top_k if given.top_k is None else max(0, given.top_k),
        min_p=usual.min_p if given.min_p is None else given.min_p,
        repetition_penalty=usual.repetition_penalty if given.repetition_penalty is None else given.repetition_penalty,
    )
    dtype = "float32"  # any: the router computes nothing
    config = read_model_config(path, dtype, overrides=parsed_json(hf_overrides))
    created_s = int(time.time())
    return ModelInfo(
        name, config.vocab_size, config.max_model_len, defaults, given.max_new_tokens, created_s, config.vision
    )
