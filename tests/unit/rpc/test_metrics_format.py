"""The format of a metrics page."""

from baton.rpc.metrics_format import MAX_ACCEPT_CHARS, OPENMETRICS, plain_accept

ACCEPT = f"{OPENMETRICS};version=1.0.0"


def test_openmetrics_is_chosen_by_clients_that_accept_it() -> None:
    assert plain_accept(ACCEPT).startswith(OPENMETRICS)
    assert plain_accept("text/plain") == ""


def test_the_accept_header_is_limited() -> None:
    assert plain_accept("a," * (MAX_ACCEPT_CHARS // 2) + ACCEPT) == ""
    assert plain_accept(ACCEPT + ",a" * 16_000).startswith(OPENMETRICS)
