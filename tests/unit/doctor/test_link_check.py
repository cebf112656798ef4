"""Findings from measured links."""

from dataclasses import replace

import pytest

from baton.doctor.finding import Level
from baton.doctor.link import Link, check_link
from baton.doctor.messages import link_from_proto, link_to_proto
from tests.unit.doctor.links import LINK, RATES, far, unusable, with_rates

RDMA = "rdma-requested-tcp-used"
LOCAL_TCP = replace(LINK, transport="tcp")
READ = RATES.read_bytes


@pytest.mark.parametrize(
    ("link", "setting", "check", "level"),
    [
        (LINK, "auto", "link", Level.OK),
        (with_rates(share=0.1), "auto", "link-slow", Level.WARNING),
        (with_rates(latency_s=0.5), "auto", "link-latency", Level.WARNING),
        (unusable("auto"), "auto", "link-unusable", Level.FAILURE),
        (unusable("nixl"), "auto", "link", Level.OK),  # not the configured transport
        (unusable("nixl"), "nixl", "link-unusable", Level.FAILURE),
        (unusable("nixl", has_rdma=True), "nixl", RDMA, Level.FAILURE),
        (LOCAL_TCP, "auto", "shared-memory-not-used", Level.WARNING),
        (replace(LOCAL_TCP, asked="tcp"), "auto", "link", Level.OK),
        (replace(LOCAL_TCP, asked="tcp"), "tcp", "link", Level.OK),
        (far("auto", "tcp", has_rdma=False), "auto", "link", Level.OK),
        (far("auto", "tcp", has_rdma=True), "auto", RDMA, Level.FAILURE),
        (far("tcp", "tcp", has_rdma=True), "tcp", "link", Level.OK),  # configured
        (far("nixl", "nixl", has_rdma=True, rdma_bytes=READ), "nixl", "link", Level.OK),
        (far("nixl", "nixl", has_rdma=True, rdma_bytes=0), "nixl", RDMA, Level.FAILURE),
        (far("auto", "nixl", has_rdma=True, rdma_bytes=READ // 10), "auto", RDMA, Level.FAILURE),
        (far("nixl", "nixl", has_rdma=True, rdma_bytes=None), "nixl", "link", Level.OK),  # no counters
        (far("nixl", "nixl", has_rdma=False), "nixl", RDMA, Level.FAILURE),
        (replace(LINK, asked="nixl", transport="nixl"), "nixl", "link", Level.OK),  # one host: cross-memory attach
    ],
)
def test_findings_of_links(link: Link, setting: str, check: str, level: Level) -> None:
    finding = check_link(link, setting)
    assert (finding.check, finding.level) == (check, level)
    assert (finding.remedy is None) == (level is Level.OK)


def test_the_text_has_the_figures() -> None:
    text = check_link(LINK, "auto").found
    assert text == (
        "auto chose shared_memory: 5.00 GB/s, 0.83 of a memory copy (6.00 GB/s), a block of 64 KiB in 50 us; same host"
    )


@pytest.mark.parametrize("link", [LINK, unusable("nixl"), far("nixl", "nixl", has_rdma=True, rdma_bytes=0)])
def test_a_link_round_trips_through_its_message(link: Link) -> None:
    assert link_from_proto(link_to_proto(link)) == link


def test_a_link_without_rates_round_trips_through_its_message() -> None:
    link = replace(LINK, rates=replace(RATES, limit=None))
    assert link_from_proto(link_to_proto(link)) == link
    assert check_link(link, "auto").level is Level.OK
