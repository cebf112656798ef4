"""Where a model on the command line is found."""

from pathlib import Path

from baton.cli.options.model_source import _locate


def test_a_gguf_file_that_is_a_link_keeps_its_name(tmp_path: Path) -> None:
    """As in the hub's cache, where files are links to others without a suffix."""
    blob, link = tmp_path / "blobs" / "abc123", tmp_path / "snapshots" / "small-Q4_K_M.gguf"
    for path in (blob, link):
        path.parent.mkdir()
    blob.write_bytes(b"GGUF")
    link.symlink_to(blob)
    assert _locate(str(link)) == (link, "small-Q4_K_M")
