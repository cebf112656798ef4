"""Style of all plots, and the colours of SVG files for dark pages."""

from io import StringIO
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d1d9e1", "#fffffe"
BATON, LIMIT = "#c2410c", "#1f2329"
PEERS = ("#2563a8", "#1a7f4b", "#8250df", "#8a6d00")  # in the order in which a plot names its peers
DARK = {
    INK: "#e6edf3",
    LIMIT: "#e6edf3",
    MUTED: "#9da7b3",
    GRID: "#3d444d",
    PAPER: "#0d1117",
    BATON: "#ff9b50",
    **dict(zip(PEERS, ("#7ab7ff", "#57c98a", "#c297ff", "#e3c04a"), strict=True)),
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "baton",
    "font.size": 10.5,
    "axes.edgecolor": GRID,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.titlesize": 10.5,
    "legend.labelcolor": INK,
}


def use_style() -> None:
    """Set the defaults of matplotlib. Call it before creating a figure."""
    style.use(STYLE)


def save(figure: Figure, path: Path) -> None:
    """Write an SVG file whose colours follow the reader's colour scheme. The output is deterministic."""
    text = StringIO()
    figure.savefig(text, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
    rules = "".join(
        f' [style*="{paint}: {light}"] {{ {paint}: {dark} !important; }}\n'
        for light, dark in DARK.items()
        for paint in ("fill", "stroke")
    )
    dark_style = f"<style>\n@media (prefers-color-scheme: dark) {{\n{rules}}}\n</style>\n"
    head, defs, rest = text.getvalue().partition(" <defs>")
    lines = (head + dark_style + defs + rest).splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n")
