"""Images of conversations: which files are read, and what is sent in their place."""

import base64
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from baton.offline.images import LocalImages, has_images, with_urls

DATA = "data:image/png;base64,AAAA"


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts: object) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "short"}, {"role": "user", "content": [*parts]}]


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    """A directory with an image, next to a file that must not be read."""
    directory = tmp_path / "pictures"
    directory.mkdir()
    Image.new("RGB", (4, 3), "red").save(directory / "a red.png")
    (tmp_path / "secret.png").write_text("secret")
    (directory / "link.png").symlink_to(tmp_path / "secret.png")
    (directory / "circle.png").symlink_to(directory / "circle.png")
    return directory


def test_a_file_becomes_a_data_url(allowed: Path) -> None:
    images = LocalImages.of(allowed)
    text = {"type": "text", "text": "what is this?"}
    messages = user(text, part((allowed / "a red.png").as_uri()), part(DATA), part("https://host/x.png"))
    images.check(messages)
    system, found = images.inlined(messages)
    assert system == messages[0]
    assert found["role"] == "user"
    content: Any = found["content"]
    head, _, encoded = content[1]["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(encoded) == (allowed / "a red.png").read_bytes()
    assert [content[0], *content[2:]] == [text, part(DATA), part("https://host/x.png")]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "CMYK"])
def test_an_image_of_pillow_becomes_a_data_url(mode: str) -> None:
    image = Image.new(mode, (4, 3))
    [_, found] = LocalImages(None).inlined(user({"type": "image_pil", "image_pil": image}))
    content: Any = found["content"]
    head, _, encoded = content[0]["image_url"]["url"].partition(",")
    assert (content[0]["type"], head) == ("image_url", "data:image/png;base64")
    assert Image.open(BytesIO(base64.b64decode(encoded))).size == (4, 3)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("secret.png", r"messages\[1\].content\[0\]: .*secret.png is outside of allowed_local_media_path"),
        ("pictures/../secret.png", "is outside of allowed_local_media_path"),
        ("pictures/link.png", "is outside of allowed_local_media_path"),
        ("pictures/%2e%2e/secret.png", "is outside of allowed_local_media_path"),
        ("pictures/none.png", "none.png is not a file"),
        ("pictures", "is not a file"),
        ("pictures/circle.png", r"messages\[1\].content\[0\]: .*circle.png names no file"),
        ("pictures/%00.png", r"messages\[1\].content\[0\]: .*%00.png names no file"),
        (f"pictures/{'long' * 100}.png", r"messages\[1\].content\[0\]: .*File name too long"),
    ],
)
def test_other_files_are_refused(allowed: Path, name: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        LocalImages.of(allowed).check(user(part(f"file://{allowed.parent}/{name}")))


def test_a_pipe_in_place_of_a_file_does_not_block(allowed: Path) -> None:
    os.mkfifo(allowed / "pipe.png")
    with pytest.raises(ValueError, match=r"cannot read .*pipe.png: it is not a regular file"):
        LocalImages.of(allowed).inlined(user(part((allowed / "pipe.png").as_uri())))


@pytest.mark.parametrize("given", ["~nobody-with-this-name/pictures", "pictures/circle.png", "long" * 100])
def test_a_wrong_directory_is_named(allowed: Path, given: str) -> None:
    given = given if given.startswith("~") else str(allowed.parent / given)
    with pytest.raises(ValueError, match="allowed_local_media_path: "):
        LocalImages.of(given)


def test_files_are_refused_by_default_and_of_other_hosts(allowed: Path) -> None:
    with pytest.raises(ValueError, match="files are not read unless the LLM has an allowed_local_media_path"):
        LocalImages.of(None).check(user(part((allowed / "a red.png").as_uri())))
    with pytest.raises(ValueError, match="names a host"):
        LocalImages.of(allowed).check(user({"type": "image_url", "image_url": f"file://host{allowed}/a.png"}))
    with pytest.raises(ValueError, match=r"allowed_local_media_path: .* is not a directory"):
        LocalImages.of(allowed / "a red.png")


def test_what_is_no_image_of_pillow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"messages\[1\].content\[0\].image_pil is not an image of Pillow"):
        LocalImages(None).inlined(user({"type": "image_pil", "image_pil": "x.png"}))


def test_the_template_gets_short_urls() -> None:
    messages = user({"type": "text", "text": "a"}, part(DATA * 1000), {"type": "image_pil", "image_pil": object()})
    assert has_images(messages)
    assert not has_images([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}])
    assert with_urls(messages) == user({"type": "text", "text": "a"}, part("data:,"), part("data:,"))
