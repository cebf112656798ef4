"""The rate limit of log records of one kind, and the count of dropped ones."""

import io
import logging

from baton.process.logs import BURST, MAX_KINDS, LogLimit


class Log:
    """A logger with a rate limit and a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.limit = LogLimit(lambda: self.now_s)
        self._text = io.StringIO()
        handler = logging.StreamHandler(self._text)
        handler.addFilter(self.limit)
        self.logger = logging.Logger("test")
        self.logger.addHandler(handler)

    def lines(self) -> list[str]:
        lines = self._text.getvalue().splitlines()
        self._text.seek(0)
        self._text.truncate()
        return lines


def test_dropped_records_are_counted() -> None:
    log = Log()
    for number in range(500):
        log.logger.warning("%d is wrong", number)
    assert log.lines() == [f"{number} is wrong" for number in range(BURST)]
    log.now_s += 1.0
    for _ in range(5):
        log.logger.warning("%d is wrong", 500)
    assert log.lines() == [f"500 is wrong (and {500 - BURST} more)"]
    log.now_s += 1000.0
    for _ in range(BURST + 1):
        log.logger.warning("%d is wrong", 501)
    assert log.lines() == ["501 is wrong (and 4 more)", *["501 is wrong"] * (BURST - 1)]


def test_records_of_other_kinds_and_levels_are_written() -> None:
    log = Log()
    for _ in range(100):
        log.logger.error("a")
    log.lines()
    log.logger.warning("b")
    for _ in range(100):
        log.logger.info("c")
    assert log.lines() == ["b", *["c"] * 100]


def test_the_number_of_kinds_is_bounded() -> None:
    log = Log()
    for number in range(3 * MAX_KINDS):
        log.logger.warning(f"made of {number}")  # as a library may do
    assert len(log.lines()) == 3 * MAX_KINDS
    assert len(log.limit._kinds) == MAX_KINDS
