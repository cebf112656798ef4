"""Model configuration, and its checkpoint in the Hugging Face layout."""

import json
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

from bundled_model.experts import register_experts
from bundled_model.tokenizer import END_OF_TEXT, END_OF_TURN


def build_model(tokenizer: PreTrainedTokenizerFast, vocab_size: int, max_length: int) -> Qwen3MoeForCausalLM:
    """Build an untrained Qwen3-MoE with 5.0 million parameters in bfloat16, 2.6 million of them active per token."""
    config = Qwen3MoeConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=512,  # unused: there are no dense layers
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        moe_intermediate_size=128,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=max_length,
        eos_token_id=tokenizer.convert_tokens_to_ids(END_OF_TURN),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        dtype="bfloat16",
    )
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    model.set_experts_implementation(register_experts())
    return model


def save_checkpoint(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (one tensor per expert, as in Qwen3-MoE checkpoints), configuration and tokenizer."""
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        repetition_penalty=1.05,
        max_new_tokens=512,  # in case it does not stop
        eos_token_id=[tokenizer.convert_tokens_to_ids(name) for name in (END_OF_TURN, END_OF_TEXT)],
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
    )
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it is created readable for its owner only
    tokenizer.save_pretrained(folder)
    # The name that all releases of transformers read; the newest writes a different one.
    path = folder / "tokenizer_config.json"
    written = json.loads(path.read_text())
    written["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(written, indent=2) + "\n")
