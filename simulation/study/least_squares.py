"""Non-negative least squares for equations that say how long something took."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

NUM_TERMS = 9
NUM_WEIGHINGS = 20
LARGE_ERROR = 0.2  # more is not of the model: something else held the request up
LEAST_S = 1e-5  # a shorter time says nothing but how exact clocks are


@dataclass(frozen=True, slots=True)
class Equation:
    """What the terms times their coefficients should give."""

    coefficients: tuple[float, float, float, float, float, float, float, float, float]
    seconds: float


def solve(equations: Sequence[Equation]) -> list[float]:
    """The least-squares solution for errors that are relative to what was measured and what is said alike.

    Relative to what was measured alone, the few that took very long would count for little, and all would come out too
    short. So each is weighed by the root of the product with what was said the time before (the errors are then nearly
    those of logarithms). Large errors count by their size instead of its square (Huber, 1964): a request that was held
    up took several times as long, none takes less than nothing, and the prompts that come alone, which are few and
    short, would be told to take what those took.
    """
    coefficients, measured_s = np.array([each.coefficients for each in equations]), _seconds(equations)
    weights = 1 / measured_s
    for _ in range(NUM_WEIGHINGS):
        solution = _solve_weighed(coefficients * weights[:, None], measured_s * weights)
        said_s = np.maximum(coefficients @ np.array(solution), LEAST_S)
        weights = 1 / np.sqrt(measured_s * said_s)
        errors = np.abs(said_s - measured_s) * weights
        weights *= np.sqrt(LARGE_ERROR / np.maximum(errors, LARGE_ERROR))
    return solution


def _seconds(equations: Sequence[Equation]) -> NDArray[np.float64]:
    return np.array([each.seconds for each in equations])


def _solve_weighed(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> list[float]:
    """The solution without negative terms: the most negative one is left out until there is none."""
    kept = [term for term in range(NUM_TERMS) if rows[:, term].any()]
    solution = [0.0] * NUM_TERMS
    while kept:
        values = _least_squares(rows[:, kept], targets)
        lowest = int(values.argmin())
        if values[lowest] >= 0:
            for term, value in zip(kept, values.tolist(), strict=True):
                solution[term] = value
            break
        del kept[lowest]
    return solution


def _least_squares(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """The columns are brought to one scale first: tokens are thousands, steps are one."""
    scale = np.abs(rows).max(axis=0)
    values, *_ = np.linalg.lstsq(rows / scale, targets, rcond=None)
    solved: NDArray[np.float64] = values / scale
    return solved


def median_error(equations: Sequence[Equation], terms: Sequence[float]) -> float:
    """The median of the relative errors."""
    if not equations:
        return 0.0
    told = [sum(a * b for a, b in zip(each.coefficients, terms, strict=True)) for each in equations]
    return median(abs(said_s / each.seconds - 1) for said_s, each in zip(told, equations, strict=True))
