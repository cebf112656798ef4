"""The store in a real S3 server, SeaweedFS."""

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store as Bucket

from baton.deployment.local.ports import free_ports
from baton.kvtransfer.store.archive import export_blocks, import_blocks
from baton.kvtransfer.store.bucket_address import BucketAddress
from baton.kvtransfer.store.factory import open_source
from baton.kvtransfer.store.s3_store import S3Store
from baton.kvtransfer.store.store import StoreUnavailable
from tests.s3_server import BUCKET, CREDENTIALS, HOST, s3_server
from tests.unit.kvtransfer.store.store_rig import (
    NAMESPACE,
    block_of,
    check_contract,
    key_of,
    open_descriptors,
    read,
    write,
)

REGION = "us-east-1"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def address(endpoint: str, prefix: str = "", bucket: str = BUCKET) -> BucketAddress:
    return BucketAddress(bucket, prefix, endpoint, REGION)


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest) -> Iterator[S3Store]:
    """An empty store: each test has a prefix of its own."""
    store = S3Store(address(endpoint, request.node.name), NAMESPACE)
    yield store
    store.close()


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest) -> Bucket:
    """The store's objects, by their keys."""
    prefix = f"{request.node.name}/{NAMESPACE}"
    return Bucket(BUCKET, prefix=prefix, endpoint=endpoint, region=REGION, client_options={"allow_http": True})


def test_it_keeps_the_contract(store: S3Store) -> None:
    check_contract(store)
    assert (store.name, store.use().capacity_bytes) == ("s3", 0)


def test_other_bytes_are_a_miss_and_deleted(store: S3Store, bucket: Bucket) -> None:
    name = key_of(0).hex()
    write(store, 0)
    content = bytes(obstore.get(bucket, name).bytes())
    for changed in (content[:-1], content + b"x", b"", content[:-1] + bytes([content[-1] ^ 1])):
        obstore.put(bucket, name, changed)
        assert not read(store, 0)
        with pytest.raises(FileNotFoundError):
            obstore.head(bucket, name)
    write(store, 0)
    assert read(store, 0)


def test_blocks_expire_after_they_were_stored(store: S3Store, endpoint: str, request: pytest.FixtureRequest) -> None:
    write(store, 0, 1)
    same = address(endpoint, request.node.name)
    lasting, expired = S3Store(same, NAMESPACE, ttl_s=3600), S3Store(same, NAMESPACE, ttl_s=-3600)
    assert read(lasting, 0)
    assert [lasting.count([key_of(0)]), expired.count([key_of(0)])] == [1, 0]
    write(expired, 0)
    assert not read(expired, 0)
    assert not read(store, 0)
    for each in (lasting, expired):
        each.close()


def test_a_missing_bucket_or_wrong_key_is_unavailable(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(address(endpoint, bucket="missing"), NAMESPACE)
    with pytest.raises(
        StoreUnavailable, match=f"^s3://missing/ at {endpoint}: there is no such bucket; create it"
    ) as caught:
        store.write(key_of(0), block_of(0))
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wr0ng")
    store = S3Store(address(endpoint), NAMESPACE)
    for act in (lambda: read(store, 0), lambda: write(store, 0), lambda: store.count([key_of(0)])):
        with pytest.raises(StoreUnavailable, match="PermissionDeniedError") as caught:
            act()
        assert "wr0ng" not in str(caught.value)


def test_without_credentials_the_message_names_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(HOST, 1)
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{HOST}:{port}")
    store = S3Store(address(f"http://{HOST}:{port}"), NAMESPACE)
    with pytest.raises(StoreUnavailable, match="no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or"):
        read(store, 0)
    store.close()


def test_a_server_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    [port] = free_ports(HOST, 1)
    before = open_descriptors()
    store = S3Store(address(f"http://{HOST}:{port}"), NAMESPACE)
    for act in (lambda: read(store, 0), lambda: write(store, 0), lambda: store.count([key_of(0)])):
        with pytest.raises(StoreUnavailable, match=f"s3://{BUCKET}/ at http://{HOST}:{port}: "):
            act()
    store.close()
    assert open_descriptors() <= before + 8  # of its threads, whose pool stays


def test_an_export_of_a_bucket_is_imported_into_another(endpoint: str, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/%s?endpoint={endpoint}&region={REGION}"
    store = S3Store(address(endpoint, "first/kv"), NAMESPACE)
    write(store, *range(3))
    store.close()
    counts = export_blocks(open_source(url % "first/kv"), tmp_path / "export")
    assert {name: count.num_blocks for name, count in counts.items()} == {NAMESPACE: 3}
    assert import_blocks(tmp_path / "export", [NAMESPACE], url % "second", 1).num_blocks == 3
    store = S3Store(address(endpoint, "second"), NAMESPACE)
    assert all(read(store, number) for number in range(3))
    store.close()
