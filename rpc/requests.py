"""Conversion of requests, sampling options and logprobs to and from protobuf."""

import json
from dataclasses import replace

from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.outputs import PositionLogprobs, TokenLogprob
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.vision.image import Image
from baton.protos import common_pb2
from baton.protos.worker_pb2 import PrefillRequest

DEFAULTS = SamplingParams()


def sampling_from_proto(proto: common_pb2.SamplingParams, defaults: SamplingParams = DEFAULTS) -> SamplingParams:
    """Return a message's options, unset ones from `defaults`. They are not validated."""

    def scalar(name: str) -> bool:
        return proto.HasField(name)  # type: ignore[arg-type]  # one of the literal names below

    return SamplingParams(
        temperature=proto.temperature if scalar("temperature") else defaults.temperature,
        top_p=proto.top_p if scalar("top_p") else defaults.top_p,
        top_k=proto.top_k if scalar("top_k") else defaults.top_k,
        min_p=proto.min_p if scalar("min_p") else defaults.min_p,
        presence_penalty=proto.presence_penalty if scalar("presence_penalty") else defaults.presence_penalty,
        frequency_penalty=proto.frequency_penalty if scalar("frequency_penalty") else defaults.frequency_penalty,
        repetition_penalty=proto.repetition_penalty if scalar("repetition_penalty") else defaults.repetition_penalty,
        logit_bias=dict(proto.logit_bias) or defaults.logit_bias,
        seed=proto.seed if scalar("seed") else defaults.seed,
        stop_token_ids=frozenset(proto.stop_token_ids) or defaults.stop_token_ids,
        ignore_eos=proto.ignore_eos if scalar("ignore_eos") else defaults.ignore_eos,
        min_tokens=proto.min_tokens if scalar("min_tokens") else defaults.min_tokens,
        max_tokens=proto.max_tokens if scalar("max_tokens") else defaults.max_tokens,
        logprobs=proto.logprobs if scalar("logprobs") else defaults.logprobs,
        prompt_logprobs=proto.prompt_logprobs if scalar("prompt_logprobs") else defaults.prompt_logprobs,
        grammar=grammar_from_proto(proto.grammar) if proto.HasField("grammar") else defaults.grammar,
    )


def sampling_to_proto(sampling: SamplingParams) -> common_pb2.SamplingParams:
    """Return a message with every option set; numbers must be in range (see `SamplingParams.validate`)."""
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias,
        seed=sampling.seed,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        min_tokens=sampling.min_tokens,
        max_tokens=sampling.max_tokens,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        grammar=grammar_to_proto(sampling.grammar) if sampling.grammar is not None else None,
    )


def grammar_from_proto(proto: common_pb2.Grammar) -> Grammar:
    """Return a message's grammar, which is not validated; without a source it is an empty one, which is invalid."""
    name = proto.WhichOneof("source")
    field = proto.field or "grammar"
    if name is None or (name == "json_object" and not proto.json_object):
        return Grammar(GrammarKind.EBNF, field=field)
    if name == "json_object":
        return Grammar(GrammarKind.JSON_OBJECT, field=field)
    source = json.dumps(list(proto.choice.options)) if name == "choice" else str(getattr(proto, name))
    return Grammar(GrammarKind(name), source, proto.is_open, field)


def grammar_to_proto(grammar: Grammar) -> common_pb2.Grammar:
    """Return the message of a valid grammar."""
    message = common_pb2.Grammar(is_open=grammar.is_open, field=grammar.field)
    if grammar.kind is GrammarKind.JSON_OBJECT:
        message.json_object = True
    elif grammar.kind is GrammarKind.CHOICE:
        message.choice.options.extend(json.loads(grammar.source))
    else:
        setattr(message, grammar.kind.value, grammar.source)
    return message


def logprobs_from_proto(proto: common_pb2.PositionLogprobs) -> PositionLogprobs:
    """Return the logprobs of one position."""
    return PositionLogprobs(
        TokenLogprob(proto.chosen.token_id, proto.chosen.logprob, proto.chosen.rank),
        tuple(TokenLogprob(each.token_id, each.logprob, each.rank) for each in proto.top),
    )


def logprobs_to_proto(logprobs: PositionLogprobs) -> common_pb2.PositionLogprobs:
    """Return the message of one position's logprobs."""
    return common_pb2.PositionLogprobs(
        chosen=_token_to_proto(logprobs.chosen), top=[_token_to_proto(each) for each in logprobs.top]
    )


def _token_to_proto(logprob: TokenLogprob) -> common_pb2.TokenLogprob:
    return common_pb2.TokenLogprob(token_id=logprob.token_id, logprob=logprob.logprob, rank=logprob.rank)


def image_from_proto(proto: common_pb2.Image) -> Image:
    """Return a message's image, which is not validated."""
    return Image(proto.start, proto.rows, proto.columns, proto.digest, proto.pixels)


def image_to_proto(image: Image) -> common_pb2.Image:
    """Return the message of an image."""
    return common_pb2.Image(
        start=image.start, rows=image.rows, columns=image.columns, digest=image.digest, pixels=image.pixels
    )


def engine_request(message: PrefillRequest, request_id: RequestId) -> Request:
    """Return the engine's request: compute the message's tokens and sample one more."""
    sampling = sampling_from_proto(message.sampling)
    num_tokens = len(message.token_ids) - message.num_prompt_tokens + 1
    return Request(
        request_id=request_id,
        token_ids=list(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        sampling=replace(sampling, max_tokens=num_tokens, min_tokens=min(sampling.min_tokens, num_tokens)),
        cache_salt=message.cache_salt,
        images=tuple(map(image_from_proto, message.images)),
        tenant=message.tenant,
        priority=message.priority,
        num_marked_tokens=message.num_marked_tokens,
        # Prompt logprobs are a by-product of computing the prompt, so no prefix may be pulled.
        receives_kv=message.HasField("prefix_source") and sampling.prompt_logprobs is None,
        keep_blocks=True,
    )
