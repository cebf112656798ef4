"""Exports of stores: complete, verified, and refused where they do not belong."""

import json
from pathlib import Path
from shutil import rmtree

import pytest

from baton.kvtransfer.store.archive import MANIFEST, export_blocks, import_blocks, matching, read_manifest
from baton.kvtransfer.store.block_source import FOLDER, InvalidExport, store_folders
from baton.kvtransfer.store.factory import open_store
from baton.kvtransfer.store.sealed import sealed_namespace
from baton.kvtransfer.store.usage import Count
from tests.unit.kvtransfer.store.store_rig import FILE_BYTES, NAMESPACE, read, stored, write

CAPACITY = 1 << 20


def filled(directory: Path, numbers: range, namespace: str = NAMESPACE) -> None:
    directory.mkdir(exist_ok=True)
    store = open_store(str(directory), namespace, CAPACITY)
    write(store, *numbers)
    store.close()


def exported(tmp_path: Path, numbers: range = range(10)) -> Path:
    filled(tmp_path / "source", numbers)
    export = tmp_path / "export"
    counts = export_blocks(store_folders(str(tmp_path / "source")), export)
    assert counts == {NAMESPACE: Count(len(numbers), len(numbers) * FILE_BYTES)} == read_manifest(export)
    return export


def files_of(export: Path) -> list[Path]:
    return sorted(each for each in (export / FOLDER / NAMESPACE).rglob("*") if each.is_file())


def test_an_imported_block_is_the_exported_one(tmp_path: Path) -> None:
    export, target = exported(tmp_path), tmp_path / "target"
    filled(target, range(4))
    added = import_blocks(export, [NAMESPACE], str(target), CAPACITY)
    assert added.num_blocks == 6
    store = open_store(str(target), NAMESPACE, CAPACITY)
    assert all(read(store, number) for number in range(10))
    assert store.use().num_blocks == 10
    store.close()
    directly = open_store(str(export), NAMESPACE, CAPACITY)  # an export is a store itself
    assert stored(directly, range(12)) == list(range(10))
    directly.close()


def test_a_damaged_or_incomplete_export_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    export, target = exported(tmp_path), tmp_path / "target"
    target.mkdir()
    victim = files_of(export)[-1]
    content = victim.read_bytes()
    victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InvalidExport, match=f"{victim.name} is damaged: its checksum is wrong"):
        import_blocks(export, [NAMESPACE], str(target), CAPACITY)
    victim.unlink()
    with pytest.raises(InvalidExport, match="is incomplete: it has 9 of 10 blocks"):
        import_blocks(export, [NAMESPACE], str(target), CAPACITY)
    victim.write_bytes(content)
    (export / MANIFEST).write_text("{")
    with pytest.raises(InvalidExport, match="is damaged"):
        import_blocks(export, [NAMESPACE], str(target), CAPACITY)
    (export / MANIFEST).write_text('{"version": 2, "namespaces": {}}')
    with pytest.raises(InvalidExport, match="another version than 1"):
        import_blocks(export, [NAMESPACE], str(target), CAPACITY)
    (export / MANIFEST).unlink()
    with pytest.raises(InvalidExport, match="is no export"):
        import_blocks(export, [NAMESPACE], str(target), CAPACITY)
    assert list(target.iterdir()) == []


def test_a_block_under_another_key_is_damaged(tmp_path: Path) -> None:
    export = exported(tmp_path)
    first, second = files_of(export)[:2]
    second.write_bytes(first.read_bytes())
    (tmp_path / "target").mkdir()
    with pytest.raises(InvalidExport, match=f"{second.name} is damaged"):
        import_blocks(export, [NAMESPACE], str(tmp_path / "target"), CAPACITY)


def test_kv_of_another_model_is_refused_with_both_names(tmp_path: Path) -> None:
    manifest = read_manifest(exported(tmp_path))
    with pytest.raises(InvalidExport, match=f"has KV of {NAMESPACE}, but the workers have other: model, weights"):
        matching(manifest, ["other"], "the workers have")
    sealed = sealed_namespace(NAMESPACE, bytes(32))
    both = {**manifest, sealed: Count(), f"{NAMESPACE}2": Count()}
    assert matching(both, [NAMESPACE], "the workers have") == [NAMESPACE, sealed]


def test_an_export_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    export = exported(tmp_path)
    with pytest.raises(InvalidExport, match="but the store may hold 5000; raise its size"):
        import_blocks(export, [NAMESPACE], str(tmp_path), 5000)


def test_encrypted_blocks_stay_encrypted(tmp_path: Path) -> None:
    key_file, source, target = (tmp_path / name for name in ("key", "source", "target"))
    key_file.write_bytes(bytes(range(32)))
    key_file.chmod(0o600)
    source.mkdir()
    target.mkdir()
    store = open_store(str(source), NAMESPACE, CAPACITY, key_file=key_file)
    write(store, 1, 2)
    store.close()
    counts = export_blocks(store_folders(str(source)), tmp_path / "export")
    namespace = sealed_namespace(NAMESPACE, bytes(range(32)))
    assert counts.keys() == {namespace}
    import_blocks(tmp_path / "export", matching(counts, [NAMESPACE], ""), str(target), CAPACITY)
    store = open_store(str(target), NAMESPACE, CAPACITY, key_file=key_file)
    assert read(store, 1)
    store.close()
    plain = open_store(str(target), NAMESPACE, CAPACITY)
    assert not plain.count([bytes(16)])
    assert stored(plain, range(3)) == []
    plain.close()


def test_an_export_is_never_overwritten_and_needs_a_store(tmp_path: Path) -> None:
    export = exported(tmp_path)
    with pytest.raises(InvalidExport, match="has an export already"):
        export_blocks(store_folders(str(tmp_path / "source")), export)
    with pytest.raises(InvalidExport, match="has no KV store; set the directory"):
        store_folders(str(tmp_path))


def test_an_export_that_ended_early_is_completed(tmp_path: Path) -> None:
    export = exported(tmp_path)
    (export / MANIFEST).unlink()
    filled(tmp_path / "source", range(10, 12))
    counts = export_blocks(store_folders(str(tmp_path / "source")), export)
    assert counts == {NAMESPACE: Count(12, 12 * FILE_BYTES)} == read_manifest(export)
    (tmp_path / "target").mkdir()
    assert import_blocks(export, [NAMESPACE], str(tmp_path / "target"), CAPACITY).num_blocks == 12


def test_a_namespace_without_a_folder_has_no_blocks(tmp_path: Path) -> None:
    export = exported(tmp_path)
    rmtree(export / FOLDER / NAMESPACE)
    with pytest.raises(InvalidExport, match="is incomplete: it has 0 of 10 blocks"):
        import_blocks(export, [NAMESPACE], str(tmp_path), CAPACITY)
    assert list(store_folders(str(tmp_path / "source"))[0].keys("evicted")) == []


def test_a_manifest_that_leads_out_of_the_export_is_damaged(tmp_path: Path) -> None:
    entry = {f"{NAMESPACE}./../../x": {"blocks": 0, "bytes": 0}}
    (tmp_path / MANIFEST).write_text(json.dumps({"version": 1, "namespaces": entry}))
    with pytest.raises(InvalidExport, match="is damaged"):
        read_manifest(tmp_path)
