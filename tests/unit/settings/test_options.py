"""Options from flags and files, and conversion back to flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from baton.engine.config import EngineConfig
from baton.router.config import RouterConfig
from baton.settings.config_file import load, read_config_file
from baton.settings.flags import click_options, flags_of
from baton.settings.options import described, option, options_of
from baton.settings.values import OptionError, parse_bytes, parse_json
from baton.worker.config import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A section of a config."""

    max_num_seqs: int = option(4, "Most.", minimum=1)
    pool_bytes: int = option(1 << 20, "Size of the pool.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A config with a section and every kind of field."""

    name: str = field(metadata=described("A name."))
    inner: Inner
    mode: Literal["fast", "slow"] = option("fast", "A mode.")
    ratio: float = option(0.5, "A share.", minimum=0, maximum=1)
    limit: int | None = option(None, "A limit.", former=("old_limit",))
    careful: bool = option(True, "Whether to take care.")
    peers: tuple[str, ...] = option((), "Addresses.")


def outer_command(seen: list[dict[str, object]]) -> click.Command:
    @click.command()
    @click_options(options_of(Outer))
    @click_options(options_of(Inner))
    def command(**flags: object) -> None:
        seen.append(flags)

    return command


def load_text(tmp_path: Path, text: str, **flags: object) -> Outer:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return load(Outer, file, flags)


@pytest.mark.parametrize("given", ['{"b": {"x": 1e6}, "a": null}', {"b": {"x": 1e6}, "a": None}])
def test_a_json_object_is_a_text_or_a_mapping_and_becomes_one_text(given: object) -> None:
    overrides = options_of(EngineConfig)["hf_overrides"]
    text = overrides.convert(given)
    assert text == '{"a": null, "b": {"x": 1000000.0}}'
    config = EngineConfig(model="m", device="cpu", hf_overrides=parse_json(text))
    assert f"--hf-overrides={text}" in flags_of(config)
    assert overrides.convert(text) == text
    assert overrides.convert(None) is None


@pytest.mark.parametrize("given", ["{rope", "[1]", '"a"', "", '{"a": NaN}', 7, ["a"], {"a": {1, 2}}, "[" * 100_000])
def test_another_value_than_a_json_object_is_refused(given: object) -> None:
    with pytest.raises(OptionError, match=r"is not allowed; it must be a JSON object$"):
        options_of(EngineConfig)["hf_overrides"].convert(given)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1048576", 1 << 20),
        ("512M", 512_000_000),
        ("4GiB", 4 << 30),
        ("4Gi", 4 << 30),
        ("1.5 kb", 1500),
        ("64 KiB", 65536),
        ("2TB", 2 * 10**12),
        ("1e9", 10**9),
        ("1.5e3 KiB", 1500 << 10),
    ],
)
def test_sizes_have_units(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "M", "4 gigs", "-1G", "e9", "1e-3", "0x10"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_bytes(text)


def test_flags_take_precedence_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    text = "name: a\nratio: 0.25\npeers: [x, y]\ninner:\n  max-num-seqs: 7\n  pool_bytes: 2MiB\n"
    config = load_text(tmp_path, text, ratio=0.75, max_num_seqs=9, limit=None)
    assert config == Outer(
        name="a", ratio=0.75, peers=("x", "y"), inner=Inner(max_num_seqs=9, pool_bytes=2 << 20), limit=None
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nratoi: 1", "ratoi: unknown option; did you mean ratio?"),
        ("name: a\ninner: {max_num_seq: 1}", "inner.max_num_seq: unknown option; did you mean max_num_seqs?"),
        ("name: a\nmax_num_seqs: 1", "max_num_seqs: unknown option here; it belongs under inner"),
        ("name: a\nzzz: 1", "zzz: unknown option; known are careful, limit"),
        ("name: a\nlimit: many", "limit: 'many' is not allowed; it must be a whole number"),
        ("name: a\nlimit: 1\nold_limit: 2", "old_limit: given twice, under the names limit and old_limit"),
        ("name: a\nold_limit: many", "old_limit: 'many' is not allowed; it must be a whole number"),
        ("name: a\nlimit: true", "limit: True is not allowed; it must be a whole number"),
        ("name: a\nlimit: 1.5", "limit: 1.5 is not allowed; it must be a whole number"),
        ("name: a\nratio: 2", "ratio: 2 is not allowed; it must be a number from 0 to 1"),
        ("name: a\nratio: .nan", "ratio: nan is not allowed"),
        (f"name: a\nratio: 1{'0' * 400}", "is not allowed; it must be a number from 0 to 1"),
        ("name: a\ninner: {pool_bytes: 1e999}", "inner.pool_bytes: '1e999' is not allowed"),
        ("name: a\ninner: {pool_bytes: .inf}", "inner.pool_bytes: inf is not allowed"),
        ("name: a\nratio: 1\nratio: 0", "ratio is given twice"),
        ("name: a\ninner: {pool_bytes: 1K, pool_bytes: 2K}", "pool_bytes is given twice"),
        ("name: a\ninner: {pool_bytes: 1K, pool-bytes: 2K}", "inner: pool_bytes is given twice, with a dash"),
        ("name: a\ncareful: 1", "careful: 1 is not allowed; it must be true or false"),
        ("name: a\nmode: quick", "mode: 'quick' is not allowed; it must be one of fast, slow"),
        ("name: a\npeers: {b: 1}", "peers: {'b': 1} is not allowed; it must be a list of texts"),
        ("name: null", "name: None is not allowed; it must be a text"),
        (
            "name: a\ninner: {pool_bytes: 4 gigs}",
            "inner.pool_bytes: '4 gigs' is not allowed; it must be a number of bytes",
        ),
        ("name: a\ninner: 3", "inner: must be a mapping of options to values, but is 3"),
        ("mode: fast", "missing: --name"),
        ("- name", "must be a mapping of options to values"),
        ("name: [", "is not YAML"),
    ],
)
def test_an_invalid_file_is_refused_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        load_text(tmp_path, text)
    assert message in str(raised.value)


