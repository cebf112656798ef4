"""Seconds and bytes of handovers by transport and phase."""

from prometheus_client.core import Metric

from baton.protos.worker_pb2 import HandoverPhase, TransportHandovers
from baton.rpc.handover_times import BOUNDS_S, HandoverFamilies, HandoverTimes


def series(families: HandoverFamilies) -> dict[tuple[str, ...], float]:
    """Return the values by name and labels, in the order of the labels' names."""
    found: list[Metric] = list(families.collect())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in found
        for sample in family.samples
    }


def test_handovers_are_counted_by_transport_and_phase() -> None:
    times = HandoverTimes()
    times.note("tcp", 100, {"read": 0.001, "tail": 0.0})
    times.note("tcp", 50, {"read": 20.0, "tail": 0.3})
    times.note("nixl", 7, {"read": 0.2})
    families = HandoverFamilies(("worker",))
    families.add(("decode-0",), times.to_proto())
    found = series(families)
    assert found["baton:handover_read_bytes_total", "tcp", "decode-0"] == 150
    assert found["baton:handover_read_bytes_total", "nixl", "decode-0"] == 7
    name = "baton:handover_seconds"
    reads = [found[f"{name}_bucket", le, "read", "tcp", "decode-0"] for le in ("0.0005", "0.001", "10.0", "+Inf")]
    assert reads == [0, 1, 1, 2]
    assert found[f"{name}_count", "read", "tcp", "decode-0"] == 2
    assert found[f"{name}_sum", "read", "tcp", "decode-0"] == 20.001
    assert found[f"{name}_bucket", "0.5", "tail", "tcp", "decode-0"] == 2


def test_buckets_of_another_release_are_left_out() -> None:
    families = HandoverFamilies(("worker",))
    phases = [HandoverPhase(phase="read", counts=[1] * len(BOUNDS_S), sum_s=1.0)]
    families.add(("decode-0",), [TransportHandovers(transport="tcp", num_bytes=3, phases=phases)])
    assert series(families) == {("baton:handover_read_bytes_total", "tcp", "decode-0"): 3}


def test_each_bucket_has_the_last_trace_that_is_exported() -> None:
    times = HandoverTimes()
    for trace_id, seconds in ((b"a" * 16, 0.3), (b"b" * 16, 0.4), (None, 0.35), (b"c" * 16, 20.0), (b"short", 0.001)):
        times.note("tcp", 1, {"read": seconds}, trace_id)
    families = HandoverFamilies(("worker",))
    families.add(("decode-0",), times.to_proto())
    samples = [sample for family in families.collect() for sample in family.samples if sample.exemplar is not None]
    assert {
        sample.labels["le"]: (each.labels["trace_id"], each.value) for sample in samples if (each := sample.exemplar)
    } == {"0.5": ((b"b" * 16).hex(), 0.4), "+Inf": ((b"c" * 16).hex(), 20.0)}
