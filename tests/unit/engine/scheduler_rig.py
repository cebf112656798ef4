"""A scheduler over a model that detects every wrong block."""

from dataclasses import dataclass, field

from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.lora.use import AdapterUse
from baton.engine.outputs import RequestOutput, SampledToken
from baton.engine.request import FinishReason, FinishRule, Request, RequestId, RequestStatus
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Received
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step_rates import StepRates
from baton.engine.speculation.lookup import Lookup, LookupDrafter
from baton.engine.speculation.speculator import Speculator
from tests.unit.engine.fake_model import VOCAB, FakeModel, reference
from tests.unit.engine.speculation.free_drafts import FreeDrafts

BLOCK_SIZE = 4


@dataclass
class Rig:
    """A scheduler, its model, and its outputs."""

    num_blocks: int = 40
    config: EngineConfig = field(
        default_factory=lambda: EngineConfig(model="", block_size=BLOCK_SIZE, max_num_batched_tokens=16, max_num_seqs=8)
    )

    max_forced: int = 0  # tokens that the model adds to a sampled one
    drafter: Lookup | None = None
    adapters: AdapterUse | None = None

    def __post_init__(self) -> None:
        blocks = BlockManager(self.num_blocks, BLOCK_SIZE, self.config.enable_prefix_caching)
        self.unready: set[RequestId] = set()  # requests that may not be sampled yet
        finish_rule = FinishRule(frozenset({VOCAB}), max_model_len=100)
        self.speculator: Speculator | None = None
        if self.drafter is not None:
            self.speculator = Speculator(
                5, LookupDrafter(self.drafter, finish_rule), blocks, finish_rule, lambda: StepRates(decode_step_s=1.0)
            )
            self.speculator._costs = FreeDrafts()
        self.scheduler = Scheduler(
            self.config,
            blocks,
            finish_rule,
            lambda request: request.request_id not in self.unready,
            self.speculator,
            self.adapters,
        )
        self.model = FakeModel(self.num_blocks, BLOCK_SIZE, self.max_forced)
        self.outputs: dict[RequestId, list[int]] = {}
        self.ends: dict[RequestId, FinishReason] = {}
        self.receiving: list[Request] = []

    def add(self, name: str, prompt: list[int], max_tokens: int, **options: object) -> Request:
        """Queue a request."""
        request = Request(
            RequestId(name),
            list(prompt),
            len(prompt),
            SamplingParams(max_tokens=max_tokens),
            **options,  # type: ignore[arg-type]  # options of Request
        )
        self.scheduler.add(request)
        self.scheduler.check_integrity()
        self.outputs[request.request_id] = []
        return request

    def step(self) -> int:
        """Run a step; return the number of tokens computed."""
        schedule = self.scheduler.schedule()
        self.scheduler.check_integrity()
        lens = [item.num_new_tokens for item in schedule.requests]
        assert sum(lens) <= self.config.step_tokens
        assert all(length > 0 for length in lens)
        assert lens == sorted(lens, key=lambda length: length > 1)
        assert len(lens) <= self.config.batch_seqs
        for output in self.scheduler.update(schedule.requests, self.model.run(schedule.requests)):
            self.take(output)
        self.scheduler.check_integrity()
        self.receiving += schedule.receiving
        return sum(lens)

    def take(self, output: RequestOutput) -> None:
        """Store an output."""
        self.outputs[output.request_id] += output.token_ids
        if output.finish_reason is not None:
            self.ends[output.request_id] = output.finish_reason

    def end_receive(self, request: Request, num_tokens: int, with_token: bool) -> None:
        """End a receiving request's remote prefill, with KV of the first `num_tokens` tokens."""
        self.receiving.remove(request)
        sampled = None
        if request.status is RequestStatus.RECEIVING:
            self.model.receive(request, num_tokens)
            if with_token:
                sampled = SampledToken(reference(request.token_ids, 1)[0])
                self.outputs[request.request_id].append(sampled.token_id)
                reason = self.scheduler.finish_rule.reason(request, sampled.token_id)
                if reason is not None:
                    self.ends[request.request_id] = reason
                    self.scheduler.abort(request.request_id)
        self.scheduler.end_receive(request.request_id, Received(num_tokens, sampled))
        self.scheduler.check_integrity()

    def run_to_end(self) -> None:
        """Step until all requests have ended."""
        for _ in range(10_000):
            if not self.scheduler.num_unfinished:
                return
            self.step()
            for request in list(self.receiving):
                self.end_receive(request, request.num_tokens, with_token=True)
        raise AssertionError("requests remain after 10,000 steps")
