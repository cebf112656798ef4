"""Settings of an application on Ray, and the processes of its replicas."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import baton
from baton.deployment.local.machine import Machine
from baton.deployment.local.redis_server import HOST
from baton.deployment.ray.arguments import read_ray_settings
from baton.deployment.ray.nodes import placement_group
from baton.deployment.ray.options import ReplicaOptions
from baton.deployment.ray.process import (
    Place,
    node_process,
    rendezvous_process,
    router_process,
    share_of,
    worker_process,
)
from baton.deployment.ray.settings import RaySettings
from baton.settings.values import OptionError

MODEL = str(Path(baton.__file__).parent / "bundled_model")
REGISTRY = f"redis://:secret@{HOST}:6379/0"
ARGUMENTS: dict[str, object] = {"model": MODEL, "registry": REGISTRY}
NODE = Place("10.0.0.5", Machine(num_cores=2, memory_bytes=8 << 30))


def settings(**arguments: object) -> RaySettings:
    read = read_ray_settings({**ARGUMENTS, **arguments}, {})
    read.check()
    return read


def test_a_pools_section_overrides_the_clusters_size() -> None:
    read = settings(prefill="2", decode=3, decode_ray={"num_replicas": 5})
    assert [read.num_replicas(name) for name in ("prefill", "decode", "both", "router")] == [2, 5, 0, 1]
    assert [read.has(role) for role in ("prefill", "decode", "both")] == [True, True, False]
    scaled = settings(prefill=0, colocated=2, decode_ray={"autoscaling": {"min_replicas": 0, "max_replicas": 4}})
    assert scaled.has("decode")
    assert scaled.num_replicas("decode") == 0
    assert not scaled.has("prefill")
    alone = settings(decode=0, decode_ray={"autoscaling": {"min_replicas": 0, "max_replicas": 4}})
    assert [alone.has(role) for role in ("prefill", "decode", "both")] == [True, True, False]
    assert settings(decode="0", decode_ray={"num_replicas": 3}).num_replicas("decode") == 3


def test_a_command_line_may_set_keys_of_sections() -> None:
    read = settings(**{"router.policy": "round_robin", "prefill_ray.num_cpus": "4", "engine.max-num-seqs": "7"})
    assert read.cluster.router == {"policy": "round_robin"}
    assert read.deployments["prefill"].replicas.num_cpus == 4.0
    assert read.cluster.engine["decode"]["max_num_seqs"] == 7
    assert not settings(router="false").has_router


def test_local_prefill_below_has_a_default_only_on_one_machine() -> None:
    assert "local_prefill_below" not in settings().cluster.router
    assert settings(router={"local_prefill_below": 9}).cluster.router["local_prefill_below"] == 9
    assert read_ray_settings(ARGUMENTS, {}, one_machine=True).cluster.router["local_prefill_below"] == 64


def test_ray_stores_only_digests_of_keys() -> None:
    for name in ("api_key", "admin_api_key"):
        [kept] = settings(router={name: "sk-one"}).cluster.router[name]  # type: ignore[misc]
        assert kept.startswith("sha256:")


def test_auto_is_decided_before_ray_places_replicas() -> None:
    read = read_ray_settings({**ARGUMENTS, "prefill_ray": {"num_gpus": 0}}, {}, auto_device="cuda")
    assert [read.device("prefill"), read.device("decode")] == ["cpu", "cuda"]
    assert [read.num_gpus("prefill"), read.num_gpus("decode")] == [0.0, 1.0]
    given = read_ray_settings({**ARGUMENTS, "decode_ray": {"num_gpus": 0.5}, "engine": {"device": "auto"}}, {})
    assert [given.device("prefill"), given.device("decode")] == ["cpu", "cuda"]
    with pytest.raises(OptionError, match="device: 'mps' is not supported"):
        read_ray_settings({**ARGUMENTS, "engine": {"device": "mps"}}, {})


def test_replicas_on_gpus_take_one_gpu() -> None:
    read = settings(engine={"device": "cuda"}, prefill_ray={"num_gpus": 2})
    assert [read.num_gpus(name) for name in ("prefill", "decode", "router")] == [2.0, 1.0, 0.0]
    assert settings().num_gpus("decode") == 0.0


def test_each_rank_takes_a_gpu() -> None:
    ranks = {"engine": {"device": "cuda"}, "tensor_parallel": 4, "prefill_tensor_parallel": 2}
    read = settings(**ranks)
    assert [read.num_gpus(name) for name in ("prefill", "decode", "router")] == [2.0, 4.0, 0.0]
    colocated = settings(**ranks, prefill=0, decode=0, colocated=1)
    assert colocated.num_gpus("both") == 4.0
    more = settings(**ranks, decode_ray={"num_gpus": 8})
    assert [more.num_gpus(name) for name in ("prefill", "decode")] == [2.0, 8.0]
    assert settings(tensor_parallel=4).num_gpus("decode") == 0.0


def test_a_replica_over_several_nodes_has_a_share_of_the_ranks_on_each() -> None:
    ranks = {"engine": {"device": "cuda"}, "tensor_parallel": 16}
    read = settings(**ranks, decode_ray={"nodes_per_worker": 2, "num_cpus": 3, "label_selector": {"pool": "decode"}})
    assert (read.num_nodes("decode"), read.ranks_per_node("decode"), read.num_gpus("decode")) == (2, 8, 8.0)
    assert (read.num_nodes("prefill"), read.num_gpus("prefill")) == (1, 1.0)
    assert placement_group(read, "prefill") == {}
    assert placement_group(read, "decode") == {
        "placement_group_bundles": [{"CPU": 3.0, "GPU": 8.0}] * 2,
        "placement_group_strategy": "STRICT_SPREAD",
        "placement_group_bundle_label_selector": [{"pool": "decode"}],
    }


def test_the_processes_of_a_workers_nodes_differ_in_their_number_and_host() -> None:
    read = settings(
        tensor_parallel=2,
        engine={"kv_cache_memory_bytes": "64MiB"},
        decode_ray={"nodes_per_worker": 2, "start_timeout_s": 60},
    )
    machine = Machine(4, 1 << 33)
    with worker_process(read, "decode", "d", Place("10.0.0.1", machine)) as first:
        second = node_process(read, "decode", "d-node-1", Place("10.0.0.2", machine), 1, "10.0.0.1:31000")
    common = {"--tensor-parallel=2", "--nnodes=2", "--master-addr=10.0.0.1", "--node-timeout-s=60.0", "--num-threads=4"}
    assert {*common, "--host=10.0.0.1", "--master-port=0"} <= set(first.argv)
    assert {*common, "--host=10.0.0.2", "--master-port=31000", "--node-rank=1"} <= set(second.argv)
    assert not any("--config=" in word for word in second.argv)  # it needs no registry
    with worker_process(read, "prefill", "p", Place("10.0.0.1", machine)) as alone:
        assert not any(word.startswith(("--nnodes", "--master", "--node")) for word in alone.argv)


def test_routers_and_workers_export_traces_to_one_endpoint() -> None:
    read = settings(otlp_traces_endpoint="grpc://collector:4317", router={"trace_sample_ratio": 0.5})
    flag = "--otlp-traces-endpoint=grpc://collector:4317"
    router = router_process(read, "router-abc", NODE)
    assert {flag, "--trace-sample-ratio=0.5"} <= set(router.argv)
    with worker_process(read, "decode", "decode-abc", NODE) as worker:
        assert flag in worker.argv


def test_a_replica_has_time_to_drain_hand_off_and_end() -> None:
    read = settings(drain_timeout_s=60, router_ray={"graceful_shutdown_timeout_s": 600})
    assert read.shutdown_timeout_s("decode") == 60 + 2 + 30 + 5  # as in docs/ray.md: 37 s in addition to the drain
    assert read.shutdown_timeout_s("router") == 600


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"registry": None}, "registry: missing"),
        ({"model": None}, "model: missing"),
        ({"registry": "http://cache"}, "registry: a registry's URL starts with"),
        ({"registry_file": "/registry"}, "registry: set either registry or registry_file"),
        ({"prefil_ray": {}}, "prefil_ray: unknown option"),
        ({"prefill_ray": {"num_gpu": 1}}, "prefill_ray.num_gpu: unknown option; did you mean num_gpus"),
        ({"prefill_ray": {"min_replicas": 1}}, "it belongs under prefill_ray.autoscaling"),
        ({"decode_ray": {"autoscaling": {"min_replicas": 3}}}, "decode_ray.autoscaling.max_replicas: 1 is less"),
        (
            {"decode_ray": {"num_replicas": 2, "autoscaling": {}}},
            "decode_ray.num_replicas: cannot be combined with autoscaling",
        ),
        ({"decode": 0, "prefill_ray": {"autoscaling": {}}}, "decode: no worker decodes"),
        (
            {"prefill": 0, "prefill_ray": {"num_replicas": 1}, "prefill_engine": {"block_size": 8}},
            "block_size: 8 for prefill, 16 for decode",
        ),
        ({"decode_ray": {"resources": {"a": "x"}}}, "decode_ray.resources.a: 'x' is not allowed"),
        ({"decode_ray": {"label_selector": ["pool"]}}, "decode_ray.label_selector: must be a mapping"),
        ({"engine": {"device": "cuda"}, "decode_ray": {"num_gpus": 0}}, "decode_ray.num_gpus: must be above 0"),
        ({"engine": {"max_num_seq": 1}}, "engine.max_num_seq: unknown option"),
        ({"tls_cert": "a.pem"}, "tls_cert, tls_key, tls_ca: all three"),
        ({"router": False, "router.policy": "cost"}, "router.policy: router is already False"),
    ],
)
def test_an_invalid_setting_is_named(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError) as raised:
        settings(**arguments)
    assert expected in str(raised.value)


def test_a_replica_takes_its_share_of_the_node() -> None:
    node = Machine(num_cores=8, memory_bytes=64)
    assert share_of(node, ReplicaOptions(num_cpus=2.5)) == Machine(2, 16)
    assert share_of(node, ReplicaOptions(num_cpus=0)) == Machine(1, 8)
    assert share_of(node, ReplicaOptions(num_cpus=100)) == node
    assert share_of(node, ReplicaOptions(num_cpus=1, memory_bytes=20)) == Machine(1, 20)
    assert share_of(node, ReplicaOptions(num_cpus=1, memory_bytes=1 << 40)) == Machine(1, node.memory_bytes)


def test_a_worker_runs_as_without_ray_and_shows_no_password() -> None:
    tls = {"tls_cert": "a", "tls_key": "b", "tls_ca": "c"}
    with worker_process(settings(served_model_name="m", lease_s=3, **tls), "decode", "decode-abc", NODE) as spec:
        config = spec.argv[-1].removeprefix("--config=")
        assert yaml.safe_load(Path(config).read_text()) == {"registry": REGISTRY}
        assert Path(config).parent.stat().st_mode & 0o77 == 0
    assert not Path(config).exists()
    assert spec.argv[1:5] == ("-P", "-m", "baton", "worker")
    assert "--role=decode" in spec.argv
    expected = {"--worker-id=decode-abc", "--host=10.0.0.5", "--num-threads=2", "--lease-s=3.0", "--tls-ca=c"}
    assert expected <= {*spec.argv}
    assert spec.env["OMP_NUM_THREADS"] == "2"
    assert "secret" not in " ".join(spec.argv)
    assert spec.log_path is None  # it writes to the replica's own files


def test_an_expert_parallel_pool_is_one_group_in_the_registry() -> None:
    read = settings(decode=3, expert_parallel=2, enable_eplb=True)
    assert read.has_rendezvous
    assert read.num_replicas("decode") == 3  # on Ray the group is the whole pool, of any size
    place = replace(NODE, application="ray-0123")
    with worker_process(read, "decode", "decode-abc", place) as spec:
        options = {"--expert-parallel=2", "--group=decode", "--rendezvous=registry/ray-0123", "--enable-eplb"}
        assert options <= {*spec.argv}
    with worker_process(read, "prefill", "prefill-abc", place) as spec:
        assert not any(word.startswith(("--expert-parallel", "--rendezvous")) for word in spec.argv)
    with rendezvous_process(read, "rendezvous-abc", place) as spec:
        [file] = [word.removeprefix("--config=") for word in spec.argv if word.startswith("--config=")]
        assert yaml.safe_load(Path(file).read_text()) == {"registry": REGISTRY}
        assert spec.argv[1:4] == ("-P", "-m", "baton.membership.rendezvous")
        assert {"--host=10.0.0.5", "--name=ray-0123", "--drain-timeout-s=67.0"} <= {*spec.argv}
        assert "secret" not in " ".join(spec.argv)
    assert not Path(file).exists()
    assert read.deployments["rendezvous"].replicas.num_cpus == 0


def test_pools_without_expert_parallelism_have_no_rendezvous() -> None:
    assert not settings().has_rendezvous
    assert settings(prefill=2, prefill_expert_parallel=2).has_rendezvous
    assert not settings(prefill=0, colocated=1, prefill_expert_parallel=2).has_rendezvous  # that pool is empty
    assert settings(prefill=0, colocated=2, expert_parallel=2).has_rendezvous
    given = settings(expert_parallel=2, rendezvous_ray={"num_cpus": 0.5, "label_selector": {"pool": "decode"}})
    assert given.deployments["rendezvous"].replicas.num_cpus == 0.5


def test_a_router_listens_at_its_nodes_address_by_default(tmp_path: Path) -> None:
    spec = router_process(settings(), "router-abc", NODE)
    assert {"--host=10.0.0.5", "--port=0"} <= {*spec.argv}
    assert spec.env["BATON_REGISTRY"] == REGISTRY
    assert "secret" not in " ".join(spec.argv)
    read = settings(host="127.0.0.2", port=8123, router_processes=2, log_dir=str(tmp_path / "logs"))
    spec = router_process(read, "router-abc", NODE)
    assert {"--host=127.0.0.2", "--port=8123", "--processes=2"} <= {*spec.argv}
    assert spec.log_path == tmp_path / "logs" / "router-abc.log"


def test_routers_serve_the_adapters_of_the_engines() -> None:
    lora = {"lora_modules": ["sql=/adapters/sql"], "lora_dir": "/adapters"}
    spec = router_process(settings(engine={"enable_lora": True}, router=lora), "router-abc", NODE)
    assert {"--enable-lora", "--lora-modules=sql=/adapters/sql", "--lora-dir=/adapters"} <= {*spec.argv}
    assert "--enable-lora" not in router_process(settings(), "router-abc", NODE).argv


def test_the_registrys_url_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "registry"
    read = settings(registry=None, registry_file=str(file))
    with pytest.raises(OptionError, match=r"registry_file: .*No such file"):
        router_process(read, "router-abc", NODE)
    file.write_text("http://:secret@cache")
    with pytest.raises(OptionError, match="a registry's URL starts with") as raised:
        router_process(read, "router-abc", NODE)
    assert "secret" not in str(raised.value)
    file.write_text(f"{REGISTRY}\n")
    assert router_process(read, "router-abc", NODE).env["BATON_REGISTRY"] == REGISTRY


def test_a_node_without_the_model_reports_it() -> None:
    with pytest.raises(OptionError, match="/nowhere is not a directory or GGUF file on this node"):
        router_process(settings(model="/nowhere"), "router-abc", NODE)


def test_a_node_has_the_tokenizer_and_overrides_and_downloads_nothing(tmp_path: Path) -> None:
    read = settings(tokenizer=str(tmp_path), engine={"hf_overrides": {"rope_theta": 7}})
    expected = {f"--tokenizer={tmp_path}", '--hf-overrides={"rope_theta": 7}'}
    assert expected <= {*router_process(read, "router-abc", NODE).argv}
    with worker_process(read, "decode", "d", NODE) as spec:
        assert expected <= {*spec.argv}
    with pytest.raises(OptionError, match=r"^tokenizer: /nowhere is not a directory on this node$"):
        router_process(settings(tokenizer="/nowhere"), "router-abc", NODE)
    for name in ("revision", "tokenizer_revision"):
        with pytest.raises(OptionError, match=f"^{name}: has no effect on a Ray node, which needs a directory; "):
            router_process(settings(**{name: "v1"}), "router-abc", NODE)


def test_former_names_of_colocated_workers_are_accepted() -> None:
    former = settings(prefill=0, both=1, both_ray={"num_cpus": 2})
    assert former == settings(prefill=0, colocated=1, colocated_ray={"num_cpus": 2})
    assert former.num_replicas("both") == 1
    with pytest.raises(OptionError, match="both_ray: given twice, under the names both_ray and colocated_ray"):
        settings(both_ray={}, colocated_ray={})


def test_processes_log_as_the_arguments_say() -> None:
    place = Place("127.0.0.1", Machine(4, 1 << 34))
    settings = read_ray_settings({**ARGUMENTS, "log_level": "warning", "log_format": "json"}, {})
    with worker_process(settings, "decode", "decode-x", place) as worker:
        assert {"--log-level=warning", "--log-format=json"} <= set(worker.argv)
    with pytest.raises(OptionError, match="log_format"):
        read_ray_settings({**ARGUMENTS, "log_format": "xml"}, {})
