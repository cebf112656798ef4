"""Fields of other servers that this one does not have: their names here, or the feature that they ask for."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches

# By the name in llama.cpp, Ollama, SGLang, Text Generation Inference or transformers.
RENAMED: Mapping[str, str] = {
    "eos_token_id": "stop_token_ids",
    "input": "messages",
    "inputs": "prompt",
    "max_gen_len": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "min_length": "min_tokens",
    "min_new_tokens": "min_tokens",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "no_stop_trim": "include_stop_str_in_output",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "random_seed": "seed",
    "rep_pen": "repetition_penalty",
    "repeat_penalty": "repetition_penalty",
    "sampling_seed": "seed",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "text": "prompt",
    "token_ids": "tokens",
    "top_n_tokens": "top_logprobs",
}
MAX_COMPARED_CHARS = 64  # of a name for which similar ones are looked up, which takes time with its length
TEMPLATE_OPTIONS = frozenset({"enable_thinking", "reasoning_effort", "thinking"})
STRUCTURED_OUTPUT, LORA, SAMPLER = "Structured output", "LoRA", "This sampler"
FEATURES: Mapping[str, str] = {
    "adapter_id": LORA, "adapter_source": LORA, "lora": LORA, "lora_path": LORA, "lora_request": LORA,
    "ebnf": STRUCTURED_OUTPUT, "format": STRUCTURED_OUTPUT, "grammar": STRUCTURED_OUTPUT,
    "json_schema": STRUCTURED_OUTPUT, "regex": STRUCTURED_OUTPUT, "structural_tag": STRUCTURED_OUTPUT,
    "dry_multiplier": SAMPLER, "dynatemp_range": SAMPLER, "epsilon_cutoff": SAMPLER, "eta_cutoff": SAMPLER,
    "mirostat": SAMPLER, "smoothing_factor": SAMPLER, "tfs_z": SAMPLER, "top_a": SAMPLER, "top_n_sigma": SAMPLER,
    "typical_p": SAMPLER, "xtc_probability": SAMPLER,
    "images": "Multimodal input", "thinking_token_budget": "This budget",
    "watermark": "A watermark",
}  # fmt: skip


def advice(name: str, known: Collection[str]) -> str:
    """Return what to do about an unknown field, given the names of known ones; empty if there is nothing to say."""
    if name in FEATURES or name.startswith("guided_"):
        return f"{FEATURES.get(name, STRUCTURED_OUTPUT)} is not supported by this server."
    if RENAMED.get(name) in known:
        return f"Use {RENAMED[name]}."
    if option := template_advice(name, known):
        return option
    similar = get_close_matches(name, known, n=1, cutoff=0.8) if len(name) <= MAX_COMPARED_CHARS else ()
    return f"Did you mean {similar[0]}?" if similar else ""


def template_advice(name: str, known: Collection[str]) -> str:
    """Return how to set an option that some chat templates have; empty for other fields."""
    if name in TEMPLATE_OPTIONS and "chat_template_kwargs" in known:
        return f'If the chat template has this option, set it in chat_template_kwargs: {{"{name}": ...}}.'
    return ""
