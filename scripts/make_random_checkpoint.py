"""Generator of a random checkpoint with a tokenizer and a chat template, for serving and benchmarks.

    python scripts/make_random_checkpoint.py --shape qwen3-0.6b DIRECTORY
    python scripts/make_random_checkpoint.py --shape tiny-deepseek-v3 DIRECTORY

Tensors are written one at a time, so that memory holds only the largest one.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))  # the tiny architectures are those of the tests
from tests.architectures import ARCHITECTURES, VOCAB_SIZE
from tests.checkpoints import save_checkpoint

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3_06B = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 2,
}


def main() -> None:
    """Parse the command line and run."""
    shapes = ["qwen3-0.6b", *(f"tiny-{name}" for name in ARCHITECTURES)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=shapes, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    if arguments.shape.startswith("tiny-"):
        name = arguments.shape.removeprefix("tiny-")
        save_checkpoint(name, arguments.directory, arguments.seed)
        save_tokenizer(arguments.directory, VOCAB_SIZE, 512)
        return
    config = transformers.Qwen3Config(**QWEN3_06B, dtype="bfloat16")
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(arguments.directory)
    transformers.GenerationConfig(eos_token_id=[2, 0]).save_pretrained(arguments.directory)
    write_weights(config, arguments.directory / "model.safetensors", arguments.seed)
    save_tokenizer(arguments.directory, config.vocab_size, config.max_position_embeddings)


def write_weights(config: transformers.PreTrainedConfig, path: Path, seed: int) -> None:
    """Write random bf16 weights of a transformers model in the safetensors format, tensor by tensor."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in build(config).state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    generator = torch.Generator().manual_seed(seed)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, shape in shapes.items():
            file.write(random_tensor(name, shape, generator).view(torch.uint8).numpy().tobytes())


def build(config: transformers.PreTrainedConfig) -> torch.nn.Module:
    """Build the model of a configuration."""
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


def random_tensor(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return a random tensor: norms near one, matrices that preserve the scale of activations."""
    if name.endswith("norm.weight"):
        return torch.empty(shape).uniform_(0.8, 1.2, generator=generator).bfloat16()
    return torch.empty(shape).normal_(0, 1 / math.sqrt(shape[-1]), generator=generator).bfloat16()


def save_tokenizer(directory: Path, vocab_size: int, max_length: int) -> None:
    """Write a byte-level BPE tokenizer in which every id decodes to text, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIAL_TOKENS, *alphabet]
    merges = list(islice(letter_merges(), max(vocab_size - len(names), 0)))
    vocab = {token: index for index, token in enumerate([*names, *(left + right for left, right in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(directory)


def letter_merges() -> Iterator[tuple[str, str]]:
    """Yield merges for all strings of two letters, then of three, and so on: a known string and a letter each."""
    known = ["\u0120", *LETTERS]  # the first is a space in byte-level BPE
    while True:
        merges = [(token, letter) for token in known for letter in LETTERS]
        yield from merges
        known = [left + right for left, right in merges]


if __name__ == "__main__":
    main()
