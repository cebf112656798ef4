"""Workloads: two published traces, scaled to the bundled model, and two synthetic ones."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from baton.loadtool.arrivals import RequestRate, TraceTimes
from baton.loadtool.datasets.azure import AzureTrace
from baton.loadtool.datasets.base import Dataset
from baton.loadtool.datasets.mooncake import MooncakeTrace
from baton.loadtool.datasets.synthetic import SyntheticPrompts, SyntheticShape
from baton.loadtool.errors import SettingError
from baton.loadtool.lengths import Lengths
from baton.loadtool.vocabulary import token_range
from benchmarks.disaggregation.mixed_prompts import MixedPrompts

DATA = Path(__file__).parents[1] / "data"
PROMPT_TOKENS = token_range(300, 3299)  # neither special nor single bytes
MAX_INPUT, MAX_OUTPUT = 3500, 500  # together within the model's context of 4,096
MOONCAKE_SCALE = 1 / 16  # a hash id of the trace is then 32 tokens, two whole blocks
AZURE_SCALE = 1 / 2
LONG_PROMPTS = SyntheticShape(input_len=1500, output_len=8, range_ratio=0.25)
LONG_ANSWERS = SyntheticShape(input_len=64, output_len=192, range_ratio=0.25)
# A completion sees the top of its file, which other completions in that file share, and the text around the cursor.
COMPLETIONS = SyntheticShape(input_len=640, output_len=16, range_ratio=0.75, prefix_len=512, num_prefixes=16)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests and their arrival times."""

    name: str
    dataset: Dataset

    def arrivals(self, rate_per_s: float, seconds: float) -> TraceTimes | RequestRate:
        """Return arrivals with this mean rate: the trace's times rescaled, or Poisson if it has none.

        Raises SettingError if the trace has too few requests.
        """
        if not self.dataset.has_times:
            return RequestRate(rate_per_s)
        count = max(1, round(rate_per_s * seconds))
        after = next(islice(self.dataset.requests(seed=0), count, None), None)
        if after is None or not after.due_s:
            raise SettingError(f"{self.name} has no {count} requests for a run of {seconds:g} s: take another length")
        return TraceTimes(seconds / after.due_s)


def make_traces() -> list[Trace]:
    """Return the traces: long shared prompts, chats, a mix of both extremes, and code completions."""
    mooncake, azure = (Lengths(scale, MAX_INPUT, MAX_OUTPUT) for scale in (MOONCAKE_SCALE, AZURE_SCALE))
    return [
        Trace("mooncake", MooncakeTrace(DATA / "mooncake_conversation.csv", PROMPT_TOKENS, mooncake)),
        Trace("azure", AzureTrace(DATA / "azure_conv.csv", PROMPT_TOKENS, azure)),
        Trace("mixed", MixedPrompts((LONG_PROMPTS, LONG_ANSWERS), PROMPT_TOKENS)),
        Trace("completions", SyntheticPrompts(COMPLETIONS, PROMPT_TOKENS, Lengths())),
    ]
