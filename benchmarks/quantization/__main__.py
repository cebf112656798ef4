"""Quantizations of weights and of KV: memory and accuracy on a CPU.

    python -m benchmarks.quantization [--small] [--only TEXT] [--json FILE]

- `perplexity`: of the bundled model on a text about programming (tests/unit/engine/perplexity.py); in fp32 in the notes
- `same greedy`: share of the text's positions at which the most probable token is that of fp32
- `KL`: divergence of the next token's distribution in fp32 from that in the format, in nats a token, for the bundled
  model, and for a random model of Qwen3-0.6B's shape (with --small 4 of its 28 layers, and 4,096 tokens)
- `weights`: of the random model as they are held on a CPU; `KV`: bytes a token, all layers

Weights are rounded to the nearest code, without calibration: a GPTQ or AWQ checkpoint made with calibration is better.
Activations are in bf16.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import click
import torch
from rich.console import Console

from baton.engine.errors import UnsupportedModel
from benchmarks.quantization.accuracy import Accuracy, Memory, Subject, bundled, random_model
from benchmarks.quantization.formats import FORMATS, Format
from benchmarks.report import Cell, Report

COLUMNS = (
    "format",
    "weights MB",
    "KV bytes/token",
    "perplexity",
    "same greedy %",
    "KL, bundled",
    "KL, random",
    "on CPUs",
    "on GPUs",
)
FULL, SMALL = (28, 32000), (4, 4096)  # layers and tokens of the random model
MISSING: Cell = "not on this processor"


def row(fmt: Format, subjects: tuple[Subject, Subject]) -> list[Cell]:
    """Measure a format with the bundled model and the random one."""
    found: list[Accuracy | None] = []
    memory = Memory(0, 0)
    for subject in subjects:
        with TemporaryDirectory() as directory:
            checkpoint = subject.checkpoint(fmt, Path(directory) / "written")
            memory = Memory.of(checkpoint, fmt)
            try:
                found.append(subject.accuracy(checkpoint, fmt))
            except UnsupportedModel:
                found.append(None)
    known, drawn = found
    figures: list[Cell] = [MISSING, "", "", ""]
    if known is not None and drawn is not None:
        figures = [known.perplexity, 100 * known.same_greedy, known.divergence, drawn.divergence]
    return [fmt.name, memory.weights / 1e6, memory.kv_token, *figures, fmt.on_cpus, fmt.on_gpus]


@click.command(help=__doc__)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the table as JSON.")
@click.option("--small", is_flag=True, help="A random model with fewer layers and tokens, in a few minutes.")
@click.option("--only", default="", help="Only formats whose name contains this.")
def main(json_file: Path | None, small: bool, only: str) -> None:
    """Measure and print the table."""
    torch.manual_seed(0)
    sizes = SMALL if small else FULL
    report = Report("Quantizations, on a CPU", COLUMNS)
    with TemporaryDirectory() as directory:
        folders = [Path(directory) / name for name in ("bundled", "random")]
        for folder in folders:
            folder.mkdir()
        subjects = bundled(folders[0]), random_model(folders[1], *sizes)
        exact = subjects[0].expected[:-1]
        perplexity = torch.nn.functional.cross_entropy(exact, torch.tensor(subjects[0].tokens[1:])).exp()
        report.notes.append(f"The bundled model's perplexity in fp32 is {float(perplexity):.2f}.")
        report.notes.append(f"The random model has {sizes[0]} layers and {sizes[1]} tokens.")
        for fmt in FORMATS:
            if only in fmt.name:
                report.add(*row(fmt, subjects))
                Console(stderr=True).print(fmt.name, highlight=False)
    report.show()
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
