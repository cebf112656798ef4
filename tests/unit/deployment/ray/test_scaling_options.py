"""Options of the policy in a Serve config file."""

from pathlib import Path

import pytest

from baton.deployment.autoscaling.settings import SLO, PoolLimits, ScalingSettings
from baton.deployment.ray.scaling_options import read_options
from baton.rpc.tls import TlsFiles

URL = "redis://:secret@cache:6379/0"


def test_all_options_are_read() -> None:
    options = read_options(
        {
            "registry": URL,
            "model": "m",
            "budget_gpus": 16,
            "slo": {"ttft_s": 2, "quantile": 0.9},
            "prefill": {"gpus_per_replica": 2, "max_replicas": 4},
            "idle_s": 600.0,
            "flip_s": 1.0,
            "tls_cert": "/cert",
            "tls_key": "/key",
            "tls_ca": "/ca",
            "decode": {"gpus_per_replica": 2},
        }
    )
    assert options.settings == ScalingSettings(
        budget_gpus=16,
        slo=SLO(ttft_s=2.0, quantile=0.9),
        prefill=PoolLimits(gpus_per_replica=2, max_replicas=4),
        decode=PoolLimits(gpus_per_replica=2),
        idle_s=600.0,
        flip_s=1.0,
    )
    assert options.tls == TlsFiles("/cert", "/key", "/ca")
    assert (options.registry, options.model, options.kubernetes) == (URL, "m", None)
    assert "secret" not in repr(options)


def test_the_url_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{URL}\n")
    options = read_options({"registry_file": str(tmp_path / "url"), "budget_gpus": 2})
    assert (options.registry, options.model) == (URL, None)
    with pytest.raises(OSError, match="nowhere"):
        read_options({"registry_file": str(tmp_path / "nowhere"), "budget_gpus": 2})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"registry": None}, "registry: set either registry"),
        ({"registry_file": "/a"}, "registry: set either registry"),
        ({"registry": "http://cache"}, "registry: a registry's URL starts with"),
        ({"budget_gpus": None}, "budget_gpus: Input should be a valid integer"),
        ({"budget_gpus": 1}, "budget_gpus is 1, but the smallest pools need 2"),
        ({"budget": 8}, "budget: unknown option; known are budget_gpus"),
        ({"slo": {"ttft": 1}}, "slo.ttft: unknown option; known are ttft_s"),
        ({"slo": 5}, "slo: must be a mapping"),
        ({"slo": "ttft=1"}, "slo: 'ttft=1' has no unit; write 1s or 1ms"),
        ({"prefill": {"gpus_per_replica": "two"}}, "prefill.gpus_per_replica: Input should be a valid integer"),
        (
            {"flip_s": 1.0, "decode": {"gpus_per_replica": 2}},
            "flip_s: workers can change their role only if both pools have equal gpus_per_replica, which are 1 and 2",
        ),
        ({"tls_cert": "/a"}, "tls_cert, tls_key, tls_ca: all three are needed for TLS"),
        ({"kubernetes": True}, "kubernetes: must be a mapping"),
    ],
)
def test_an_invalid_option_is_named(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_options({"registry": URL, "budget_gpus": 8, **changes})
