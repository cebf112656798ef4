"""tokenizer.json and tokenizer_config.json of a model in a GGUF file."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from baton.engine.checkpoint.gguf.metadata import Metadata
from baton.engine.checkpoint.json_object import shown
from baton.engine.errors import EngineError, InvalidCheckpoint, UnsupportedModel

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # token types
SPACE = "▁"
MAX_PIECE_CHARS = 512  # of SentencePiece: longer pieces have too many pairs of parts
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a byte-level tokenizer splits texts before it merges."""

    pattern: str | None = None  # None: GPT-2's
    is_nfc: bool = False
    ignores_merges: bool = False
    single_digits: bool = False
    adds_bos: bool = False  # unless the file says otherwise


_LLAMA3 = Splitting(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}", ignores_merges=True, adds_bos=True
)
_QWEN2 = Splitting(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}", is_nfc=True)
SPLITTINGS = {
    "gpt-2": Splitting(),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "smollm": Splitting(single_digits=True),
    "tekken": Splitting(
        rf"{_CASED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+", ignores_merges=True, adds_bos=True
    ),
}  # by tokenizer.ggml.pre


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """Contents of the tokenizer's files."""

    tokenizer: str  # tokenizer.json
    config: dict[str, object]  # tokenizer_config.json


def gguf_tokenizer(metadata: Metadata, context: int) -> GgufTokenizer:
    """Return the tokenizer's files. Raises UnsupportedModel for kinds of tokenizers that are not supported."""
    try:
        return _made(metadata, context)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{error}; name another tokenizer with --tokenizer") from error
    except EngineError:
        raise
    except Exception as error:  # the library refuses what it cannot use with any type of error
        raise InvalidCheckpoint(f"{metadata.source}: the tokenizer cannot be used: {shown(str(error))}") from error


def _made(metadata: Metadata, context: int) -> GgufTokenizer:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise InvalidCheckpoint(f"{metadata.source}: tokenizer.ggml.tokens is empty")
    kinds = metadata.integers("tokenizer.ggml.token_type") if "tokenizer.ggml.token_type" in metadata else []
    model = metadata.text("tokenizer.ggml.model")
    if model == "gpt2":
        made, adds_bos = _byte_level(metadata, tokens)
    elif model == "llama":
        made, adds_bos = _sentence_piece(metadata, tokens, kinds), True
    else:
        raise UnsupportedModel(
            f"{metadata.source}: tokenizer.ggml.model {shown(model)} is not supported, only gpt2 and llama"
        )
    added = [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (CONTROL, USER_DEFINED) or (kind == UNKNOWN and model == "llama")
    ]
    made.add_tokens(added)
    config = _config(metadata, tokens, context)
    adds_bos = metadata.boolean("tokenizer.ggml.add_bos_token", adds_bos) and "bos_token" in config
    adds_eos = metadata.boolean("tokenizer.ggml.add_eos_token", False) and "eos_token" in config
    _add_affixes(made, config, tokens, adds_bos=adds_bos, adds_eos=adds_eos, is_byte_level=model == "gpt2")
    return GgufTokenizer(made.to_str(), config)


def _byte_level(metadata: Metadata, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    if "tokenizer.ggml.pre" not in metadata:
        raise UnsupportedModel(
            f"{metadata.source}: tokenizer.ggml.pre is missing, so how to split texts is not known; convert the model "
            "again with a current converter"
        )
    pre = metadata.text("tokenizer.ggml.pre")
    splitting = SPLITTINGS.get(pre)
    if splitting is None:
        raise UnsupportedModel(
            f"{metadata.source}: tokenizer.ggml.pre {shown(pre)} is not supported, only {', '.join(SPLITTINGS)}"
        )
    merges = []
    for merge in metadata.texts("tokenizer.ggml.merges") if "tokenizer.ggml.merges" in metadata else ():
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    model = BPE(
        _vocabulary(metadata, tokens), _usable(metadata, merges, tokens), ignore_merges=splitting.ignores_merges
    )
    made = Tokenizer(model)
    if splitting.is_nfc:
        made.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if splitting.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(splitting.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.pattern is None))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    return made, splitting.adds_bos


def _sentence_piece(metadata: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise InvalidCheckpoint(f"{metadata.source}: tokenizer.ggml.scores has {len(scores)} for {len(tokens)} tokens")
    vocabulary = _vocabulary(metadata, tokens)
    unknown = next((token for token, kind in zip(tokens, kinds, strict=False) if kind == UNKNOWN), None)
    merges = _merges(tokens, scores, vocabulary)
    made = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    has_prefix = metadata.boolean("tokenizer.ggml.add_space_prefix", True)
    replace = normalizers.Replace(" ", SPACE)
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if has_prefix else replace
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return made


def _merges(tokens: Sequence[str], scores: Sequence[float], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return the pairs that form a piece, best pieces first, in the order of transformers' converters."""
    found: list[tuple[float, int, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        for place in range(1, min(len(token), MAX_PIECE_CHARS)):
            left, right = token[:place], token[place:]
            if left in vocabulary and right in vocabulary:
                found.append((-score, -place, (left, right)))
    return [pair for _, _, pair in sorted(found, key=lambda each: each[:2])]


def _vocabulary(metadata: Metadata, tokens: Sequence[str]) -> dict[str, int]:
    vocabulary = {token: place for place, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        double = next(first for first, second in pairwise(sorted(tokens)) if first == second)
        raise InvalidCheckpoint(f"{metadata.source}: tokenizer.ggml.tokens has {shown(double)} twice")
    return vocabulary


def _usable(metadata: Metadata, merges: list[tuple[str, str]], tokens: Sequence[str]) -> list[tuple[str, str]]:
    known = set(tokens)
    for left, right in merges:
        if left not in known or right not in known or left + right not in known:
            raise InvalidCheckpoint(
                f"{metadata.source}: tokenizer.ggml.merges has {shown(f'{left} {right}')}, which are not all tokens"
            )
    return merges


def _config(metadata: Metadata, tokens: Sequence[str], context: int) -> dict[str, object]:
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.integer(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and not 0 <= token_id < len(tokens):
            raise InvalidCheckpoint(
                f"{metadata.source}: tokenizer.ggml.{key}_token_id must be below {len(tokens)}, not {token_id}"
            )
        if token_id is not None:
            config[f"{name}_token"] = tokens[token_id]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata.text("tokenizer.chat_template")
    return config


def _add_affixes(
    made: Tokenizer,
    config: dict[str, object],
    tokens: Sequence[str],
    *,
    adds_bos: bool,
    adds_eos: bool,
    is_byte_level: bool,
) -> None:
    """Make the tokenizer put its first and last token around texts."""
    bos, eos = str(config.get("bos_token", "")), str(config.get("eos_token", ""))
    template = [f"{bos}:0"] * adds_bos + ["$A:0"] + [f"{eos}:0"] * adds_eos
    steps: list[object] = [processors.ByteLevel(trim_offsets=False)] if is_byte_level else []
    if len(template) > 1:
        special = [(token, tokens.index(token)) for token in dict.fromkeys([bos] * adds_bos + [eos] * adds_eos)]
        pair = [*template, *(part.replace(":0", ":1").replace("$A", "$B") for part in template)]
        steps.append(processors.TemplateProcessing(single=template, pair=pair, special_tokens=special))
    if steps:
        made.post_processor = processors.Sequence(steps)


def as_json(contents: object) -> str:
    """Return a file's text, the same for the same contents."""
    return json.dumps(contents, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
