"""Options of speculative decoding, under vLLM's names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from baton.settings.values import JsonText, OptionError, parsed_json, shown

OPTION = "speculative_config"
NGRAM, SUFFIX, DRAFT_MODEL, MTP = "ngram", "suffix", "draft_model", "mtp"
EAGLE, EAGLE3, MEDUSA = "eagle", "eagle3", "medusa"
METHODS = (NGRAM, SUFFIX, DRAFT_MODEL, EAGLE, EAGLE3, MTP, MEDUSA)
LOOKUPS = (NGRAM, SUFFIX)  # methods without a model
MAX_DRAFT_TOKENS = 64
MAX_LOOKUP = 64
MAX_TREE_DEPTH = 256
MAX_CACHED_REQUESTS = 1_000_000
MAX_SPEC_FACTOR = 64.0


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Options of speculative decoding."""

    method: str
    num_speculative_tokens: int = 5  # most drafted tokens of a request and step
    prompt_lookup_min: int = 2  # shortest suffix that is looked up in the earlier tokens
    prompt_lookup_max: int = 5  # longest one
    model: str | None = None  # directory of the draft model, or of the heads with `eagle`, `eagle3`, `medusa`
    suffix_decoding_max_tree_depth: int = 24  # most tokens of a matched suffix and its draft together
    suffix_decoding_max_cached_requests: int = 10_000  # whose outputs are searched; 0: none but the request's own
    suffix_decoding_max_spec_factor: float = 1.0  # drafted tokens for each matched one
    suffix_decoding_min_token_prob: float = 0.1  # least probability of a draft, estimated by frequencies

    @classmethod
    def parse(cls, text: JsonText | None) -> "SpeculationConfig | None":
        """Return the options of a JSON object; None: no speculation. Raises OptionError."""
        if text is None:
            return None
        found = parsed_json(text)
        known = [each.name for each in fields(cls)]
        if unknown := sorted(set(found) - set(known)):
            raise OptionError(f"{OPTION}: {shown(unknown[0])} is unknown; the keys are {', '.join(known)}")
        method = found.get("method", DRAFT_MODEL if "model" in found else None)
        if method not in METHODS:
            problem = "method is missing" if method is None else f"method {shown(method)} is unknown"
            raise OptionError(f"{OPTION}: {problem}; the methods are {', '.join(METHODS)}")
        if foreign := next((key for key in OF_OTHERS[str(method)] if key in found), None):
            raise OptionError(f"{OPTION}: {foreign} has no effect on the method {method}; remove it")
        shortest, longest = _lookup(found)
        depth = _number(found, DEPTH, DEFAULTS.suffix_decoding_max_tree_depth, MAX_TREE_DEPTH)
        usual = min(depth, MAX_DRAFT_TOKENS) if method == SUFFIX else DEFAULTS.num_speculative_tokens
        count = _number(found, "num_speculative_tokens", usual, MAX_DRAFT_TOKENS)
        cached = _number(found, CACHED, DEFAULTS.suffix_decoding_max_cached_requests, MAX_CACHED_REQUESTS, least=0)
        factor = _real(found, FACTOR, DEFAULTS.suffix_decoding_max_spec_factor, MAX_SPEC_FACTOR)
        probability = _real(found, PROBABILITY, DEFAULTS.suffix_decoding_min_token_prob, 1.0)
        model = _model(found, str(method))
        return cls(str(method), count, shortest, longest, model, depth, cached, factor, probability)


DEFAULTS = SpeculationConfig(NGRAM)
LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")
DEPTH, CACHED = "suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"
FACTOR, PROBABILITY = "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"
OF_SUFFIX = (DEPTH, CACHED, FACTOR, PROBABILITY)
OF_MODELS = (*LOOKUP, *OF_SUFFIX)  # keys without effect on models and heads
NAMED = {  # by `model`
    DRAFT_MODEL: "a draft model",
    EAGLE: "an EAGLE head",
    EAGLE3: "an EAGLE-3 head",
    MEDUSA: "Medusa heads",
}
OF_OTHERS = {
    NGRAM: ("model", *OF_SUFFIX),
    SUFFIX: ("model", *LOOKUP),
    **dict.fromkeys(NAMED, OF_MODELS),
    MTP: ("model", *OF_MODELS),
}


def _model(found: Mapping[str, object], method: str) -> str | None:
    if method not in NAMED:
        return None
    model = found.get("model")
    if not isinstance(model, str) or not model:
        problem = f"is {shown(model)}, but" if "model" in found else "is missing: it"
        raise OptionError(f"{OPTION}: model {problem} must be the directory of {NAMED[method]}")
    return model


def _lookup(found: Mapping[str, object]) -> tuple[int, int]:
    """Return the shortest and the longest suffix that is looked up; one that is not given adapts to the other."""
    shortest, longest = DEFAULTS.prompt_lookup_min, DEFAULTS.prompt_lookup_max
    if "prompt_lookup_max" in found:
        longest = _number(found, "prompt_lookup_max", longest, MAX_LOOKUP)
        shortest = min(shortest, longest)
    if "prompt_lookup_min" in found:
        shortest = _number(found, "prompt_lookup_min", shortest, MAX_LOOKUP)
        longest = longest if "prompt_lookup_max" in found else max(longest, shortest)
    if shortest > longest:
        raise OptionError(
            f"{OPTION}: prompt_lookup_min is {shortest}, but must be at most prompt_lookup_max ({longest})"
        )
    return shortest, longest


def _number(found: Mapping[str, object], name: str, default: int, most: int, least: int = 1) -> int:
    value = found.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise OptionError(f"{OPTION}: {name} is {shown(value)}, but must be a number from {least} to {most}")
    return value


def _real(found: Mapping[str, object], name: str, default: float, most: float) -> float:
    value = found.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most:
        raise OptionError(f"{OPTION}: {name} is {shown(value)}, but must be a number above 0 and up to {most:g}")
    return float(value)
