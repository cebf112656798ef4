"""Consistency checks over the workers of a cluster."""

import pytest

from baton.doctor.cluster import check_router, choose_pairs, compared
from baton.doctor.compare import compare
from baton.doctor.finding import Level
from baton.doctor.worker import ExaminedWorker
from baton.protos.worker_pb2 import KVPool, WorkerDescription, WorkerRole

VERSIONS = {"torch": "2.13.0", "nixl": "1.5.1"}


def worker(
    name: str,
    *,
    versions: dict[str, str] | None = None,
    fingerprint: str = "abc",
    kv_fingerprint: str = "",
    model: str = "m",
    block_size: int = 16,
) -> ExaminedWorker:
    """Return a worker whose name starts with its role."""
    description = WorkerDescription(
        worker_id=name,
        incarnation=f"life of {name}",
        role=WorkerRole.Value(f"WORKER_ROLE_{name.split('-')[0].upper()}"),
        model=model,
        fingerprint=fingerprint,
        block_size=block_size,
        transport="auto",
        pool=KVPool(fingerprint=kv_fingerprint or fingerprint),
    )
    return ExaminedWorker(f"{name}:1", description, [], VERSIONS if versions is None else versions)


PREFILL, DECODE = worker("prefill-0"), worker("decode-0")


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([PREFILL, DECODE], {"workers-alike": Level.OK}),
        ([worker("both-0")], {"workers-alike": Level.OK}),
        ([PREFILL], {"no-decode-worker": Level.FAILURE}),
        ([PREFILL, DECODE, DECODE], {"worker-id-shared": Level.WARNING}),
        ([PREFILL, worker("decode-0", model="n")], {"models-differ": Level.WARNING}),
        ([DECODE, worker("prefill-0", versions={"torch": "2.12.0"})], {"versions-differ": Level.WARNING}),
        ([DECODE, worker("prefill-0", versions={})], {"workers-alike": Level.OK}),  # does not serve the doctor
        (
            [DECODE, worker("prefill-0", fingerprint="def", block_size=32)],
            {
                "fingerprints-differ": Level.WARNING,
                "fingerprint-unmatched": Level.FAILURE,
                "block-sizes-differ": Level.WARNING,
            },
        ),
        (  # two quantizations that exchange KV
            [worker("decode-0", kv_fingerprint="kv"), worker("prefill-0", fingerprint="def", kv_fingerprint="kv")],
            {"workers-alike": Level.OK},
        ),
        (  # a rolling upgrade
            [DECODE, PREFILL, worker("decode-1", fingerprint="def"), worker("prefill-1", fingerprint="def")],
            {"fingerprints-differ": Level.WARNING},
        ),
    ],
)
def test_differences_have_names(workers: list[ExaminedWorker], expected: dict[str, Level]) -> None:
    assert {finding.check: finding.level for finding in compare(workers)} == expected


def test_a_difference_names_the_workers() -> None:
    texts = [finding.found for finding in compare([DECODE, worker("prefill-0", versions={"torch": "2.12.0"})])]
    assert texts == [
        "nixl is 1.5.1 (decode-0), not installed (prefill-0)",
        "torch is 2.13.0 (decode-0), 2.12.0 (prefill-0)",
    ]


def test_every_ordered_pair_with_equal_blocks_is_a_link() -> None:
    workers = [
        PREFILL,
        DECODE,
        worker("decode-1"),
        worker("decode-2", fingerprint="def"),
        worker("both-0", versions={}),
    ]
    pairs = [(pair.reader.name, pair.owner.name) for pair in choose_pairs(workers, 64)]
    assert sorted(pairs) == [
        *(("decode-0", owner) for owner in ("decode-1", "prefill-0")),
        *(("decode-1", owner) for owner in ("decode-0", "prefill-0")),
        *(("prefill-0", owner) for owner in ("decode-0", "decode-1")),
    ]
    some = choose_pairs([worker(f"decode-{index}") for index in range(10)], 9)
    assert len({pair.reader.name for pair in some}) >= 9  # not all of the first reader
    assert choose_pairs(workers, 0) == []


def test_router_state_becomes_findings() -> None:
    registry = {"name": "redis://cache", "connected": False, "error": "gone"}
    router: dict[str, object] = {"ready": False, "degraded": True, "model": "m", "registry": registry}
    workers: list[dict[str, object]] = [
        {"address": "a:1", "state": "ready"},
        {"address": "b:1", "state": "connecting", "last_error": "refused"},
    ]
    findings = {finding.check: finding for finding in check_router("http://r", router, workers)}
    assert set(findings) == {"worker-not-connected", "router-not-ready", "router-degraded", "registry-lost"}
    assert findings["worker-not-connected"].found == "b:1: refused"
    well: dict[str, object] = {"ready": True, "degraded": False, "model": "m", "registry": {"connected": True}}
    (finding,) = check_router("http://r", well, workers[:1])
    assert (finding.check, finding.level) == ("router", Level.OK)
    models = [{"model": "m", "ready": True}, {"model": "n", "ready": False}]
    (finding,) = check_router("http://r", {**well, "models": models}, workers[:1])
    assert (finding.check, finding.found) == ("router-not-ready", "it accepts no requests for n")


def test_workers_of_different_models_are_compared_with_their_own_kind() -> None:
    workers = [worker("decode-0", model="m"), worker("decode-1", model="n", fingerprint="g")]
    (section,) = compared(workers, ("m",))
    assert "models-differ" in {finding.check for finding in section.findings}
    sections = compared(workers, ("m", "n", "o"))
    assert [each.about for each in sections] == ["workers of m compared", "workers of n compared"]
    assert {finding.check for each in sections for finding in each.findings} == {"workers-alike"}
