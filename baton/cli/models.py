"""`baton models`: the model families and the formats of weights that can be served."""

import rich_click as click

from baton.engine.checkpoint.gguf.config import ARCHITECTURES as GGUF_ARCHITECTURES
from baton.engine.checkpoint.stored_quantization import METHODS
from baton.engine.families.registry import FAMILIES

PLAIN = "bfloat16, float16, float32"
TESTED = """\
Every family is compared with transformers on small random weights: logits, greedy tokens, tensor and
expert parallelism, handovers; those with recurrent layers (Qwen3-Next, Qwen3.5, Nemotron-H, Granite 4,
Bamba, Falcon-H1, Mamba-2) without the parallelism, which they do not support.
On a GPU, only Llama, Mixtral, Qwen2, Qwen3 and DeepSeek have run."""
INDENT = "  "


@click.command(name="models")
def command() -> None:
    """List the model families and formats of weights that can be served, and what has been tested.

    A family's architecture is the one that a checkpoint's config.json names.
    """
    rows = [(family.title, name) for family in FAMILIES for name in family.architectures]
    width = max(len(title) for title, _ in rows)
    click.echo("Families")
    for title, name in rows:
        click.echo(f"{INDENT}{title:{width}}  {name}")
    methods = ", ".join(name for name in METHODS if "/" not in name and name != "gguf")
    click.echo("\nWeights")
    click.echo(f"{INDENT}safetensors: {PLAIN}")
    click.echo(f"{INDENT}quantization_config: {methods}")
    click.echo(f"{INDENT}GGUF files: {', '.join(GGUF_ARCHITECTURES)}")
    click.echo("\nTests")
    for line in TESTED.splitlines():
        click.echo(f"{INDENT}{line}")
