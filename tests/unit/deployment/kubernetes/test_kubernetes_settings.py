"""The operator's settings for the cluster."""

import re

import pytest

from baton.deployment.kubernetes.settings import KubernetesSettings, Toleration
from tests.unit.deployment.kubernetes_objects import DECODE, PREFILL, Json, page_blocks


def test_the_documented_settings_are_valid() -> None:
    settings = KubernetesSettings.of(next(each[0] for each in page_blocks() if "prefill" in each[0]))
    assert settings.prefill.gpus_per_pod == 4
    assert settings.decode.labels == {"ray.io/cluster": "baton", "ray.io/group": "decode"}
    assert settings.prefill.tolerations == (Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"),)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"decode": {"labels": {}}}, "decode: labels must not be empty"),
        ({"decode": {"gpus_per_pod": 2}}, "decode.labels: Field required"),
        ({"decode": {"labels": DECODE, "gpus": 2}}, "decode.gpus: Unexpected keyword argument"),
        ({"decode": {"labels": DECODE, "gpus_per_pod": 0}}, "decode: gpus_per_pod is 0, but must be 1 or more"),
        ({"refresh": 1}, "refresh: Unexpected keyword argument"),
        ({"refresh_s": 0}, "refresh_s is 0.0, but must be above 0"),
        ({"timeout_s": "inf"}, "timeout_s is inf, but must be above 0"),
    ],
)
def test_invalid_settings_are_refused(change: Json, words: str) -> None:
    values = {"prefill": {"labels": PREFILL}, "decode": {"labels": DECODE}} | change
    with pytest.raises(ValueError, match=re.escape(words)):
        KubernetesSettings.of(values)
