"""Draw the plots of README.md and docs/ from benchmarks/results.

python -m benchmarks.plots [--results DIRECTORY] [--output DIRECTORY]
"""

from pathlib import Path

import click

from benchmarks.plots.engines import engines_figure
from benchmarks.plots.goodput import measured_figure, simulated_figure
from benchmarks.plots.lora import lora_figure
from benchmarks.plots.routers import routers_figure
from benchmarks.plots.speculation import speculation_figure
from benchmarks.plots.structured import structured_figure
from benchmarks.plots.theme import save, use_style
from benchmarks.plots.transfers import transfers_figure
from benchmarks.plots.weights_offload import weights_offload_figure

FIGURES = {
    "engines": engines_figure,
    "lora": lora_figure,
    "routers": routers_figure,
    "separation_measured": measured_figure,
    "separation_simulated": simulated_figure,
    "speculation": speculation_figure,
    "structured": structured_figure,
    "transfers": transfers_figure,
    "weights_offload": weights_offload_figure,
}


@click.command()
@click.option("--results", type=click.Path(path_type=Path), default=Path("benchmarks/results"))
@click.option("--output", type=click.Path(path_type=Path), default=Path("docs/images"))
def main(results: Path, output: Path) -> None:
    """Write one SVG file for each figure."""
    use_style()
    output.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        save(draw(results), output / f"{name}.svg")


if __name__ == "__main__":
    main()
