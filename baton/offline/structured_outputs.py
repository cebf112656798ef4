"""Structured outputs of offline inference, under vLLM's names."""

from dataclasses import dataclass, fields

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The format that an output must have: exactly one of the constraints."""

    json: str | dict[str, object] | None = None  # a JSON Schema
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # in EBNF
    json_object: bool | None = None  # True: any JSON object
    structural_tag: str | None = None
    disable_additional_properties: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless there is exactly one constraint."""
        given = [name for name in CONSTRAINTS if getattr(self, name)]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"structured_outputs needs exactly one of {', '.join(CONSTRAINTS)}, but {found}")

    def body(self) -> dict[str, object]:
        """Return the object for a request."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
