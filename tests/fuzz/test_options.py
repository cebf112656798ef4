"""Config files, options and the registry's URL: they give a config, or an OptionError with the reason."""

from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from baton.deployment.local.cluster_config import cluster_options, engine_options, load_settings
from baton.router.config import RouterConfig
from baton.settings.config_file import load, read_config_file
from baton.settings.options import options_of
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.mutations import damaged_bytes, json_values, numbers, odd_texts

OPTIONS = {
    **options_of(RouterConfig),
    **options_of(WorkerConfig),
    **engine_options(),
    **cluster_options(),
}
MAX_TEXT = 10_000  # characters of an error message

NAMES = st.one_of(st.sampled_from(sorted(OPTIONS)), st.sampled_from(["router", "engine", "prefill_engine"]), odd_texts)
TEXTS = ["1e999", "4GiB", "-1", "true", "NaN", "٣", "1_000", " 5 ", "9" * 5000]
VALUES = st.one_of(json_values, st.sampled_from(TEXTS))
SECTIONS = st.dictionaries(NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, max_size=3)), max_size=4)
WHOLE = b"""# A cluster.
prefill: 2
decode: &count 2
transport: auto
router: {port: 8000, policy: cost, workers: [a:1, b:2]}
engine:
  <<: &sizes {block_size: 16, kv_cache_memory_bytes: 4GiB}
  max_num_seqs: *count
decode_engine: {<<: *sizes, max_num_batched_tokens: 0x100}
default: "text \\u00e9 \\x41"
when: 2020-01-01 10:00:00
"""
ODD_YAML = [
    "port: 2020-13-45", "port: !!int x", "port: !!bool x", "port: !!timestamp x", "port: !!int ''", "port: !!float x",
    "!!map foo", "!!map [a]", "port: 0x" + "f" * 5000, "port: " + "9" * 5000, "[" * 500, '"\\ud800": 1', "\0",
    "a: !!python/object:os.system x", "? [a]\n: b", "&a [*a]", "port: &a {b: *a}", 'a: "\\UFFFFFFFF"', "!!omap foo",
    "workers: &a [1]\n<<: *a", "--- a\n--- b", "%YAML 9.9\n---\na: 1", "\ufeffport: 1", "host: !!binary é", "- " * 4000,
]  # fmt: skip


def laughs(levels: int) -> str:
    """Return a short YAML file whose aliases expand exponentially (billion laughs)."""
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join([*lines, f"port: *a{levels - 1}"])


def merges(levels: int) -> str:
    """Return YAML mappings that each merge the previous one twice."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{level}: &a{level} {{<<: [*a{level - 1}, *a{level - 1}]}}" for level in range(1, levels)]
    return "\n".join(lines)


def load_everywhere(file: Path) -> None:
    """Load a file as every config. Fails unless each gives a config or an OptionError with a message."""
    for read in (
        lambda: load(RouterConfig, file, {}),
        lambda: load(WorkerConfig, file, {}),
        lambda: load_settings(file, {}),
    ):
        try:
            read()
        except OptionError as error:
            check_message(error)


def check_message(error: OptionError) -> None:
    """Check that an error's text is short and printable."""
    text = str(error)
    assert 0 < len(text) < MAX_TEXT
    text.encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@pytest.mark.parametrize("text", [*ODD_YAML, laughs(12), merges(40)])
def test_odd_files_are_refused_or_read(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    load_everywhere(file)
    with suppress(OptionError):
        assert isinstance(read_config_file(file), dict)


def test_damaged_config_files_are_read_or_refused(fuzzing: Fuzzing, file: Path) -> None:
    def check_bytes(content: bytes) -> None:
        file.write_bytes(content)
        load_everywhere(file)

    def check_values(sections: dict[str, object]) -> None:
        file.write_text(yaml.safe_dump(sections), encoding="utf-8", errors="surrogatepass")
        load_everywhere(file)

    fuzzing.run_all([(damaged_bytes(WHOLE), check_bytes), (SECTIONS, check_values)], 40)


def test_any_option_value_is_read_or_refused(fuzzing: Fuzzing) -> None:
    def check(given: tuple[str, object]) -> None:
        option = OPTIONS[given[0]]
        try:
            value = option.convert(given[1])
        except OptionError as error:
            check_message(error)
        else:
            assert value is None or isinstance(value, option.kind)

    values = st.one_of(VALUES, numbers, st.binary(max_size=5), st.dates(), st.integers(1 << 20000, 1 << 20001))
    fuzzing.run(st.tuples(st.sampled_from(sorted(OPTIONS)), values), check, 200)


def test_any_registry_url_is_read_or_refused(fuzzing: Fuzzing) -> None:
    def check(url: str) -> None:
        try:
            parsed = parse_registry_url(url)
        except OptionError as error:
            check_message(error)
        else:
            assert parsed.hosts

    whole = "rediss+sentinel://user:password@host:26379,[::1]:6379/service/3?namespace=a&ssl_cert_reqs=none"
    text = st.one_of(st.text(), damaged_bytes(whole.encode()).map(lambda damaged: damaged.decode("utf-8", "replace")))
    fuzzing.run(text, check, 200)
