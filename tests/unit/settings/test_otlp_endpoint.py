"""Endpoints of traces."""

import pytest

from baton.router.config import RouterConfig
from baton.settings.otlp_endpoint import OtlpEndpoint, parse_otlp_endpoint
from baton.settings.values import OptionError


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("http://host", OtlpEndpoint("http://host:4318/v1/traces", is_grpc=False, is_tls=False)),
        ("http://host:80/", OtlpEndpoint("http://host:80/v1/traces", is_grpc=False, is_tls=False)),
        ("https://host:443/otlp/traces", OtlpEndpoint("https://host:443/otlp/traces", is_grpc=False, is_tls=True)),
        ("grpc://host", OtlpEndpoint("host:4317", is_grpc=True, is_tls=False)),
        ("grpcs://[::1]:9", OtlpEndpoint("[::1]:9", is_grpc=True, is_tls=True)),
    ],
)
def test_the_scheme_chooses_the_protocol(text: str, endpoint: OtlpEndpoint) -> None:
    assert parse_otlp_endpoint(text) == endpoint


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("host:4317", "must be http://HOST:4318"),
        ("http://", "must be http://HOST:4318"),
        ("http://host:99999", "not a URL"),
        ("http://user:word@host", "no user or password; set OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://host/?a=1", "no query"),
        ("grpc://host/v1/traces", "has no path"),
    ],
)
def test_a_wrong_endpoint_is_reported_without_its_credentials(text: str, error: str) -> None:
    with pytest.raises(OptionError, match=error) as raised:
        RouterConfig(model="model", otlp_traces_endpoint=text)
    assert str(raised.value).startswith("otlp_traces_endpoint: ")
    assert "word" not in str(raised.value).replace("password", "")
