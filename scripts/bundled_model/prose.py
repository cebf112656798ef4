"""Conversion of docstrings into plain sentences."""

import re

MAX_CHARS = 320
SIGNATURE = re.compile(r"^[\w.]+\([^\n]*\)(?: ?(?:->|--|=) ?(?P<result>[^\n]*))?(?:\n|$)")


def first_sentences(text: str) -> str:
    """Return a text's first sentences, up to `MAX_CHARS`; empty if it does not start with prose."""
    # Docstrings of C functions start with their signature, often more than once.
    text, result = text.strip(), ""
    while match := SIGNATURE.match(text):
        result = result or match["result"] or ""
        text = text[match.end() :]
    found = ""
    for paragraph in text.strip("\n").split("\n\n")[:2]:
        is_table = found and re.search(r"\n\s", paragraph)
        if ">>>" in paragraph or "->" in paragraph or "Copyright" in paragraph or is_table:
            break
        plain = _plain(paragraph)
        if not re.match(r"[A-Za-z(]", plain):
            break
        found = f"{found} {plain}".strip()
    if not found and len(result.split()) > 1:
        found = _plain(result)
    return _cut(found)


def _plain(paragraph: str) -> str:
    """Remove reStructuredText markup and line breaks."""
    text = re.sub(r":[a-z]+:`~?([^`]*)`", r"\1", paragraph)
    text = re.sub(r"`+([^`]*)`+", r"\1", text)
    text = re.sub(r"(?<!\w)\*(\w+)\*(?!\w)", r"\1", text)
    text = re.sub(r"[-=~*_#]{3,}", " ", text)
    return " ".join(text.split())


def _cut(text: str) -> str:
    """Cut to whole sentences, with final punctuation."""
    if len(text) > MAX_CHARS:
        ends = [match.end() for match in re.finditer(r"[.!?](?= [A-Z])", text[:MAX_CHARS])]
        text = text[: ends[-1]] if ends else ""
    text = text.rstrip(" :,;-")
    if len(text.split()) < 2:
        return ""
    text = text[0].upper() + text[1:] if re.match(r"[a-z]+ ", text) else text
    return text if text.endswith((".", "!", "?")) else f"{text}."
