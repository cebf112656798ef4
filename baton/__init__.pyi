# For type checkers: the names that __init__.py imports when they are first used.
from baton.offline.adapters import LoRARequest as LoRARequest
from baton.offline.llm import LLM as LLM
from baton.offline.outputs import CompletionOutput as CompletionOutput
from baton.offline.outputs import EmbeddingRequestOutput as EmbeddingRequestOutput
from baton.offline.outputs import RequestOutput as RequestOutput
from baton.offline.outputs import ScoringRequestOutput as ScoringRequestOutput
from baton.offline.sampling_params import SamplingParams as SamplingParams
from baton.offline.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
