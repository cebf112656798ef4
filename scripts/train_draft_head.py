"""Training of an EAGLE-3 head, which drafts tokens for a model: the bundled one, or another that transformers loads.

    python scripts/train_draft_head.py --output /tmp/head [--model DIRECTORY --text FILE] [--steps 400]

The text is that of the bundled model, or a file of plain text, best of the model's own outputs. The default takes some
minutes on one CPU core; the files are brought up to date as it goes.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from bundled_model.text import collect_text
from bundled_model.windows import Corpus, cut_windows
from draft_head.network import Head, HeadSizes
from draft_head.training import HeadTrainer, Progress, TrainingPlan
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

BUNDLED = Path("baton/bundled_model")
WINDOW, NUM_WINDOWS = 256, 4
COUNTED_BATCHES = 100  # whose tokens determine which ones the head drafts


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--text", type=Path, help="plain text, UTF-8")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--draft-vocab-size", type=int, default=2048)
    parser.add_argument("--intermediate-size", type=int, default=256)
    parser.add_argument("--layers", type=int, nargs=3, default=(1, 2, 3), help="of the model, whose inputs are read")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(arguments)


def train(arguments: argparse.Namespace) -> None:
    """Run all steps: text, head, training, files."""
    torch.manual_seed(arguments.seed)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    batches = _batches(AutoTokenizer.from_pretrained(arguments.model), arguments.text, random.Random(arguments.seed))
    token_ids = most_frequent(islice(batches, COUNTED_BATCHES), arguments.draft_vocab_size, model.config.vocab_size)
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = (config.num_attention_heads, config.num_key_value_heads, head_dim)
    head = Head(HeadSizes(config.hidden_size, arguments.intermediate_size, *heads, len(token_ids)))
    print(f"{sum(each.numel() for each in head.parameters()):,} parameters", file=sys.stderr, flush=True)

    layers = tuple(sorted(arguments.layers))

    def report(progress: Progress) -> None:
        print(json.dumps(asdict(progress)), file=sys.stderr, flush=True)
        save_head(head, token_ids, layers, config.vocab_size, config.max_position_embeddings, arguments.output)

    HeadTrainer(model, head, layers, token_ids, TrainingPlan(arguments.steps)).run(batches, report)


def most_frequent(batches: Iterator[Tensor], count: int, vocab_size: int) -> Tensor:
    """Return the `count` most frequent tokens, ascending."""
    counts = Counter(token_id for batch in batches for token_id in batch.flatten().tolist())
    rest = (token_id for token_id in range(vocab_size) if token_id not in counts)
    ranked = [token_id for token_id, _ in counts.most_common()]
    return torch.tensor(sorted([*ranked, *rest][: min(count, vocab_size)]))


def save_head(
    head: Head, token_ids: Tensor, layers: Sequence[int], vocab_size: int, context: int, directory: Path
) -> None:
    """Write a head as published ones are, in bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    sizes = asdict(head.sizes)
    is_drafted = torch.zeros(vocab_size, dtype=torch.bool)
    is_drafted[token_ids] = True
    maps = {"d2t": token_ids - torch.arange(len(token_ids)), "t2d": is_drafted}
    weights = {name: tensor.detach().to(torch.bfloat16) for name, tensor in head.state_dict().items()}
    save_file(weights | maps, directory / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "draft_vocab_size": sizes["draft_vocab_size"],
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_attention_heads": sizes["num_heads"],
        "num_key_value_heads": sizes["num_kv_heads"],
        "head_dim": sizes["head_dim"],
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(layers),
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _batches(tokenizer: PreTrainedTokenizerBase, text: Path | None, rng: random.Random) -> Iterator[Tensor]:
    if text is None:
        yield from Corpus(collect_text().streams, tokenizer).batches(NUM_WINDOWS, WINDOW, rng)
    assert text is not None
    windows = list(cut_windows([tokenizer(text.read_text())["input_ids"]], WINDOW, restart=False))
    while True:
        yield torch.tensor(rng.choices(windows, k=NUM_WINDOWS))


if __name__ == "__main__":
    main()
