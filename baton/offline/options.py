"""Options of `LLM`: those of `baton serve`, under the same names and vLLM's, and the ones that it sets itself."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click

from baton.cli.options.model_source import find_checkpoint
from baton.cli.options.vllm_flags import ALWAYS_OFF, ALWAYS_ON
from baton.deployment.local.cluster_config import (
    ClusterConfig,
    cluster_options,
    engine_options,
    router_options,
    worker_options,
)
from baton.deployment.local.cluster_plan import Checkpoint
from baton.deployment.local.ports import free_ports
from baton.router.auth.api_key import new_key
from baton.settings.config_file import build, check_section, pick
from baton.settings.values import JsonText, OptionError, Value

StrPath = str | os.PathLike[str]
HOST = "127.0.0.1"
POOLS = {"prefill": "num_prefill", "decode": "num_decode", "colocated": "num_prefill=0"}
# Options of a server for clients: this one has no client but the LLM.
RESERVED = frozenset(
    {
        *("host", "port", "api_key", "admin_api_key", "api_keys_file", "protect_operations", "shared_cache"),
        *("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "cors_origins", "grpc_port", "console"),
        *("lora_dir", "max_choices"),
    }
)
DRAIN_TIMEOUT_S = 1.0  # at the end no request is left whose output is wanted
RELOAD_TIMEOUT_S = 600.0  # that a request waits for the restart of the only worker
NEUTRAL: Mapping[str, object] = {"tokenizer_mode": "auto", "disable_log_stats": True, "swap_space": 0}


@dataclass(frozen=True, slots=True)
class OfflineOptions:
    """The options of an LLM's processes."""

    values: Mapping[str, Value]  # by name, those that are set
    key: str  # which the router requires

    def content(self) -> dict[str, object]:
        """Return the content of the processes' config file."""
        sections = {"router": router_options(), "engine": engine_options()}
        content: dict[str, object] = {
            name: value for name, value in self.values.items() if not any(name in each for each in sections.values())
        }
        for section, options in sections.items():
            content[section] = {name: value for name, value in self.values.items() if name in options}
        return content

    def checkpoint(self) -> Checkpoint:
        """Find or download the model. Raises ValueError if there is none, or if it cannot be served as configured."""
        cluster = build(ClusterConfig, pick(cluster_options(), self.values))
        cluster.check_groups()
        try:
            return find_checkpoint(cluster, pick(engine_options(), self.values))
        except click.ClickException as error:
            raise ValueError(error.message) from None

    def at(self, checkpoint: Checkpoint) -> "OfflineOptions":
        """Return the options with the directories of a checkpoint that was found."""
        values: dict[str, Value] = {"served_model_name": checkpoint.name, **self.values}
        for name in ("revision", "tokenizer", "tokenizer_revision"):
            values.pop(name, None)
        values["model"] = str(checkpoint.directory)
        if checkpoint.tokenizer is not None:
            values["tokenizer"] = str(checkpoint.tokenizer)
        return replace(self, values=values)

    @property
    def hf_overrides(self) -> JsonText | None:
        """Given values in place of those in the checkpoint's config.json."""
        given = self.values.get("hf_overrides")
        assert given is None or isinstance(given, JsonText)
        return given

    @property
    def has_lora(self) -> bool:
        """Whether requests may name adapters."""
        return bool(self.values.get("enable_lora"))

    @property
    def log_dir(self) -> str | None:
        """Given directory of the logs."""
        given = self.values.get("log_dir")
        assert given is None or isinstance(given, str)
        return given

    @property
    def max_num_seqs(self) -> int | None:
        """Given size of a worker's batch."""
        given = self.values.get("max_num_seqs")
        assert given is None or isinstance(given, int)
        return given


def read_options(
    model: StrPath | None, num_prefill: int, num_decode: int, log_dir: StrPath | None, given: Mapping[str, object]
) -> OfflineOptions:
    """Return the options for the arguments of `LLM`. Raises OptionError naming the first invalid one."""
    if num_prefill < 0 or num_decode < 1:
        raise OptionError(
            f"num_prefill is {num_prefill} and num_decode {num_decode}, but they must be at least 0 and 1; with "
            "num_prefill=0 the decode workers prefill too"
        )
    options = {**cluster_options(), **worker_options(), **router_options(), **engine_options()}
    values = check_section(options, _without_switches(given))
    for name in values:
        if name in POOLS:
            raise OptionError(f"{name}: set {POOLS[name]} instead")
        if name in RESERVED:
            raise OptionError(f"{name}: an LLM serves no clients; use `baton serve` for them")
    if "tensor_parallel" in values:
        values.setdefault("prefill_tensor_parallel", values["tensor_parallel"])
    is_colocated = num_prefill == 0
    key = new_key()
    chosen: dict[str, Value] = {
        "drain_timeout_s": DRAIN_TIMEOUT_S,
        "cold_start_timeout_s": RELOAD_TIMEOUT_S,
        **values,
        "prefill": num_prefill,
        "decode": 0 if is_colocated else num_decode,
        "colocated": num_decode if is_colocated else 0,
        "host": HOST,
        "port": free_ports(HOST, 1)[0],
        "api_key": (key,),
        "protect_operations": True,
        "shared_cache": True,
        "console": False,
        # Outputs are the model's text as it is.
        "tool_call_parser": "none",
        "reasoning_parser": "none",
    }
    if chosen.get("enable_lora"):
        chosen["lora_dir"] = "/"  # a LoRARequest may name any path
    if model is not None:
        chosen["model"] = os.fspath(model)
    if log_dir is not None:
        chosen["log_dir"] = str(Path(log_dir).expanduser().absolute())
    return OfflineOptions(chosen, key)


def _without_switches(given: Mapping[str, object]) -> dict[str, object]:
    """Return the options without those of vLLM that have only one value here. Raises OptionError for another value."""
    kept = dict(given)
    fixed = {
        **{name.replace("-", "_"): (True, reason) for name, reason in ALWAYS_ON.items()},
        **{name.replace("-", "_"): (False, reason) for name, reason in ALWAYS_OFF.items()},
    }
    for name, (only, reason) in fixed.items():
        if name in kept and kept.pop(name) is not only:
            raise OptionError(f"{name}: {reason}; omit it")
    for name, neutral in NEUTRAL.items():
        if name in kept and kept.pop(name) != neutral:
            raise OptionError(f"{name}: only {neutral!r} is supported; omit it")
    return kept
