"""What a worker or a request may be called: its name stands in logs, headers and metrics."""

import re

NAME = re.compile(r"[\x21-\x7e]{1,128}")
NAME_RULE = "1 to 128 visible ASCII characters"


def is_name(text: str) -> bool:
    """Whether it may be a name."""
    return NAME.fullmatch(text) is not None
