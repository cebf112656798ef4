"""Charts as SVG. Colours are CSS classes of the page, so that they follow its light and dark modes."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from markupsafe import Markup, escape

from baton.loadtool.page.ticks import Axis, short

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 8, 38
NUM_COLOURS = 8


class Mark(Enum):
    """Drawing style of a series."""

    LINE = "line"
    MARKED_LINE = "marked line"
    DOTS = "dots"
    AREA = "area"


@dataclass(frozen=True, slots=True)
class Series:
    """Points, joined in order."""

    label: str
    points: Sequence[tuple[float, float]]
    mark: Mark = Mark.LINE


@dataclass(frozen=True, slots=True)
class Chart:
    """Series on common axes."""

    title: str
    x_label: str
    y_label: str
    x: Axis
    y: Axis
    series: Sequence[Series]

    @property
    def svg(self) -> Markup:
        """Return the SVG without the legend, which the page adds."""
        parts = [
            Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, self.title),
            *(self._y_tick(tick) for tick in self.y.ticks),
            *(self._x_tick(tick) for tick in self.x.ticks),
            *(self._draw(series, place % NUM_COLOURS) for place, series in enumerate(self.series)),
            Markup('<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                (LEFT + WIDTH - RIGHT) // 2, HEIGHT - 4, self.x_label
            ),
            Markup("</svg>"),
        ]
        return Markup("").join(parts)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across, up = self.x.place(x), self.y.place(y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def _y_tick(self, tick: float) -> Markup:
        _, y = self._at(self.x.low, tick)
        return Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
            '<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
        ).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, short(tick))

    def _x_tick(self, tick: float) -> Markup:
        x, _ = self._at(tick, self.y.low)
        return Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x, HEIGHT - BOTTOM + 16, short(tick)
        )

    def _draw(self, series: Series, colour: int) -> Markup:
        places = [self._at(x, y) for x, y in series.points]
        if not places:
            return Markup("")
        if series.mark is Mark.DOTS:
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
            return Markup('<path class="dots c{}" d="{}"/>').format(colour, dots)
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        if series.mark is Mark.AREA:
            floor = HEIGHT - BOTTOM
            closed = f"{path}L{places[-1][0]:.1f} {floor}L{places[0][0]:.1f} {floor}Z"
            return Markup('<path class="area c{}" d="{}"/><path class="line c{}" d="{}"/>').format(
                colour, closed, colour, path
            )
        line = Markup('<path class="line c{}" d="{}"/>').format(colour, path)
        if series.mark is Mark.LINE:
            return line
        return line + Markup("").join(
            Markup('<circle class="point c{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}</title></circle>').format(
                colour, *place, escape(f"{series.label}: {y:.4g} {self.y_label} at {x:.4g} {self.x_label}")
            )
            for place, (x, y) in zip(places, series.points, strict=True)
        )
