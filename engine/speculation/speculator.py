"""Speculative decoding of an engine's requests: a step verifies drafted tokens next to the one that it computes.

1. After a step's work is chosen, drafts extend the requests that lack one token, as far as the token budget, free
   blocks and the price of a step allow. They preempt no request.
2. The model's logits at each drafted token give the token that would have been sampled there. Drafts are accepted as
   long as they equal it, so the output does not depend on them.
3. Accepted tokens are computed like any others. The KV of the rest is overwritten by the tokens that follow instead;
   until then no other request and no peer reads it, since it is in no full block.
"""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request, RequestStatus
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepRates
from baton.engine.speculation.acceptance import Acceptance
from baton.engine.speculation.base import Drafter
from baton.engine.speculation.draft_costs import DraftCosts
from baton.engine.speculation.draft_plan import DraftPlan, Prices, Proposal
from baton.engine.speculation.figures import SpeculationCounters
from baton.engine.speculation.preparation_budget import PreparationBudget
from baton.engine.speculation.probe_budget import ProbeBudget
from baton.engine.speculation.rest import Rest


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
        acceptance: Acceptance | None = None,
    ) -> None:
        """max_tokens: of a draft. rates: returns those of steps without drafts. may_draft: whether the grammar of a
        request, if it has one, can mask drafted tokens. num_elsewhere: tokens of other ranks that take part in a step.
        acceptance: of the drafts of all requests, with which others begin; None: they have nothing in common. If they
        have, the drafter rests while drafts do not pay.
        """
        self.counters = SpeculationCounters()
        self.drafter_s = 0.0  # time that the drafter took before the last step
        self._max_tokens = max_tokens
        self._drafter = drafter
        self._blocks = blocks
        self._finish_rule = finish_rule
        self._rates = rates
        self._may_draft = may_draft
        self._num_elsewhere = num_elsewhere
        self._costs = DraftCosts()
        self._probes = ProbeBudget()
        self._preparations = PreparationBudget()
        self._of_all = acceptance
        self._rest = Rest() if acceptance is not None else None
        self._acceptances: WeakKeyDictionary[Request, Acceptance] = WeakKeyDictionary()
        self._drafting_s = 0.0  # the part of it for the drafts of that step
        self._num_accepted = 0  # drafted tokens of that step
        # Places and first drafted tokens that cost time without being verified: of drafts for which the next step was
        # held up, and of those that are empty since the drafter expects an end (None).
        self._guesses: WeakKeyDictionary[Request, tuple[int, int | None]] = WeakKeyDictionary()

    def add_drafts(self, items: list[ScheduledRequest], most: int) -> None:
        """Extend requests of a step by drafts, `most` tokens in all, in place."""
        self._check_guesses()
        self._num_accepted = 0
        num_sequences = sum(item.samples for item in items)
        if self._rests(items, num_sequences):
            return
        decodes = {place: item.request for place, item in enumerate(items) if item.samples and item.num_new_tokens == 1}
        plan = self._plan(decodes, num_sequences, most)
        self._note_plan(plan, num_sequences)
        drafts = self._draft(plan)
        for proposal, length in zip(plan.proposals, plan.lengths, strict=True):
            request = proposal.request
            draft = list(drafts.get(request, ())[:length])
            if length and request in drafts and not draft:
                self._guesses[request] = request.num_tokens, None
            if draft and self._blocks.grow(request, num_unknown=len(draft)):
                items[proposal.place] = items[proposal.place].with_drafts(draft)

    def holds_up(self, in_flight: Sequence[ScheduledRequest]) -> bool:
        """Return whether the next step must not be launched before the tokens of the one in flight are known.

        That is if some of them are drafted, or if drafts would be worth it for the tokens known so far.
        """
        if any(item.drafts for item in in_flight):
            return True
        if self._rests(in_flight, len(in_flight), num_ahead=1):
            return False
        requests = {place: item.request for place, item in enumerate(in_flight)}
        plan = self._plan(requests, len(requests), self._max_tokens)
        prepares = plan.unready and self._preparations.left_s > plan.cost.plain_s
        if any(plan.lengths) or prepares:
            self._probes.spend(plan.num_probes, plan.cost)
            for proposal, length in zip(plan.proposals, plan.lengths, strict=True):
                if length and (first := proposal.offer.first_token) is not None:
                    self._guesses[proposal.request] = proposal.request.num_tokens, first
            return True
        self._note_plan(plan, len(requests))  # otherwise `add_drafts` does
        return False

    def note(self, item: ScheduledRequest, num_accepted: int | None) -> None:
        """Note how many of a request's drafted tokens were right, after it got its new tokens; None: it got none, since
        the mask of its grammar was late.

        Releases the blocks of the others.
        """
        self._blocks.trim(item.request)
        if num_accepted is None:
            return
        self._num_accepted += num_accepted
        self.counters.note(len(item.drafts), num_accepted)
        if (acceptance := self._acceptances.get(item.request)) is not None:
            acceptance.note(len(item.drafts), num_accepted)
        if self._of_all is not None:
            self._of_all.note(len(item.drafts), num_accepted)

    def note_step(self, num_sequences: int, num_drafted: int, step_s: float) -> None:
        """Note the time of a step that had no work but sequences that decode, with `num_drafted` drafted tokens.

        step_s: without the drafter's time.
        """
        plain_s = _plain_s(self._rates(), num_sequences)
        self._costs.add(num_drafted, step_s, plain_s)
        if plain_s > 0:
            gain = self._num_accepted / num_sequences
            self._preparations.add((1 + gain) * plain_s - step_s - self._drafting_s)

    def _draft(self, plan: DraftPlan) -> dict[Request, Sequence[int]]:
        """Return the drafted tokens of the requests for which a plan wants any, and prepare others."""
        wanted = {each.request: count for each, count in zip(plan.proposals, plan.lengths, strict=True) if count}
        wanted |= {each.request: each.offer.num_tokens for each in plan.unready}
        self.drafter_s = self._drafting_s = 0.0
        if not wanted:
            return {}
        drafted = self._drafter.draft(wanted, self._preparations.left_s)
        self._preparations.spend(drafted.preparation_s)
        self._drafting_s, self.drafter_s = drafted.drafting_s, drafted.drafting_s + drafted.preparation_s
        self.counters.drafting_s += self.drafter_s
        return dict(drafted.token_ids)

    def _check_guesses(self) -> None:
        """Note which guesses were right. If one was wrong, its request may have no proposal now; but it cost time."""
        for request, (place, token_id) in self._guesses.items():
            if request.num_tokens > place and request.status is not RequestStatus.FINISHED:
                is_right = int(request.token_ids[place] == token_id)
                self._acceptances[request].note(1, is_right)
                if self._of_all is not None:
                    self._of_all.note(1, is_right)
        self._guesses.clear()

    def _plan(self, requests: dict[int, Request], num_sequences: int, most: int) -> DraftPlan:
        """Return the drafts for a step's requests, by place, `most` tokens in all."""
        self._drafter.begin_step()
        proposals = [found for place, request in requests.items() if (found := self._propose(place, request))]
        if not proposals:
            return DraftPlan()
        rates = self._rates()
        prices = Prices(
            self._costs.of(_plain_s(rates, num_sequences), rates.decode_sequence_s),
            self._drafter.pass_s,
            num_sequences + self._num_elsewhere(),
            min(most, self._costs.most_drafts),
        )
        is_trial_due = self._of_all is not None and self._of_all.is_probe_due
        return DraftPlan.of(proposals, prices, self._probes, is_trial_due=is_trial_due)

    def _rests(self, items: Sequence[ScheduledRequest], num_sequences: int, num_ahead: int = 0) -> bool:
        """Return whether a step has no plan, since drafts did not pay; no hidden states of its tokens are kept.

        items: of the step, or of the one `num_ahead` tokens in front of it.
        """
        if self._rest is None or not self._rest.take(num_sequences):
            return False
        self.drafter_s = self._drafting_s = 0.0
        self._drafter.begin_step()
        for item in items:
            item.request.num_without_states = item.start + item.num_new_tokens + num_ahead
        return True

    def _note_plan(self, plan: DraftPlan, num_sequences: int) -> None:
        """Note the proposals that a step leaves out, and the time that it takes for probes."""
        if not (plan.proposals or plan.num_waiting):
            return
        num_left_out = 1
        if self._rest is not None:
            num_left_out += self._rest.end()
            if plan.cost.plain_s > 0:
                self._rest.note(num_sequences, pays=plan.pays)
        self._preparations.earn(plan.cost)
        self._probes.earn(plan.cost)
        self._probes.spend(plan.num_probes, plan.cost)
        for acceptance in plan.left_out:
            acceptance.leave_out(num_left_out)
        if not any(plan.lengths):
            self._costs.leave_out()
            if self._of_all is not None:
                self._of_all.leave_out(num_left_out)

    def _propose(self, place: int, request: Request) -> Proposal | None:
        """Return the proposal for a request; None if there is none.

        Drafted tokens are not the last of an output, so that the request ends with a token that is sampled. They do
        not pass a checkpoint of recurrent state: it is only there between two steps.
        """
        num_left = self._finish_rule.num_left(request) - 1
        limit = self._blocks.until_checkpoint(request, min(self._max_tokens, num_left) + 1) - 1
        if limit <= 0 or request.keep_blocks or not self._may_draft(request):  # a peer may read all of kept blocks
            return None
        offer = self._drafter.offer(request, limit)
        if offer is None:
            return None
        acceptance = self._acceptances.get(request)
        if acceptance is None:
            acceptance = Acceptance() if self._of_all is None else self._of_all.of_another()
            self._acceptances[request] = acceptance
        return Proposal(place, request, offer, acceptance, num_left)


def _plain_s(rates: StepRates, num_sequences: int) -> float:
    """Return the time of a step in which sequences decode one token each; 0: not known yet."""
    if not rates.decode_step_s:
        return 0.0
    return rates.decode_step_s + (num_sequences - 1) * rates.decode_sequence_s
