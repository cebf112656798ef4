"""Complete a file of prompts: batch_file.py IN.jsonl OUT.jsonl [MODEL].

A line of the input is {"prompt": "..."} or {"messages": [...]}, with parameters of SamplingParams next to it, such as
"max_tokens". The output has the same lines in the same order, each with "output" and "finish_reason". Lines are read
and written in groups, so a file may be larger than memory.
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from baton import LLM, RequestOutput, SamplingParams

GROUP = 10_000  # lines in memory at once
PROMPTS = {"prompt", "messages"}

Line = dict[str, Any]


def groups(path: str) -> Iterator[list[Line]]:
    """Yield the lines of a file, a group at a time."""
    with Path(path).open(encoding="utf-8") as file:
        while lines := [json.loads(line) for line in islice(file, GROUP)]:
            yield lines


def complete(llm: LLM, lines: list[Line]) -> list[RequestOutput]:
    """Return the output of each line. Prompts are generated all at once, and so are conversations."""
    params = [SamplingParams(**{name: line[name] for name in line.keys() - PROMPTS}) for line in lines]
    outputs: dict[int, RequestOutput] = {}
    for key, call in (("prompt", llm.generate), ("messages", llm.chat)):
        places = [place for place, line in enumerate(lines) if key in line]
        found = call([lines[place][key] for place in places], [params[place] for place in places])
        outputs |= dict(zip(places, found, strict=True))
    return [outputs[place] for place in range(len(lines))]


def main(source: str, target: str, *model: str) -> None:
    """Complete all lines."""
    with LLM(*model) as llm, Path(target).open("w", encoding="utf-8") as written:
        for lines in groups(source):
            for line, output in zip(lines, complete(llm, lines), strict=True):
                [completion] = output.outputs[:1]
                result = {**line, "output": completion.text, "finish_reason": completion.finish_reason}
                written.write(json.dumps(result, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
