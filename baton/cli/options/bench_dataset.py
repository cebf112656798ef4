"""Options of `baton bench` for the prompts and their tokens."""

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from baton.cli.options.flag_group import Flags, flag_group
from baton.loadtool.datasets.azure import AzureTrace
from baton.loadtool.datasets.base import Dataset
from baton.loadtool.datasets.mooncake import MooncakeTrace
from baton.loadtool.datasets.sharegpt import ShareGptConversations
from baton.loadtool.datasets.synthetic import SyntheticPrompts, SyntheticShape
from baton.loadtool.errors import SettingError
from baton.loadtool.lengths import Lengths
from baton.loadtool.vocabulary import Vocabulary, read_vocabulary, token_range

FILE_DATASETS: Mapping[str, Callable[[Path, Vocabulary, Lengths], Dataset]] = {
    "sharegpt": ShareGptConversations,
    "mooncake": MooncakeTrace,
    "azure": AzureTrace,
}
SYNTHETIC = ("synthetic", "random")  # the second is vLLM's name


def _make_vocabulary(flags: Flags) -> Vocabulary:
    if flags["tokenizer"] is not None:
        if flags["token_ids"] is not None:
            raise SettingError("give --tokenizer or --token-ids, not both")
        return read_vocabulary(flags["tokenizer"])
    text = flags["token_ids"] or "100:1000"
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise SettingError(f"--token-ids {text}: must be FIRST:LAST, like 100:1000")
    return token_range(int(first), int(last))


def _make_dataset(flags: Flags) -> Callable[[Vocabulary], Dataset]:
    """Return the dataset's constructor, which takes the vocabulary that other options choose."""
    name, path = flags["dataset"], flags["dataset_path"]
    lengths = Lengths(flags["scale_lengths"], flags["max_input_len"], flags["max_output_len"], flags["output_len"])
    if name in SYNTHETIC:
        if path is not None:
            raise SettingError("--dataset-path needs --dataset mooncake, azure or sharegpt")
        shape = SyntheticShape(
            input_len=flags["random_input_len"],
            output_len=flags["random_output_len"],
            range_ratio=flags["random_range_ratio"],
            prefix_len=flags["random_prefix_len"],
            num_prefixes=flags["random_num_prefixes"],
        )
        return lambda vocabulary: SyntheticPrompts(shape, vocabulary, lengths)
    if path is None:
        raise SettingError(f"--dataset {name} needs --dataset-path FILE")
    kind = FILE_DATASETS[name]
    return lambda vocabulary: kind(path, vocabulary, lengths)


vocabulary_flags = flag_group(
    "vocabulary",
    _make_vocabulary,
    click.option(
        "--tokenizer",
        type=click.Path(exists=True, path_type=Path),
        help="Directory with the model's tokenizer.json; prompts are then made of words and can be sent as text.",
    ),
    click.option("--token-ids", help="Without --tokenizer: range of prompt token ids, FIRST:LAST [default: 100:1000]."),
    panel="Prompt tokens",
)

dataset_flags = flag_group(
    "make_dataset",
    _make_dataset,
    click.option(
        "--dataset",
        "--dataset-name",
        "dataset",
        type=click.Choice([*SYNTHETIC, *FILE_DATASETS]),
        default="synthetic",
        show_default=True,
        metavar="NAME",
        help=f"Source of the prompts: {', '.join([*SYNTHETIC, *FILE_DATASETS])}; random means synthetic.",
    ),
    click.option(
        "--dataset-path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File of the trace or of the conversations.",
    ),
    click.option("--scale-lengths", type=float, default=1.0, show_default=True, help="Factor for all lengths."),
    click.option("--max-input-len", type=click.IntRange(1), help="Truncate longer prompts; skip longer conversations."),
    click.option("--max-output-len", type=click.IntRange(1), help="Maximum output tokens of a request."),
    click.option(
        "--output-len", type=click.IntRange(1), help="Output tokens of every request, instead of the dataset's."
    ),
    click.option(
        "--random-input-len",
        type=click.IntRange(1),
        default=1024,
        show_default=True,
        help="Tokens of a synthetic prompt, without its prefix.",
    ),
    click.option(
        "--random-output-len",
        type=click.IntRange(1),
        default=128,
        show_default=True,
        help="Output tokens of a synthetic request.",
    ),
    click.option(
        "--random-range-ratio",
        type=float,
        default=0.0,
        show_default=True,
        help="Synthetic lengths are uniform in length * (1 +/- this).",
    ),
    click.option(
        "--random-prefix-len",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Tokens of the prefix that synthetic prompts share.",
    ),
    click.option(
        "--random-num-prefixes",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Number of distinct prefixes; each prompt has one at random.",
    ),
    panel="Prompts",
)
