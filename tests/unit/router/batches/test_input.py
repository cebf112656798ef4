"""The check of a batch's input."""

import io
import json

from baton.router.batches.input import MAX_ERRORS, MAX_LINES, read_input, request_body

URL = "/v1/completions"


def line(custom_id: str) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": custom_id}}).encode()


def test_each_line_is_found_again() -> None:
    names = ["a", "ü", "😀" * 100, "last"]
    file = io.BytesIO(b"\n \r\n".join(map(line, names)))
    found = read_input(file, URL, 10_000)
    assert found.errors == []
    assert [each.custom_id for each in found.lines] == names
    assert [request_body(file, each) for each in reversed(found.lines)] == [{"prompt": each} for each in names[::-1]]


def test_lines_errors_and_bytes_are_bounded() -> None:
    many = read_input(io.BytesIO(b"\n".join(line(str(number)) for number in range(MAX_LINES + 5))), URL, 1000)
    assert [(each.code, each.line) for each in many.errors] == [("too_many_requests", MAX_LINES + 1)]
    wrong = read_input(io.BytesIO(b"x\n" * 1000), URL, 1000)
    assert len(wrong.errors) == MAX_ERRORS
    long = read_input(io.BytesIO(line("a") + b"\n" + line("b" * 1000) + b"\n" + line("c")), URL, 1000)
    assert [(each.code, each.line) for each in long.errors] == [("line_too_long", 2)]
