"""Chart of a request's timeline, as the router's /timelines returns it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

MIN_BAR_CHARS = 10
BESIDE_BAR_CHARS = 62  # columns of names and times
COLOURS = {"admission": "yellow", "queue": "yellow", "kv_transfer": "magenta", "compute": "green", "prefill": "green"}
SHOWN = {  # attributes, and how they are named
    "baton.plan": "plan",
    "baton.predicted_ttft_s": "predicted TTFT",
    "baton.computed_tokens": "computed",
    "baton.cached_tokens": "cached",
    "baton.transport": "by",
    "baton.num_blocks": "blocks",
    "baton.num_bytes": "bytes",
    "baton.preemptions": "preemptions",
}
NOTHING = (None, "", 0, "0")  # values that are not shown
TOTALS = {
    "gen_ai.usage.input_tokens": "prompt tokens",
    "gen_ai.usage.cache_read.input_tokens": "cached",
    "gen_ai.usage.output_tokens": "output tokens",
    "gen_ai.response.finish_reasons": "finish",
}


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """A span as the router reports it."""

    fields: Mapping[str, object]

    def text(self, name: str) -> str:
        """Return a field as text; empty if it is missing."""
        value = self.fields.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> float:
        """Return a field as a number; 0 if it is missing."""
        value = self.fields.get(name)
        return float(value) if isinstance(value, int | float) else 0.0

    def mapping(self, name: str) -> Mapping[str, object]:
        """Return a field that is a mapping; empty if it is missing."""
        value = self.fields.get(name)
        return value if isinstance(value, Mapping) else {}

    def list(self, name: str) -> "Iterator[ChartSpan]":
        """Yield the objects of a list."""
        value = self.fields.get(name)
        yield from (ChartSpan(each) for each in (value if isinstance(value, list) else ()) if isinstance(each, Mapping))


def timeline_chart(content: object, width: int) -> RenderableType:
    """Return the chart. Raises ValueError unless the content is a timeline."""
    if not isinstance(content, Mapping) or not isinstance(content.get("spans"), list):
        raise ValueError("the response is not a timeline")
    request = ChartSpan(content)
    total_s = request.number("duration_s")
    bar_chars = max(MIN_BAR_CHARS, width - BESIDE_BAR_CHARS)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("span", "where"):
        table.add_column(title, no_wrap=True)
    for title in ("start", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, width=bar_chars)
    spans = list(request.list("spans"))
    for span in spans:
        style = "red" if span.fields.get("error") else ""
        name = "  " * int(span.number("depth")) + span.text("name")
        times = seconds(span.number("start_s")), seconds(span.number("duration_s"))
        table.add_row(Text(name, style), Text(span.text("where")), *times, _bar(span, total_s, bar_chars))
    notes = [Text(line, style="dim") for span in spans for line in _notes(span)]
    return Group(_title(request, total_s), *_same_id(request), Text(), table, Text(), *notes)


def seconds(value: float) -> str:
    """Return a duration in the unit that suits it."""
    return f"{value * 1000:.1f} ms" if abs(value) < 1 else f"{value:.3f} s"


def _title(request: ChartSpan, total_s: float) -> Text:
    attributes = request.mapping("attributes")
    duration = f"running for {seconds(total_s)}" if request.fields.get("running") else seconds(total_s)
    facts = [request.text("request_id"), request.text("model"), duration]
    first_s = attributes.get("gen_ai.latency.time_to_first_token")
    if isinstance(first_s, int | float):
        facts.append(f"TTFT {seconds(first_s)}")
    facts += [f"{label} {_value(attributes[name])}" for name, label in TOTALS.items() if name in attributes]
    if request.fields.get("sampled"):
        facts.append(f"trace {request.text('trace_id')}")
    return Text("  ".join(fact for fact in facts if fact), style="bold")


def _same_id(request: ChartSpan) -> Iterator[Text]:
    """Yield a line with the options that show the other requests with this id, if there are any."""
    times = request.fields.get("same_id_begun_at")
    others = [each for each in (times if isinstance(times, list) else ()) if each != request.fields.get("begun_at")]
    if others:
        begun = datetime.fromtimestamp(request.number("begun_at")).astimezone().isoformat(" ", "milliseconds")
        options = ", ".join(f"--begun-at {each}" for each in others)
        yield Text(f"began at {begun}; other requests with this id: {options}", style="dim")


def _bar(span: ChartSpan, total_s: float, num_chars: int) -> Text:
    if total_s <= 0:
        return Text()
    begin = min(num_chars - 1, max(0, round(span.number("start_s") / total_s * num_chars)))
    length = max(1, round(span.number("duration_s") / total_s * num_chars))
    colour = "red" if span.fields.get("error") else COLOURS.get(span.text("name"), "blue")
    return Text(" " * begin).append("━" * min(length, num_chars - begin), style=colour)


def _notes(span: ChartSpan) -> Iterator[str]:
    """Yield a line with a span's figures, if it has some, and one for each event and error."""
    name = f"{span.text('where')} {span.text('name')}"
    attributes = span.mapping("attributes")
    figures = [
        f"{label} {_value(attributes[key])}" for key, label in SHOWN.items() if attributes.get(key) not in NOTHING
    ]
    if figures:
        yield f"{name}: {', '.join(figures)}"
    if span.fields.get("error"):
        yield f"{name} failed: {': '.join(filter(None, (span.text('error'), span.text('reason'))))}"
    for event in span.list("events"):
        about = event.mapping("attributes")
        details = [str(about[key]) for key in ("error.type", "baton.reason") if about.get(key)]
        yield f"{name}: {': '.join([event.text('name'), *details])} at {seconds(event.number('at_s'))}"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
