"""Markers that are special tokens: these are no text, so a structural tag must name them as tokens."""

import re
from collections.abc import Collection, Iterator

from baton.router.parsing.structural_tag import Format, any_of, any_text, const, optional, sequence, star

NESTED = ("content", "elements", "tags")  # members of formats that are formats, or lists of formats


def with_tokens(form: Format, markers: Collection[str], untouched: Format | None = None) -> Format:
    """Return the format with the markers as tokens, wherever its texts contain one.

    untouched: a part of the format that does not change, because its texts are not those of the model's format.
    """
    return _Rewriting(markers, untouched).format(form) if markers else form


class _Rewriting:
    """Rewriting of one structural tag."""

    def __init__(self, markers: Collection[str], untouched: Format | None) -> None:
        self._markers = frozenset(markers)
        self._untouched = untouched
        self._pattern = re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))

    def format(self, form: object) -> Format:
        """Return the rewritten format."""
        assert isinstance(form, dict)
        if form is self._untouched:
            return form
        if form["type"] == "const_string":
            return self._text(str(form["value"]))
        if form["type"] == "triggered_tags":
            return self._triggered(form)
        rewritten: Format = {}
        for name, value in form.items():
            if name in NESTED:
                value = [*map(self.format, value)] if isinstance(value, list) else self.format(value)
            elif name == "excludes" and isinstance(value, list):
                value = [each for each in value if each not in self._markers]
            rewritten[name] = value
        return self._tag(rewritten) if form["type"] == "tag" else rewritten

    def _text(self, text: str) -> Format:
        parts = list(self._parts(text))
        return parts[0] if len(parts) == 1 else sequence(*parts) if parts else const("")

    def _parts(self, text: str) -> Iterator[Format]:
        """Yield the markers in a text, and the texts between them."""
        place = 0
        for found in self._pattern.finditer(text):
            if found.start() > place:
                yield const(text[place : found.start()])
            yield {"type": "token", "token": found.group()}
            place = found.end()
        if place < len(text):
            yield const(text[place:])

    def _tag(self, form: Format) -> Format:
        """Return a tag whose begin and end are one text or one token each; the rest of them is content."""
        begin, end = list(self._parts(str(form["begin"]))), list(self._parts(str(form["end"])))
        content = form["content"]
        assert isinstance(content, dict)
        inner = [*begin[1:], content, *end[:-1]]
        return {
            "type": "tag",
            "begin": _edge(begin[:1]),
            "content": inner[0] if len(inner) == 1 else sequence(*inner),
            "end": _edge(end[-1:]),
        }

    def _triggered(self, form: Format) -> Format:
        """Return text with tags in it, without the trigger if that is a token: no text then begins like a tag."""
        triggers, tags = form["triggers"], form["tags"]
        assert isinstance(triggers, list)
        assert isinstance(tags, list)
        rewritten = [*map(self.format, tags)]
        if not self._markers.issuperset(triggers):
            return {**form, "tags": rewritten}
        calls = any_of(rewritten)
        if form["stop_after_first"]:
            return sequence(any_text(), optional(calls))
        return sequence(star(sequence(any_text(), calls)), any_text())


def _edge(parts: list[Format]) -> object:
    if not parts:
        return ""
    return parts[0]["value"] if parts[0]["type"] == "const_string" else parts[0]
