"""Findings as messages."""

import pytest

from baton.doctor.finding import Finding, Level, failure, ok, warning
from baton.doctor.messages import finding_from_proto, finding_to_proto
from baton.protos import doctor_pb2


@pytest.mark.parametrize("finding", [ok("a", "b"), warning("a", "b", "c"), failure("a", "b", "c")])
def test_a_finding_round_trips_through_its_message(finding: Finding) -> None:
    assert finding_from_proto(finding_to_proto(finding)) == finding


def test_an_unknown_level_is_a_warning() -> None:
    assert finding_from_proto(doctor_pb2.Finding(check="a", found="b")).level is Level.WARNING
