"""The script that makes random checkpoints: transformers and the engine can load and tokenise its output."""

from pathlib import Path

import torch
import transformers

from baton.engine.checkpoint.model_config import read_model_config
from scripts.make_random_checkpoint import SPECIAL_TOKENS, save_tokenizer, write_weights
from tests.paged_model import PagedModel


def test_every_token_id_decodes_to_text(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, 2000, 512)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 2000
    text = "baton hands 1,000 Größen over…"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert all(tokenizer.decode([index]) for index in range(len(SPECIAL_TOKENS), 2000))
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_streamed_weights_match_the_config(tmp_path: Path) -> None:
    config = transformers.Qwen3Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    write_weights(config, tmp_path / "model.safetensors", seed=0)
    assert read_model_config(tmp_path).dtype == "bfloat16"
    oracle = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = list(range(3, 40))
    with torch.no_grad():
        expected = oracle(torch.tensor([tokens])).logits[0]
    logits = PagedModel(tmp_path, dtype="float32").step({"s": tokens})["s"]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