def test_an_empty_section_equals_a_missing_one(tmp_path: Path) -> None:
    assert load_text(tmp_path, "name: a\ninner:\n") == Outer(name="a", inner=Inner())


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot read .*nowhere\.yaml: No such file"):
        read_config_file(tmp_path / "nowhere.yaml")


def test_flags_that_are_not_given_arrive_as_none() -> None:
    seen: list[dict[str, object]] = []
    arguments = ["--name", "a", "--no-careful", "--pool-bytes", "1KiB", "--peers", "b,c"]
    result = CliRunner().invoke(outer_command(seen), arguments)
    assert result.exit_code == 0, result.output
    assert seen[0]["careful"] is False
    assert seen[0]["pool_bytes"] == 1024
    assert seen[0]["peers"] == ("b", "c")
    assert seen[0]["ratio"] is None
    assert seen[0]["mode"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ratio", "7"], "Invalid value for '--ratio': '7' is not allowed; it must be a number from 0 to 1"),
        (["--max-num-seqs", "0"], "Invalid value for '--max-num-seqs': '0' is not allowed"),
        (["--mode", "quick"], "it must be one of fast, slow"),
        (["--max-num-seq", "1"], "--max-num-seqs"),
    ],
)
def test_an_invalid_flag_is_refused_by_name(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(outer_command([]), arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    "config",
    [
        Outer(name="a b", inner=Inner()),
        Outer(
            name="-x",
            inner=Inner(max_num_seqs=3, pool_bytes=5),
            ratio=0.1,
            limit=0,
            careful=False,
            peers=("p:1", "q:2"),
        ),
    ],
)
def test_a_config_round_trips_through_the_command_line(config: Outer) -> None:
    seen: list[dict[str, object]] = []
    result = CliRunner().invoke(outer_command(seen), flags_of(config))
    assert result.exit_code == 0, result.output
    assert load(Outer, None, seen[0]) == config


def test_worker_and_router_configs_round_trip_through_the_command_line() -> None:
    engine = EngineConfig(model="/m", enable_prefix_caching=False, max_model_len=128, num_threads=2)
    worker = WorkerConfig(role="decode", worker_id="decode-0", port=4000, drain_timeout_s=1.5, engine=engine)
    router = RouterConfig(model="/m", workers=("127.0.0.1:1", "127.0.0.1:2"), local_prefill_below=0)
    seen: list[dict[str, object]] = []

    @click.command()
    @click_options(options_of(WorkerConfig))
    @click_options(options_of(EngineConfig))
    def worker_command(**flags: object) -> None:
        seen.append(flags)

    @click.command()
    @click_options(options_of(RouterConfig))
    def router_command(**flags: object) -> None:
        seen.append(flags)

    assert CliRunner().invoke(worker_command, flags_of(worker)).exit_code == 0
    assert CliRunner().invoke(router_command, flags_of(router)).exit_code == 0
    assert load(WorkerConfig, None, seen[0]) == worker
    assert load(RouterConfig, None, seen[1]) == router


def test_a_former_name_is_accepted_but_not_shown(tmp_path: Path) -> None:
    assert load_text(tmp_path, "name: a\nold-limit: 3\n").limit == 3
    seen: list[dict[str, object]] = []
    command = outer_command(seen)
    assert CliRunner().invoke(command, ["--name=a", "--old-limit=3"]).exit_code == 0
    assert load(Outer, None, seen[0]).limit == 3
    assert "old-limit" not in CliRunner().invoke(command, ["--help"]).output
    with pytest.raises(OptionError, match=r"--limit: given twice"):
        load(Outer, None, {"limit": 1, "old_limit": 2})
    with pytest.raises(OptionError, match=r"--old-limit: 'x' is not allowed"):
        load(Outer, None, {"old_limit": "x"})


def test_a_field_that_no_flag_can_set_is_refused_early() -> None:
    @dataclass(frozen=True)
    class Odd:
        table: dict[str, int] = field(metadata=described("A table."))

    @dataclass(frozen=True)
    class Unexplained:
        limit: int = 1

    with pytest.raises(TypeError, match="field table"):
        options_of(Odd)
    with pytest.raises(TypeError, match="field limit: has no help text"):
        options_of(Unexplained)


@pytest.mark.parametrize("address", ["nohost", "host:", "host:0", "host:65536", ":7000", "a b:1", ""])
def test_a_workers_address_has_a_port(address: str) -> None:
    with pytest.raises(OptionError, match=f"workers: '{address}' is neither host:port, such as 127.0.0.1:7000"):
        RouterConfig(model="/m", workers=("127.0.0.1:1", address))


def test_every_number_of_bytes_takes_a_unit() -> None:
    flags = {"model": "/m", "max_body_bytes": "1MiB", "max_body_bytes_in_flight": "1GiB"}
    config = load(RouterConfig, None, flags)
    assert (config.max_body_bytes, config.max_body_bytes_in_flight) == (1 << 20, 1 << 30)
