"""Speculative decoding of an engine's requests: a step verifies drafted tokens next to the one that it computes.

1. After a step's work is chosen, drafts extend the requests that lack one token, as far as the token budget, free
   blocks and the price of a step allow. They preempt no request.
2. The model's logits at each drafted token give the token that would have been sampled there. Drafts are accepted as
   long as they equal it, so the output does not depend on them.
3. Accepted tokens are computed like any others. The KV of the rest is overwritten by the tokens that follow instead;
   until then no other request and no peer reads it, since it is in no full block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from weakref import WeakKeyDictionary

from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepRates
from baton.engine.speculation.acceptance import Acceptance
from baton.engine.speculation.base import Drafter
from baton.engine.speculation.config import SpeculationConfig
from baton.engine.speculation.draft_costs import DraftCosts
from baton.engine.speculation.figures import SpeculationCounters
from baton.engine.speculation.ngram import NGramDrafter
from baton.engine.speculation.price import Candidate, StepCost, draft_lengths
from baton.engine.speculation.probe_budget import ProbeBudget


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that a drafter proposes for a request of a step."""

    place: int  # of the request among those of the step
    token_ids: Sequence[int]
    acceptance: Acceptance


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The proposals for a step, and how many tokens of each to verify."""

    proposals: Sequence[Proposal]
    lengths: Sequence[int]
    num_probes: int
    cost: StepCost


class Speculator:
    """The drafts of an engine's requests: how many tokens a step verifies, and how many were right."""

    def __init__(
        self,
        max_tokens: int,
        drafter: Drafter,
        blocks: BlockManager,
        finish_rule: FinishRule,
        rates: Callable[[], StepRates],
        may_draft: Callable[[Request], bool] = lambda _: True,
        num_elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        """max_tokens: of a draft. rates: returns those of steps without drafts. may_draft: whether the grammar of a
        request, if it has one, can mask drafted tokens. num_elsewhere: tokens of other ranks that take part in a step.
        """
        self.counters = SpeculationCounters()
        self._max_tokens = max_tokens
        self._drafter = drafter
        self._blocks = blocks
        self._finish_rule = finish_rule
        self._rates = rates
        self._may_draft = may_draft
        self._num_elsewhere = num_elsewhere
        self._costs = DraftCosts()
        self._probes = ProbeBudget()
        self._acceptances: WeakKeyDictionary[Request, Acceptance] = WeakKeyDictionary()
        # First drafted tokens for which the next step was held up, and their places.
        self._guesses: WeakKeyDictionary[Request, tuple[int, int]] = WeakKeyDictionary()

    def add_drafts(self, items: list[ScheduledRequest], most: int) -> None:
        """Extend requests of a step by drafts, `most` tokens in all, in place."""
        self._check_guesses()
        num_sequences = sum(item.samples for item in items)
        decodes = {place: item.request for place, item in enumerate(items) if item.samples and item.num_new_tokens == 1}
        plan = self._plan(decodes, num_sequences, most)
        self._note_plan(plan)
        for proposal, length in zip(plan.proposals, plan.lengths, strict=True):
            item = items[proposal.place]
            if length and self._blocks.grow(item.request, num_unknown=length):
                items[proposal.place] = item.with_drafts(proposal.token_ids[:length])

    def holds_up(self, in_flight: Sequence[ScheduledRequest]) -> bool:
        """Return whether the next step must not be launched before the tokens of the one in flight are known.

        That is if some of them are drafted, or if drafts would be worth it for the tokens known so far.
        """
        if any(item.drafts for item in in_flight):
            return True
        requests = {place: item.request for place, item in enumerate(in_flight)}
        plan = self._plan(requests, len(requests), self._max_tokens)
        if any(plan.lengths):
            self._probes.spend(plan.num_probes, plan.cost)
            for proposal, length in zip(plan.proposals, plan.lengths, strict=True):
                if length:
                    request = requests[proposal.place]
                    self._guesses[request] = request.num_tokens, proposal.token_ids[0]
            return True
        self._note_plan(plan)  # otherwise `add_drafts` does
        return False

    def note(self, item: ScheduledRequest, num_accepted: int | None) -> None:
        """Note how many of a request's drafted tokens were right, after it got its new tokens; None: it got none, since
        the mask of its grammar was late.

        Releases the blocks of the others.
        """
        self._blocks.trim(item.request)
        if num_accepted is None:
            return
        self.counters.note(len(item.drafts), num_accepted)
        if (acceptance := self._acceptances.get(item.request)) is not None:
            acceptance.note(len(item.drafts), num_accepted)

    def note_step(self, num_sequences: int, num_drafted: int, step_s: float) -> None:
        """Note the time of a step that had no work but sequences that decode, with `num_drafted` drafted tokens."""
        rates = self._rates()
        self._costs.add(num_drafted, step_s, _plain_s(rates, num_sequences))

    def _check_guesses(self) -> None:
        """Note which guesses were right. If one was wrong, its request may have no proposal now; but it cost time."""
        for request, (place, token_id) in self._guesses.items():
            if request.num_tokens > place:
                self._acceptances[request].note(1, int(request.token_ids[place] == token_id))
        self._guesses.clear()

    def _plan(self, requests: dict[int, Request], num_sequences: int, most: int) -> DraftPlan:
        """Return the drafts for a step's requests, by place, `most` tokens in all."""
        self._drafter.begin_step()
        proposals = [found for place, request in requests.items() if (found := self._propose(place, request))]
        if not proposals:
            return DraftPlan((), (), 0, StepCost(0.0, 0.0, 0.0))
        rates = self._rates()
        cost = self._costs.of(_plain_s(rates, num_sequences), rates.decode_sequence_s)
        due = [place for place, each in enumerate(proposals) if each.acceptance.is_probe_due]
        probed = due[: self._probes.affordable(len(due), cost)]
        candidates = [
            Candidate(len(each.token_ids), each.acceptance.rate, int(place in probed))
            for place, each in enumerate(proposals)
        ]
        num_delayed = num_sequences + self._num_elsewhere()
        lengths = draft_lengths(candidates, num_delayed, cost, min(most, self._costs.most_drafts))
        return DraftPlan(proposals, lengths, len(probed), cost)

    def _note_plan(self, plan: DraftPlan) -> None:
        """Note the proposals that a step leaves out, and the time that it takes for probes."""
        if not plan.proposals:
            return
        self._probes.earn(plan.cost)
        self._probes.spend(plan.num_probes, plan.cost)
        for each, length in zip(plan.proposals, plan.lengths, strict=True):
            if not length:
                each.acceptance.leave_out()
        if not any(plan.lengths):
            self._costs.leave_out()

    def _propose(self, place: int, request: Request) -> Proposal | None:
        """Return the proposal for a request; None if there is none.

        Drafted tokens are not the last of an output, so that the request ends with a token that is sampled.
        """
        limit = min(self._max_tokens, self._finish_rule.num_left(request) - 1)
        if limit <= 0 or request.keep_blocks or not self._may_draft(request):  # a peer may read all of kept blocks
            return None
        proposed = self._drafter.propose(request, limit)
        token_ids = list(takewhile(lambda token_id: not self._finish_rule.is_end(request, token_id), proposed))
        if not token_ids:
            return None
        acceptance = self._acceptances.get(request)
        if acceptance is None:
            acceptance = self._acceptances[request] = Acceptance()
        return Proposal(place, token_ids, acceptance)


def speculator_of(
    config: EngineConfig,
    blocks: BlockManager,
    finish_rule: FinishRule,
    rates: Callable[[], StepRates],
    may_draft: Callable[[Request], bool],
    num_elsewhere: Callable[[], int],
) -> Speculator | None:
    """Return the speculator that an engine's options ask for; None: its requests have no drafts."""
    options = SpeculationConfig.parse(config.speculative_config)
    if options is None:
        return None
    drafter = NGramDrafter(options.prompt_lookup_min, options.prompt_lookup_max)
    return Speculator(options.num_speculative_tokens, drafter, blocks, finish_rule, rates, may_draft, num_elsewhere)


def _plain_s(rates: StepRates, num_sequences: int) -> float:
    """Return the time of a step in which sequences decode one token each; 0: not known yet."""
    if not rates.decode_step_s:
        return 0.0
    return rates.decode_step_s + (num_sequences - 1) * rates.decode_sequence_s
