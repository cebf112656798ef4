"""The routers' file is what a router takes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.router.config import RouterConfig
from baton.settings.config_file import load
from tests.helm import charts
from tests.helm.application import snake
from tests.helm.cases import CASES


@pytest.mark.parametrize("case", CASES)
def test_the_router_accepts_its_file(case: str, tmp_path: Any) -> None:
    objects = charts.render(CASES[case])
    text = charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"]
    file = tmp_path / "router.yaml"
    file.write_text(text)
    config = load(RouterConfig, file, {"registry": "redis://cache:6379/0"})
    [application] = charts.serve_config(objects)["applications"]
    args = application["args"]
    assert (config.model, config.model_name) == (args["model"], args["served_model_name"])
    assert (config.tls_cert, config.tls_server_name) == (args.get("tls_cert"), args.get("tls_server_name"))
    mounts = {
        each["mountPath"]
        for each in charts.only(objects, "Deployment", "baton-router")["spec"]["template"]["spec"]["containers"][0][
            "volumeMounts"
        ]
    }
    for path in (config.tls_cert, config.ssl_certfile, config.api_keys_file):
        assert path is None or path.rpartition("/")[0] in mounts


def test_further_models_reach_the_router(tmp_path: Path) -> None:
    further = ["/models/org/other=org/other", "/models/third"]
    objects = charts.render(charts.merged(charts.MODEL, {"router": {"config": {"alsoServe": further}}}))
    file = tmp_path / "router.yaml"
    file.write_text(charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"])
    config = load(RouterConfig, file, {"registry": "redis://cache:6379/0"})
    assert [model.name for model in config.models] == [config.model_name, "org/other", "third"]


def test_the_slo_reaches_the_router() -> None:
    promised = {"targetTtftMs": 500, "targetTpotMs": 50.5, "trafficWindowS": 30}
    objects = charts.render(charts.merged(charts.MODEL, {"router": {"config": promised}}))
    told = yaml.safe_load(charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"])
    assert {snake(name): value for name, value in promised.items()}.items() <= told.items()


def test_routers_share_the_claim_of_their_files() -> None:
    objects = charts.render(charts.merged(charts.MODEL, {"router": {"files": {"existingClaim": "shared"}}}))
    told = yaml.safe_load(charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"])
    pod = charts.only(objects, "Deployment", "baton-router")["spec"]["template"]["spec"]
    [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "files"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "files"]
    assert mount == {"name": "files", "mountPath": told["files_dir"]}
    assert volume["persistentVolumeClaim"] == {"claimName": "shared"}


def test_prefixes_of_the_server_reach_the_router(tmp_path: Path) -> None:
    prefixes = {"router": {"config": {"pinPrefix": ["/prefixes/system.txt"]}}}
    objects = charts.render(charts.merged(charts.MODEL, prefixes))
    file = tmp_path / "router.yaml"
    file.write_text(charts.only(objects, "ConfigMap", "baton-router")["data"]["router.yaml"])
    assert load(RouterConfig, file, {"registry": "redis://cache:6379/0"}).pin_prefix == ("/prefixes/system.txt",)


@pytest.mark.parametrize("share", [0, 0.5])
def test_the_share_of_pins_reaches_the_workers(share: float) -> None:
    objects = charts.render(charts.merged(charts.MODEL, {"maxPinnedFraction": share}))
    [application] = charts.serve_config(objects)["applications"]
    assert application["args"]["max_pinned_fraction"] == share
