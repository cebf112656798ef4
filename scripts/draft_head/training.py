"""Training of a head of EAGLE-3 to predict as its model does, several tokens ahead."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor
from transformers import PreTrainedModel

from draft_head.network import Head


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Steps, learning rate, and tokens that are drafted from each position."""

    num_steps: int
    depth: int = 3
    peak_learning_rate: float = 2e-3
    warmup_steps: int = 10
    decay: float = 0.8  # of the loss's weight with each token ahead
    report_every: int = 10

    def learning_rate(self, step: int) -> float:
        """Return the learning rate: linear warmup, then half a cosine."""
        if step < self.warmup_steps:
            return self.peak_learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps)
        return self.peak_learning_rate * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of the loss curve."""

    step: int
    loss: float
    accepted: tuple[float, ...]  # share of positions at which the head's most probable token is the model's, by depth


@dataclass(frozen=True, slots=True)
class HeadTrainer:
    """Trainer of a head in place. The model stays as it is."""

    model: PreTrainedModel
    head: Head
    layers: tuple[int, ...]  # of the model, whose inputs the head reads
    token_ids: Tensor  # [draft_vocab_size], the tokens that it drafts
    plan: TrainingPlan

    def run(self, batches: Iterator[Tensor], report: Callable[[Progress], None]) -> None:
        """Train on batches of tokens, [num_windows, window]."""
        optimizer = torch.optim.AdamW(self.head.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
        for step in range(self.plan.num_steps):
            for group in optimizer.param_groups:
                group["lr"] = self.plan.learning_rate(step)
            loss, accepted = self.loss(next(batches))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
            optimizer.step()
            if step % self.plan.report_every == 0 or step == self.plan.num_steps - 1:
                report(Progress(step, float(loss), tuple(round(each, 3) for each in accepted)))

    def loss(self, tokens: Tensor) -> tuple[Tensor, list[float]]:
        """Return the cross entropy between the model's distributions and the head's, and how often they agree.

        Row `i` has token `i + 1` and the hidden state of token `i`, and predicts token `i + 2`. Each further depth
        moves the head's own hidden states up by a row, as when it drafts.
        """
        with torch.no_grad():
            output = self.model(tokens, output_hidden_states=True)
            wanted = output.logits[:, 1:]
            best, probabilities = wanted.argmax(-1), wanted[..., self.token_ids].softmax(-1)
            embeddings = self.model.get_input_embeddings()(tokens[:, 1:])
            given = torch.cat([output.hidden_states[layer] for layer in self.layers], dim=-1)[:, :-1]
        states = self.head.fc(given)
        loss, weight, accepted = torch.zeros(()), 1.0, []
        for depth in range(self.plan.depth):
            logits, states = self.head(embeddings[:, depth:], states)
            log_shares = F.log_softmax(logits, dim=-1)
            loss = loss - weight * (probabilities[:, depth:] * log_shares).sum(-1).mean()
            drafted = self.token_ids[logits.argmax(-1)]
            accepted.append(float((drafted == best[:, depth:]).float().mean()))
            weight *= self.plan.decay
            states = states[:, :-1]
        return loss, accepted
