"""Output of a model in a quantization, compared with its output in full precision."""

import json
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.weight_memory import weights_bytes
from baton.engine.kv.dtype import kv_bytes_per_token
from benchmarks.engines.checkpoint import DENSE, make_checkpoint
from benchmarks.quantization.formats import Format
from tests.paged_model import PagedModel
from tests.unit.engine.perplexity import BUNDLED, TEXT, logits_of

CHUNK = 64  # tokens computed at once
NUM_RANDOM = 256  # tokens for the random model


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Distance of a model's output from that in full precision."""

    perplexity: float
    divergence: float  # Kullback-Leibler, of the distribution in full precision from this one, in nats a token
    same_greedy: float  # share of positions with the same most probable token


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and a text, with the logits in full precision."""

    plain: Path  # checkpoint in bf16
    exact: Path  # the same numbers in fp32
    tokens: list[int]
    expected: Tensor  # logits after each token, in fp32

    @classmethod
    def of(cls, plain: Path, tokens: list[int], directory: Path) -> "Subject":
        """Write the checkpoint in fp32 into `directory`, and compute its logits."""
        exact = in_full_precision(plain, directory / "exact")
        return cls(plain, exact, tokens, logits_of(PagedModel(exact, dtype="float32"), tokens, CHUNK))

    def checkpoint(self, fmt: Format, directory: Path) -> Path:
        """Return the checkpoint in a format, written into `directory` if it is not the plain one."""
        return self.plain if fmt.write is None else fmt.write(self.exact, directory)

    def accuracy(self, checkpoint: Path, fmt: Format) -> Accuracy:
        """Compute in bf16. Raises UnsupportedModel if this machine cannot compute with the format."""
        model = PagedModel(checkpoint, dtype="bfloat16", kv_dtype=fmt.kv_dtype, quantization=fmt.quantization)
        logits = logits_of(model, self.tokens, CHUNK).float()
        divergence = F.kl_div(logits.log_softmax(-1), self.expected.log_softmax(-1), log_target=True, reduction="sum")
        return Accuracy(
            perplexity=float(F.cross_entropy(logits[:-1], torch.tensor(self.tokens[1:])).exp()),
            divergence=float(divergence) / len(self.tokens),
            same_greedy=float((logits.argmax(-1) == self.expected.argmax(-1)).float().mean()),
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a model as it is held on a CPU."""

    weights: int
    kv_token: int  # of one token in all layers

    @classmethod
    def of(cls, checkpoint: Path, fmt: Format) -> "Memory":
        """Return the memory that a worker plans for."""
        config = read_model_config(checkpoint, "bfloat16")
        return cls(weights_bytes(checkpoint, config, fmt.quantization), kv_bytes_per_token(config, fmt.kv_dtype))


def bundled(directory: Path) -> Subject:
    """Return the bundled model with a text about programming."""
    tokens = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).encode(TEXT).ids
    return Subject.of(BUNDLED, tokens, directory)


def random_model(directory: Path, num_layers: int, vocab_size: int) -> Subject:
    """Return a random model of Qwen3-0.6B's shape, with fewer layers and tokens if asked, and random tokens."""
    sizes = {"num_hidden_layers": num_layers, "vocab_size": vocab_size}
    shape = replace(DENSE, options={**DENSE.options, **sizes})
    plain = directory / "plain"
    make_checkpoint(shape, plain)
    tokens = random.Random(0).choices(range(3, vocab_size), k=NUM_RANDOM)
    return Subject.of(plain, tokens, directory)


def in_full_precision(source: Path, target: Path) -> Path:
    """Write a checkpoint of one file with the same numbers in fp32."""
    shutil.copytree(source, target)
    tensors = {name: tensor.float() for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config.pop("torch_dtype", None)
    (target / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    return target
