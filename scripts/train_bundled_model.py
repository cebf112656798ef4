"""Trains Baton's bundled model on the documentation strings of Python's standard library.

    python scripts/train_bundled_model.py [--output baton/bundled_model] [--seed 0]

Takes a quarter of an hour on one CPU core; the weights on disk are brought up to date as it goes.
"""

import argparse
import json
import random
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from bundled_model.checkpoint import build_model, save_checkpoint
from bundled_model.conversations import WELL_KNOWN_MODULES
from bundled_model.docstrings import collect_documented
from bundled_model.tokenizer import train_tokenizer
from bundled_model.trainer import Progress, Trainer, TrainingPlan
from bundled_model.windows import Corpus, Stream, conversation_texts, plain_text

VOCAB_SIZE = 4096
MAX_LENGTH = 4096


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("baton/bundled_model"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(arguments.output, arguments.seed)


def train(output: Path, seed: int) -> None:
    """The whole of it: text, tokenizer, model, training, model card."""
    items = collect_documented()
    trained = [item for item in items if not item.is_held_out]
    core = [item for item in trained if item.module in WELL_KNOWN_MODULES]
    others = [item for item in trained if item.module not in WELL_KNOWN_MODULES]
    pages = [plain_text(item) for item in trained]
    streams = [
        Stream(partial(conversation_texts, core, 0.3), share=0.60, restart=True),
        Stream(partial(conversation_texts, others, 0.0), share=0.20, restart=True),
        Stream(lambda _: pages, share=0.20, restart=False),
    ]
    texts = [text for stream in streams for text in stream.draw(random.Random(seed))]
    tokenizer = train_tokenizer(texts, VOCAB_SIZE, MAX_LENGTH)
    corpus = Corpus(streams, tokenizer)
    held_out = corpus.encode([plain_text(item) for item in items if item.is_held_out])
    torch.manual_seed(seed)
    model = build_model(tokenizer, VOCAB_SIZE, MAX_LENGTH)
    trainer = Trainer(model, corpus, held_out, TrainingPlan(), seed)
    print(f"{len(trained)} documented things, {model.num_parameters()} parameters", flush=True)

    def report(progress: Progress) -> None:
        print(json.dumps(asdict(progress)), file=sys.stderr, flush=True)
        save_checkpoint(model, tokenizer, output)

    trainer.run(report)


if __name__ == "__main__":
    main()
