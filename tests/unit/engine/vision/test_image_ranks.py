"""Images on tensor-parallel ranks: the tokens of one rank, from an encoder that only rank 0 has."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import Tensor

from baton.engine.engine import Engine
from baton.engine.errors import GroupBroken
from baton.engine.request import RequestId
from tests.marks import slow_case
from tests.unit.engine.tensor_rig import TIMEOUT_S, TensorRig
from tests.unit.engine.vision.image_rig import PROMPTS, Prompt, engine_of, request_of, run
from tests.vision_checkpoints import make_vision_checkpoint, prompt_of, random_image, random_text

BLOCK_SIZE = 4
Rigs = Callable[..., TensorRig]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_checkpoint(tmp_path_factory.mktemp("image_ranks") / "model")


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, list[int]]:
    return run(engine_of(model), [request_of(name, prompt) for name, prompt in PROMPTS.items()])


@pytest.fixture
def rigs(model: Path) -> Iterator[Rigs]:
    """Factory of groups of ranks that are closed after the test."""
    made: list[TensorRig] = []

    def make(size: int = 2, **options: object) -> TensorRig:
        given = {"block_size": BLOCK_SIZE, "max_num_seqs": 6} | options
        made.append(TensorRig(model, size, **given))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def num_encoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the encoder adds the tokens of each image."""
    assert engine.runner.images is not None
    encoder, sizes = engine.runner.images.encoder, list[int]()
    encode = encoder.encode

    def counted(image: object) -> object:
        sizes.append(image.num_tokens)  # type: ignore[attr-defined]
        return encode(image)  # type: ignore[arg-type]

    monkeypatch.setattr(encoder, "encode", counted)
    return sizes


@pytest.mark.parametrize(("size", "step_tokens"), [(2, 7), slow_case(2, 512), slow_case(4, 7), slow_case(4, 512)])
def test_tokens_in_any_chunking_equal_those_of_one_rank(
    expected: dict[str, list[int]], rigs: Rigs, size: int, step_tokens: int
) -> None:
    rig = rigs(size, max_num_batched_tokens=step_tokens)
    assert rig.call(lambda engine: run(engine, [request_of(*item) for item in PROMPTS.items()])) == expected
    assert len(set(map(tuple, expected.values()))) == len(PROMPTS)


def test_only_rank_0_has_the_encoder(rigs: Rigs) -> None:
    rig = rigs()
    assert rig.engine.runner.images is not None
    assert rig.follower(1)._model.vision is None  # type: ignore[attr-defined]


def test_hits_are_by_the_digest_of_the_image(
    expected: dict[str, list[int]], rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, name = rigs(), "one image"
    encoded = num_encoded(rig.engine, monkeypatch)
    other: Prompt = prompt_of([random_text(7, 1), random_image(3, 5, 2), random_text(9, 2)])
    for prompt, num_cached, num_images in ((PROMPTS[name], 0, 1), (PROMPTS[name], 32, 1), (other, 8, 2)):
        request = request_of(name, prompt)
        outputs = rig.call(lambda engine, request=request: run(engine, [request]))  # type: ignore[misc]
        assert (outputs[name] == expected[name]) == (prompt is not other)
        assert (request.num_cached_tokens, len(encoded)) == (num_cached, num_images)


def test_preempted_requests_compute_their_images_again(model: Path, expected: dict[str, list[int]], rigs: Rigs) -> None:
    block_bytes = engine_of(model).layout.block_bytes // 2
    rig = rigs(kv_cache_memory_bytes=22 * block_bytes, enable_prefix_caching=False, max_model_len=80)
    names = ["one image", "image last", "two images"]
    requests = [request_of(name, PROMPTS[name]) for name in names]
    assert rig.call(lambda engine: run(engine, requests)) == {name: expected[name] for name in names}
    assert sum(request.num_preemptions for request in requests) > 0


def test_a_request_that_is_cancelled_in_its_image_leaves_nothing_held(
    expected: dict[str, list[int]], rigs: Rigs
) -> None:
    rig, name = rigs(max_num_batched_tokens=10), "image last"

    def cancelled(engine: Engine) -> int:
        request = request_of(name, PROMPTS[name])
        engine.add(request)
        for _ in range(3):
            engine.run(engine.schedule())
        engine.abort(RequestId(name))
        engine.check_integrity()
        assert engine.blocks.num_free == engine.blocks.num_usable
        return request.num_computed_tokens

    (image,) = PROMPTS[name][1]
    assert image.start < rig.call(cancelled) < image.end
    assert rig.call(lambda engine: run(engine, [request_of(name, PROMPTS[name])])) == {name: expected[name]}


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_rank_that_is_lost_at_the_embeddings_ends_the_step_on_all(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    rig = rigs(4)
    assert rig.engine.runner.images is not None

    def die(_: Tensor) -> None:
        rig.tensors[lost].close()  # as the end of its process does
        rig.group.set_members(*rig.names[:lost], *rig.names[lost + 1 :])
        raise GroupBroken("it died")

    monkeypatch.setattr(rig.tensors[lost], "copy_from_rank0", die)
    with pytest.raises(GroupBroken):
        rig.call(lambda engine: run(engine, [request_of("one image", PROMPTS["one image"])]))
    rig.call(lambda engine: engine.close())
    for other in rig.ended:
        assert isinstance(other.exception(TIMEOUT_S), GroupBroken)


def test_the_wait_for_embeddings_counts_as_part_of_the_step(rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the watchdog ends a rank that hangs there."""
    rig = rigs()
    follower, turns = rig.follower(1), list[float]()
    copy = rig.tensors[1].copy_from_rank0

    def copied(x: Tensor) -> None:
        turns.append(follower.turn_s)
        copy(x)

    monkeypatch.setattr(rig.tensors[1], "copy_from_rank0", copied)
    rig.call(lambda engine: run(engine, [request_of("one image", PROMPTS["one image"])]))
    assert turns
    assert min(turns) > 0
