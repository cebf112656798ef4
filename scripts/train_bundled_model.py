"""Training of Baton's bundled model on the docstrings of Python's standard library, and on calls of made-up tools.

    python scripts/train_bundled_model.py [--output baton/bundled_model] [--seed 0]

Takes about half an hour on one CPU core; the weights on disk are brought up to date as it goes. At the end the
model is measured, and its card written.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from bundled_model.card import QUESTIONS, write_card
from bundled_model.checkpoint import build_model, save_checkpoint
from bundled_model.evaluation import evaluate
from bundled_model.text import collect_text
from bundled_model.tokenizer import train_tokenizer
from bundled_model.trainer import Progress, Trainer, TrainingPlan
from bundled_model.windows import Corpus

VOCAB_SIZE = 4096
MAX_LENGTH = 4096


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("baton/bundled_model"))
    parser.add_argument("--held-out", type=Path, help="JSON file to write pages to that were not trained on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(arguments.output, arguments.held_out, arguments.seed)


def train(output: Path, held_out: Path | None, seed: int) -> None:
    """Run all steps: text, tokenizer, model, training, evaluation, model card."""
    text = collect_text()
    tokenizer = train_tokenizer(text.one_pass(seed), VOCAB_SIZE, MAX_LENGTH)
    corpus = Corpus(text.streams, tokenizer)
    torch.manual_seed(seed)
    model = build_model(tokenizer, VOCAB_SIZE, MAX_LENGTH)
    print(f"{model.num_parameters():,} parameters", file=sys.stderr, flush=True)

    def report(progress: Progress) -> None:
        print(json.dumps(asdict(progress)), file=sys.stderr, flush=True)
        save_checkpoint(model, tokenizer, output)

    plan = TrainingPlan()
    trainer = Trainer(model, corpus, corpus.encode(text.held_out_pages), plan, seed)
    trainer.run(report)
    evaluation = evaluate(model, tokenizer, text, QUESTIONS, seed)
    write_card(output, evaluation, trainer.curve, plan, model)
    if held_out:
        held_out.write_text(json.dumps(text.held_out_pages, indent=1) + "\n")


if __name__ == "__main__":
    main()
