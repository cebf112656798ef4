from collections.abc import Callable, Sequence

class CompiledWords:
    def __init__(
        self, cl100k: bool, max_digits: int, classify: Callable[[str], int], learn: Callable[[str], Sequence[int]]
    ) -> None: ...
    def encode(self, text: str, start: int, max_words: int) -> tuple[list[int], int]: ...
