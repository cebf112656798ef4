"""What a worker or a request may be called: its name stands in logs, headers and metrics."""

import re

MAX_NAME_CHARS = 128
NAME = re.compile(rf"[\x21-\x7e]{{1,{MAX_NAME_CHARS}}}")
NAME_RULE = f"1 to {MAX_NAME_CHARS} visible ASCII characters"


def is_name(text: str) -> bool:
    """Whether it may be a name."""
    return NAME.fullmatch(text) is not None
