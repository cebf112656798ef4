"""Conversion of findings and measurements to and from protobuf."""

from baton.doctor.finding import Finding, Level
from baton.doctor.link import LimitShare, Link, LinkRates
from baton.protos import doctor_pb2

LEVELS = {
    Level.OK: doctor_pb2.FINDING_LEVEL_OK,
    Level.WARNING: doctor_pb2.FINDING_LEVEL_WARNING,
    Level.FAILURE: doctor_pb2.FINDING_LEVEL_FAILURE,
}
NUMBERS = {number: level for level, number in LEVELS.items()}


def finding_to_proto(finding: Finding) -> doctor_pb2.Finding:
    """Return a finding's message."""
    return doctor_pb2.Finding(
        check=finding.check, level=LEVELS[finding.level], found=finding.found, remedy=finding.remedy
    )


def finding_from_proto(proto: doctor_pb2.Finding) -> Finding:
    """Return a message's finding; an unknown level becomes a warning."""
    level = NUMBERS.get(proto.level, Level.WARNING)
    return Finding(proto.check, level, proto.found, proto.remedy if proto.HasField("remedy") else None)


def link_to_proto(link: Link) -> doctor_pb2.Link:
    """Return a link's message."""
    return doctor_pb2.Link(
        asked=link.asked,
        transport=link.transport,
        reason=link.reason,
        is_same_host=link.is_same_host,
        has_rdma=link.has_rdma,
        rates=None if link.rates is None else _rates_to_proto(link.rates),
    )


def link_from_proto(proto: doctor_pb2.Link) -> Link:
    """Return a message's link."""
    return Link(
        asked=proto.asked,
        transport=proto.transport if proto.HasField("transport") else None,
        reason=proto.reason,
        is_same_host=proto.is_same_host,
        has_rdma=proto.has_rdma,
        rates=_rates_from_proto(proto.rates) if proto.HasField("rates") else None,
    )


def _rates_to_proto(rates: LinkRates) -> doctor_pb2.LinkRates:
    limit = rates.limit
    return doctor_pb2.LinkRates(
        block_bytes=rates.block_bytes,
        latency_s=rates.latency_s,
        bytes_per_s=rates.bytes_per_s,
        read_bytes=rates.read_bytes,
        rdma_bytes=rates.rdma_bytes,
        limit=None
        if limit is None
        else doctor_pb2.LimitShare(name=limit.name, bytes_per_s=limit.bytes_per_s, share=limit.share),
    )


def _rates_from_proto(proto: doctor_pb2.LinkRates) -> LinkRates:
    limit = proto.limit
    return LinkRates(
        block_bytes=proto.block_bytes,
        latency_s=proto.latency_s,
        bytes_per_s=proto.bytes_per_s,
        read_bytes=proto.read_bytes,
        rdma_bytes=proto.rdma_bytes if proto.HasField("rdma_bytes") else None,
        limit=LimitShare(limit.name, limit.bytes_per_s, limit.share) if proto.HasField("limit") else None,
    )
