"""How long answers are, told by those that still run as well as by those that ended."""

from math import inf

from baton.deployment.autoscaling.moments import Moments

FIRST_GUESS = 256.0  # tokens, as routers guess too


def answer_moments(ended: Moments, num_ended: int, num_generated: float | None, most: float = inf) -> Moments:
    """The moments of answers' lengths; `most`: the mean of what was asked for at most.

    Those that ended are too short on the average wherever not all have had the time to: in the first minute, and when
    answers become longer. Of the tokens that were generated in a window, one was the last of each answer that ended in
    it. So tokens over ends are the mean length: of exponential answers from the first one on (the estimate for censored
    lifetimes of Epstein and Sobel, Life testing, 1953), of any answers once as many end as begin. Until one has ended
    the next token may be an end, but of a length that nothing is known of. None: tokens were not counted.
    """
    if num_generated is None or (num_ended and not num_generated):
        return ended
    mean = min(num_generated / num_ended if num_ended else max(FIRST_GUESS, num_generated), most)
    if ended.mean <= 0:
        return Moments(mean, 2 * mean * mean)
    return Moments(mean, ended.second * (mean / ended.mean) ** 2)  # as different from each other as those that ended
