"""Tables of the matrix of features and moves."""

from collections.abc import Iterator

from scripts.reference.tables import table
from tests.integration.matrix.feature import ClusterSpec, Status, Untested
from tests.integration.matrix.features import CLUSTERS
from tests.integration.matrix.moves import MOVES

MARKS = {Status.REFUSED: "refused", Status.NOT_APPLICABLE: "n/a", Status.ELSEWHERE: "own test"}


def moves() -> str:
    """Return the table of moves."""
    return table(("move", "the request"), ((each.name, each.meaning) for each in MOVES))


def matrix() -> str:
    """Return the table of features and moves, with numbers of notes."""
    numbers = _numbers()
    columns = ("", *(each.name for each in MOVES))
    rows = ((feature.name, *_cells(spec, numbers)) for spec in CLUSTERS for feature in spec.features)
    return table(columns, rows)


def matrix_notes() -> str:
    """Return the notes of the matrix, a line each."""
    return "".join(f"{number}. {reason}\n" for reason, number in _numbers().items())


def _cells(spec: ClusterSpec, numbers: dict[str, int]) -> Iterator[str]:
    for move in MOVES:
        found = spec.untested.get(move.name)
        yield "✓" if found is None else f"{MARKS[found.status]} ({numbers[_note(found)]})"


def _numbers() -> dict[str, int]:
    """Return the number of each note, in the order of the table."""
    notes = (_note(spec.untested[each.name]) for spec in CLUSTERS for each in MOVES if each.name in spec.untested)
    return {note: place for place, note in enumerate(dict.fromkeys(notes), 1)}


def _note(untested: Untested) -> str:
    return f"{untested.reason} (`{untested.evidence}`)" if untested.status is Status.ELSEWHERE else untested.reason
