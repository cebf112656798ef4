"""Valid and invalid files of API keys."""

import fcntl
import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from baton.router.auth.api_key import ApiKey
from baton.router.auth.keys_file import InvalidKeysFile, KeysFile, read_keys

DIGEST = "0123456789abcdefABCDEF" + "0" * 42


def entry(**fields: object) -> bytes:
    given = {"name": "a", "sha256": f"'{DIGEST}'", **fields}
    return ("keys:\n- " + "\n  ".join(f"{name}: {value}" for name, value in given.items())).encode()


def test_an_entry_with_everything() -> None:
    text = entry(
        priority=-3, max_inflight=64, requests_per_minute=600, tokens_per_minute=200000, cache_salt="research",
        expires="2027-01-31T00:00:00Z", admin="true",
    )  # fmt: skip
    assert read_keys(text, "file") == [
        ApiKey(
            name="a", digest=bytes.fromhex(DIGEST), priority=-3, max_inflight=64, requests_per_minute=600,
            tokens_per_minute=200000, cache_scope="research",
            expires_s=datetime(2027, 1, 31, tzinfo=UTC).timestamp(), is_admin=True,
        )
    ]  # fmt: skip


def test_minimal_entries_and_an_empty_file_are_valid() -> None:
    assert read_keys(entry(), "file") == [ApiKey(name="a", digest=bytes.fromhex(DIGEST))]
    assert read_keys(b"keys: []", "file") == []


@pytest.mark.parametrize("time", ["2027-01-31", "'2027-01-31'", "2027-01-31 00:00:00", "2027-01-31T01:00:00+01:00"])
def test_times_of_all_kinds(time: str) -> None:
    assert read_keys(entry(expires=time), "file")[0].expires_s == datetime(2027, 1, 31, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "must be a mapping with a list under `keys`"),
        (b"keys: {}", "must be a mapping with a list under `keys`"),
        (b"keys: []\nmore: 1", "must be a mapping with a list under `keys`"),
        (b"keys: [sk-secret]", "keys[0]: must be a mapping with a name and a sha256"),
        (b"keys:\n- name: a", "keys[0]: must have a name and a sha256"),
        (entry(sha256="sk-secret"), "keys[0].sha256: must be the 64 hexadecimal digits"),
        (entry(sha256=f"'{DIGEST}0'"), "keys[0].sha256: must be the 64 hexadecimal digits"),
        (entry(sha256="[sk-secret]"), "keys[0].sha256: must be the 64 hexadecimal digits"),
        (entry(prority=1), "keys[0].prority: unknown option; did you mean priority?"),
        (entry(priority="high"), "keys[0].priority: 'high' is not allowed; it must be a whole number"),
        (entry(admin="maybe"), "keys[0].admin: 'maybe' is not allowed; it must be true or false"),
        (entry(max_inflight=0), "keys[0].max_inflight: 0 is not allowed; it must be a whole number at least 1"),
        (entry(expires="soon"), "keys[0].expires: must be a time such as"),
        (entry(name="'a b'"), "keys[0].name: must be 1 to 128 visible ASCII characters"),
        (entry(name="null"), "keys[0].name: None is not allowed"),
        (entry(cache_salt="''"), "keys[0].cache_salt: must be 1 to 128 visible ASCII characters"),
        (entry() + b"\n  name: sk-secret", "has a key twice (line 4)"),
        (entry() + entry().replace(b"keys:", b""), "keys[1].name: must not be the same as in keys[0]"),
        (entry() + entry(name="b").replace(b"keys:", b""), "keys[1].sha256: must not be the same as in keys[0]"),
        (b"keys: *sk-secret", "is not YAML"),
        (b"keys: {sk-secret", "is not YAML"),
        (b"keys: !!timestamp sk-secret", "is not YAML"),
        (b"keys: !sk-secret 1", "is not YAML"),
        (b"\xff\xfe\xff", "is not YAML"),
        (b"keys: &a [*a]", "keys[0]: must be a mapping"),
        (b"[" * 200_000, "is not YAML"),
        (b"- " * 200_000, "is not YAML"),
    ],
)
def test_errors_name_the_problem_and_repeat_no_secret(text: bytes, message: str) -> None:
    with pytest.raises(InvalidKeysFile) as caught:
        read_keys(text, "the file")
    assert str(caught.value).startswith("the file: ")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_another_file_of_the_same_name_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_bytes(entry())
    file = KeysFile(str(path))
    assert file.has_changed()
    file.read()
    assert not file.has_changed()
    new = tmp_path / "new.yaml"
    new.write_bytes(entry(name="b"))  # of the same size
    os.replace(new, path)
    assert file.has_changed()
    assert [key.name for key in file.read()] == ["b"]
    path.unlink()
    assert file.has_changed()
    with pytest.raises(InvalidKeysFile, match=r"cannot read .*keys.yaml: No such file"):
        file.read()
    assert file.has_changed()
    path.write_bytes(entry(name="c"))
    assert [key.name for key in file.read()] == ["c"]
    assert not file.has_changed()


def test_a_directory_replaced_through_its_symbolic_link_is_detected(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys.yaml").write_bytes(entry(name=name))
    data = tmp_path / "..data"
    data.symlink_to("first")
    (tmp_path / "keys.yaml").symlink_to("..data/keys.yaml")
    file = KeysFile(str(tmp_path / "keys.yaml"))
    assert [key.name for key in file.read()] == ["first"]
    (tmp_path / "..new").symlink_to("second")
    os.replace(tmp_path / "..new", data)
    assert file.has_changed()
    assert [key.name for key in file.read()] == ["second"]


def test_a_damaged_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys: [")
    file = KeysFile(str(path))
    with pytest.raises(InvalidKeysFile):
        file.read()
    assert not file.has_changed()
    path.unlink()
    path.mkdir()
    assert file.has_changed()
    with pytest.raises(InvalidKeysFile, match=r"cannot read .*: Is a directory"):
        file.read()
    assert file.has_changed()


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    os.mkfifo(path)
    file = KeysFile(str(path))
    with pytest.raises(InvalidKeysFile, match=r"cannot read .*keys.yaml: it is not a regular file"):
        file.read()
    assert file.has_changed()


def test_a_file_under_a_lease_is_read_once_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_bytes(entry())
    file = KeysFile(str(path))
    previous = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's request to release the lease
    try:
        with path.open("rb+") as holder:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            with pytest.raises(InvalidKeysFile, match="temporarily unavailable"):
                file.read()
            assert file.has_changed()
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        assert [key.name for key in file.read()] == ["a"]
    finally:
        signal.signal(signal.SIGIO, previous)
