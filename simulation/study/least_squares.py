"""Non-negative least squares for equations of measured times."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

NUM_TERMS = 9
NUM_WEIGHINGS = 20
LARGE_ERROR = 0.2  # relative; larger errors have causes outside of the model
LEAST_S = 1e-5  # shorter times are below the clocks' precision


@dataclass(frozen=True, slots=True)
class Equation:
    """A measured time as a sum of terms with known coefficients."""

    coefficients: tuple[float, float, float, float, float, float, float, float, float]
    seconds: float


def solve(equations: Sequence[Equation]) -> list[float]:
    """Return the terms that minimise the squared relative errors.

    With errors relative to the measured times, the few very long times would count for little, and all predictions
    would be too short. Errors are therefore relative to the geometric mean of the measured time and the prediction of
    the previous iteration; they are then nearly errors of logarithms. Errors above `LARGE_ERROR` count linearly instead
    of quadratically (Huber, 1964): a request that was delayed by something else took several times as long, and would
    otherwise distort the times of the prompts that arrive alone, which are few and short.
    """
    coefficients, measured_s = np.array([each.coefficients for each in equations]), _seconds(equations)
    weights = 1 / measured_s
    for _ in range(NUM_WEIGHINGS):
        solution = _solve_weighted(coefficients * weights[:, None], measured_s * weights)
        predicted_s = np.maximum(coefficients @ np.array(solution), LEAST_S)
        weights = 1 / np.sqrt(measured_s * predicted_s)
        errors = np.abs(predicted_s - measured_s) * weights
        weights *= np.sqrt(LARGE_ERROR / np.maximum(errors, LARGE_ERROR))
    return solution


def _seconds(equations: Sequence[Equation]) -> NDArray[np.float64]:
    return np.array([each.seconds for each in equations])


def _solve_weighted(rows: NDArray[np.float64], targets: NDArray[np.float64]) -> list[float]:
    """Return a solution without negative terms: the most negative one is set to 0 until there is none."""
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
    """Return the solution; columns are scaled first, since some are thousands of tokens and others single steps."""
    scale = np.abs(rows).max(axis=0)
    values, *_ = np.linalg.lstsq(rows / scale, targets, rcond=None)
    solved: NDArray[np.float64] = values / scale
    return solved


def median_error(equations: Sequence[Equation], terms: Sequence[float]) -> float:
    """Return the median relative error of the equations with these terms; 0 without equations."""
    if not equations:
        return 0.0
    predicted = [sum(a * b for a, b in zip(each.coefficients, terms, strict=True)) for each in equations]
    return median(abs(seconds / each.seconds - 1) for seconds, each in zip(predicted, equations, strict=True))
