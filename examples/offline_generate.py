"""Complete a list of prompts without a server: offline_generate.py [MODEL]. Default: the bundled model."""

import sys

from baton import LLM, SamplingParams

PROMPTS = ["A list in Python is", "The json module", "To open a file,"]

with LLM(*sys.argv[1:2], num_prefill=1, num_decode=1) as llm:
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95, max_tokens=32))
for output in outputs:
    print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
