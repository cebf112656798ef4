"""A draft model as its files and the options describe it; no torch."""

from dataclasses import dataclass, replace
from pathlib import Path

from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.checkpoint.vocabulary import vocabulary_digest
from baton.engine.checkpoint.weight_memory import weights_bytes
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError, InvalidCheckpoint, UnsupportedModel
from baton.engine.kv.dtype import kv_bytes_per_token
from baton.engine.speculation.config import DRAFT_MODEL, OPTION, SpeculationConfig


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """A draft model that fits the model for which it drafts."""

    directory: Path
    engine: EngineConfig  # as if it were served itself
    config: ModelConfig
    max_model_len: int  # tokens of the longest request for which it drafts

    @classmethod
    def of(cls, engine: EngineConfig, target: ModelConfig) -> "DraftCheckpoint | None":
        """Return the draft model that an engine's options name for a model; None: there is none.

        Raises InvalidCheckpoint or UnsupportedModel if it cannot draft for this model.
        """
        options = SpeculationConfig.parse(engine.speculative_config)
        if options is None or options.method != DRAFT_MODEL or options.model is None:
            return None
        directory = Path(options.model).expanduser()
        if not directory.is_dir():
            raise InvalidCheckpoint(
                f"{OPTION}: the draft model {options.model} is not a directory; name one with a checkpoint"
            )
        own = _as_served(engine, directory)
        try:
            config = model_config_of(own)
        except EngineError as error:
            raise type(error)(f"{OPTION}: the draft model {directory}: {error}") from error
        if config.recurrent is not None:
            raise UnsupportedModel(
                f"{OPTION}: the draft model {directory} has recurrent layers, whose state cannot take back drafted "
                "tokens; name a model with attention only"
            )
        _check_vocabulary(Path(engine.tokenizer_directory), target, directory, config)
        max_model_len = min(config.default_model_len, engine.max_model_len or target.default_model_len)
        return cls(directory, own, config, max_model_len)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of its KV."""
        return self.engine.block_size * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of its KV of one token."""
        return kv_bytes_per_token(self.config)

    @property
    def weights_bytes(self) -> int:
        """Bytes of its weights on a CPU."""
        return weights_bytes(self.directory, self.config, self.engine.quantization)


def _as_served(engine: EngineConfig, directory: Path) -> EngineConfig:
    """Return the options of an engine as far as they also apply to its draft model."""
    return replace(
        engine,
        model=str(directory),
        tokenizer=None,
        hf_overrides=None,
        kv_cache_dtype="auto",
        max_model_len=None,
        hybrid_kv_cache=False,
        pooling="none",
        speculative_config=None,
        enable_lora=False,
    )


def _check_vocabulary(tokenizer: Path, target: ModelConfig, directory: Path, config: ModelConfig) -> None:
    """Raise InvalidCheckpoint if a token id would mean different things to the two models."""
    digests = {each: vocabulary_digest(each) for each in (tokenizer, directory)}
    if all(digests.values()):
        differ = digests[tokenizer] != digests[directory]
    else:  # nothing but the size is known
        differ = target.vocab_size != config.vocab_size
    if differ:
        raise InvalidCheckpoint(
            f"{OPTION}: the draft model {directory} has another vocabulary ({config.vocab_size} tokens) than "
            f"{tokenizer} ({target.vocab_size}); name a draft model with the same tokenizer"
        )
