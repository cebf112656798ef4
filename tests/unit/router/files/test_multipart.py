"""The parser of multipart/form-data: however a body is cut into chunks, the parts are the same."""

import random
import time
from contextlib import suppress

import httpx
import pytest

from baton.router.errors import FieldError
from baton.router.files.multipart import MAX_OUTSIDE_BYTES, MultipartParser, PartBegin, boundary_of


def parts(parser: MultipartParser, chunks: list[bytes]) -> list[tuple[str, str | None, bytes]]:
    found: list[tuple[str, str | None, bytes]] = []
    for chunk in chunks:
        for event in parser.feed(chunk):
            if isinstance(event, PartBegin):
                found.append((event.name, event.filename, b""))
            else:
                name, filename, data = found[-1]
                found[-1] = (name, filename, data + event.data)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_a_body_of_httpx_in_any_chunks(seed: int) -> None:
    rng = random.Random(seed)
    content = bytes(rng.choices(b"\r\n-ab", k=rng.randrange(300)))
    request = httpx.Request(
        "POST", "http://x", data={"purpose": "batch", "empty": ""}, files={"file": ('ü"1\n.jsonl', content)}
    )
    body, boundary = request.read(), boundary_of(request.headers["content-type"])
    cuts = sorted(rng.choices(range(len(body) + 1), k=rng.randrange(40)))
    chunks = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    parser = MultipartParser(boundary)
    first, empty, (name, filename, data) = parts(parser, chunks)
    assert (first, empty) == (("purpose", None, b"batch"), ("empty", None, b""))
    assert (name, data) == ("file", content)
    assert filename is not None
    assert parser.is_complete


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"--b\r\nx: y\r\n\r\n", "content-disposition"),
        (b"--b\r\ncontent-disposition: form-data\r\n\r\n", "content-disposition"),
        (b"--b\r\n" + b"x" * 9000, "headers of a part are over"),
        (b'--b\r\ncontent-disposition: form-data; name="' + b";" * 8000 + b'"\r\n\r\n', "over 16 semicolons"),
        (b"--bxy", "follows a boundary"),
        (b"--b\r\ncontent-disposition: form-data; name=a\r\n\r\n\r\n" * 17, "over 16 parts"),
    ],
)
def test_a_wrong_body_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(FieldError, match=text):
        list(MultipartParser(b"b").feed(body))


@pytest.mark.parametrize(
    "name", ["idna''%ff", "unicode_escape''%5Cud800", "utf-7''%2B2AA-", "punycode''%ff-999999999", "undefined''a"]
)
def test_a_filename_in_any_codec_is_text_or_refused(name: str) -> None:
    body = b"--b\r\ncontent-disposition: form-data; name=file; filename*=%b\r\n\r\n" % name.encode()
    filenames = [""]
    with suppress(FieldError):
        filenames = [filename or "" for _, filename, _ in parts(MultipartParser(b"b"), [body])]
    assert [each.encode("utf-8", "replace").decode() for each in filenames] == filenames


@pytest.mark.parametrize("first", [b"", b"--b\r\ncontent-disposition: form-data; name=a\r\n\r\n\r\n--b--"])
def test_bytes_outside_of_the_parts_are_bounded(first: bytes) -> None:
    parser = MultipartParser(b"b")
    assert len(parts(parser, [first, b"x" * (MAX_OUTSIDE_BYTES // 2)])) == bool(first)
    with pytest.raises(FieldError, match="outside of its parts"):
        parts(parser, [b"x" * 1000] * (MAX_OUTSIDE_BYTES // 1000))


def test_headers_are_parsed_in_little_time() -> None:
    disposition = b'content-disposition: form-data; name="file"; filename="%b"' % (b";" * 14)
    [(name, filename, _)] = parts(MultipartParser(b"b"), [b"--b\r\n%b\r\n\r\n" % disposition])
    assert (name, filename) == ("file", ";" * 14)
    begun_s = time.thread_time()
    with pytest.raises(FieldError, match="content-type of the body is over the limit of 256"):
        boundary_of(f'multipart/form-data; boundary="{";" * 30_000}')
    with pytest.raises(FieldError):
        parts(MultipartParser(b"b"), [b'--b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n' % (b";" * 8000)])
    assert time.thread_time() - begun_s < 0.02


@pytest.mark.parametrize("kind", ["", "text/plain", "multipart/form-data", f"multipart/form-data; boundary={'x' * 71}"])
def test_a_wrong_content_type_is_refused(kind: str) -> None:
    with pytest.raises(FieldError):
        boundary_of(kind)
