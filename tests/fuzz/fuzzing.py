"""Runs of a check with random inputs: few deterministic ones, or new ones until the time is up."""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

ROUND = 200  # inputs between two checks of the clock


@dataclass(frozen=True)
class Fuzzing:
    """The duration of a fuzzer."""

    seconds: float | None  # None: the short form

    def run(self, inputs: SearchStrategy[T], check: Callable[[T], None], num_short: int) -> int:
        """Call `check` with random inputs, `num_short` of them in the short form. Return the number of calls."""
        return self.run_all([(inputs, check)], num_short)

    def run_all(self, checks: Iterable[tuple[SearchStrategy[T], Callable[[T], None]]], num_short: int) -> int:
        """Run several checks in turn, each with `num_short` inputs in the short form. Return the number of calls."""
        counts = [0]

        def once(inputs: SearchStrategy[T], check: Callable[[T], None], number: int, count: int) -> None:
            def counted(value: T) -> None:
                counts[0] += 1
                check(value)

            bound = settings(
                max_examples=count,
                derandomize=self.seconds is None,
                database=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            )
            test = bound(given(inputs)(counted))
            (test if self.seconds is None else seed(number)(test))()

        kinds = list(checks)
        if self.seconds is None:
            for inputs, check in kinds:
                once(inputs, check, 0, num_short)
            return counts[0]
        end_s = time.monotonic() + self.seconds
        number = random.SystemRandom().getrandbits(32)
        while time.monotonic() < end_s:
            for inputs, check in kinds:
                once(inputs, check, number, ROUND)
            number += 1
        print(f"{counts[0]} inputs")
        return counts[0]
