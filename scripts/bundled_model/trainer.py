"""Training loop. The model is trained in bfloat16, the dtype of its checkpoint."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3MoeForCausalLM

from bundled_model.optimizer import Optimizer
from bundled_model.tokenizer import START_OF_TURN
from bundled_model.windows import Corpus

IGNORED = -100  # target of tokens that the model does not learn to write


@dataclass(frozen=True, slots=True)
class Stage:
    """Training steps with one batch size and window length."""

    num_steps: int
    window: int
    num_windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Stages and learning rate. Long windows come last, because short ones train faster."""

    stages: tuple[Stage, ...] = (Stage(1300, 512, 4), Stage(550, 1024, 2), Stage(80, 4096, 1))
    peak_learning_rate: float = 4e-3
    final_share: float = 0.03  # of the peak, at the last step
    warmup_steps: int = 60
    clip_norm: float = 1.0
    balance_weight: float = 0.03  # of the load-balancing loss
    report_every: int = 100

    @property
    def num_steps(self) -> int:
        """Total steps of all stages."""
        return sum(stage.num_steps for stage in self.stages)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate: linear warmup, then half a cosine."""
        if step < self.warmup_steps:
            return self.peak_learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return self.peak_learning_rate * (self.final_share + (1 - self.final_share) * cosine)


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of the loss curve; losses are in nats per token."""

    step: int
    num_tokens: int
    train_loss: float  # mean since the last line
    held_out_loss: float
    cpu_s: float  # CPU time of this process


@dataclass(slots=True)
class Trainer:
    """Trainer of a model in place, by a plan."""

    model: Qwen3MoeForCausalLM
    corpus: Corpus
    held_out: Sequence[Sequence[int]]
    plan: TrainingPlan
    seed: int
    curve: list[Progress] = field(default_factory=list)

    @property
    def start_id(self) -> int:
        """Token with which a turn begins."""
        return int(self.corpus.tokenizer.convert_tokens_to_ids(START_OF_TURN))

    @property
    def system_id(self) -> int:
        """Role of the turns that describe tools: the model reads them, and need not write any."""
        return int(self.corpus.tokenizer.convert_tokens_to_ids("system"))

    @property
    def top_k(self) -> int:
        """Active experts per token."""
        return int(self.model.config.num_experts_per_tok)

    def run(self, report: Callable[[Progress], None]) -> None:
        """Train through all stages; `report` is called for each line of the loss curve."""
        optimizer = Optimizer(self.model, self.plan.clip_norm)
        started_s, losses, num_tokens = time.process_time(), [], 0
        for step, batch in enumerate(self._batches()):
            losses.append(self._backward(batch))
            num_tokens += batch.numel()
            optimizer.step(self.plan.learning_rate(step))
            if (step + 1) % self.plan.report_every == 0 or step + 1 == self.plan.num_steps:
                cpu_s = time.process_time() - started_s
                held_out_loss = mean_loss(self.model, self.held_out)
                self.curve.append(Progress(step + 1, num_tokens, sum(losses) / len(losses), held_out_loss, cpu_s))
                losses = []
                report(self.curve[-1])

    def _batches(self) -> Iterator[Tensor]:
        rng = random.Random(self.seed)
        for stage in self.plan.stages:
            yield from islice(self.corpus.batches(stage.num_windows, stage.window, rng), stage.num_steps)

    def _backward(self, batch: Tensor) -> float:
        output = self.model(input_ids=batch, output_router_logits=True, use_cache=False)
        logits = output.logits[:, :-1].float()
        targets = batch.masked_fill(in_turns_of(batch, self.start_id, self.system_id), IGNORED)[:, 1:]
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        balance = torch.stack([load_balance(router_logits, self.top_k) for router_logits in output.router_logits])
        (loss + self.plan.balance_weight * balance.mean()).backward()
        return float(loss.detach())


def in_turns_of(batch: Tensor, start_id: int, role_id: int) -> Tensor:
    """Return which tokens are in a turn of a role, [num_windows, window] bool."""
    starts = batch == start_id
    are_of_role = starts & (batch.roll(-1, 1) == role_id)
    places = torch.arange(batch.shape[1]).expand_as(batch)
    last_start = torch.where(starts, places, -1).cummax(1).values
    return are_of_role.gather(1, last_start.clamp(min=0)) & (last_start >= 0)


def load_balance(router_logits: Tensor, top_k: int) -> Tensor:
    """Return the load-balancing loss, 1 if uniform (Fedus et al. 2021, Switch Transformers, section 2.2).

    router_logits: [num_tokens, num_experts]. Computed per layer, so that layers cannot compensate for each other.
    """
    num_experts = router_logits.shape[1]
    probabilities = router_logits.float().softmax(-1)
    chosen = probabilities.topk(top_k).indices.flatten()
    shares = torch.bincount(chosen, minlength=num_experts) / len(chosen)
    return num_experts * (shares * probabilities.mean(0)).sum()


@torch.no_grad()
def mean_loss(model: Qwen3MoeForCausalLM, documents: Sequence[Sequence[int]], longest: int = 512) -> float:
    """Return the loss in nats per token over separate documents; a document's first token is not predicted."""
    total, count = 0.0, 0
    for start in range(0, len(documents), 16):
        rows = [torch.tensor(document[:longest]) for document in documents[start : start + 16]]
        inputs = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)[:, 1:]
        logits = model(input_ids=inputs, use_cache=False).logits[:, :-1].float()
        total += float(functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        count += int((labels != -100).sum())
    return total / count
