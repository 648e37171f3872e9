"""What families need of masks that see both ways: PaliGemma 2 and Gemma 3, built here of the parts, equal the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from transept.config.model import Config
from transept.heads.image_text import ForImageTextToText
from transept.kinds.picture_text import Pictures, PictureTextBackbone, PictureTextConfig
from transept.layers.attention import Attention
from transept.layers.caches.cache import Cache, DynamicCache, SlidingWindowCache
from transept.layers.context import Pattern, lower
from transept.models.gemma3_text import Gemma3TextConfig, Gemma3TextModel
from transept.outputs import BackboneOutput

from .families.llamas import LLAMAS
from .harness import error, in_double

pytestmark = pytest.mark.reference

EXACT = 1e-10
IMG, N = 90, 4
SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 37, "num_attention_heads": 2}
EYE = SMALL | {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8, "num_hidden_layers": 1}
EYE |= {"vision_use_head": False}
TEXT = SMALL | {"model_type": "gemma2", "vocab_size": 99, "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 12}
TEXT |= {"sliding_window": 3, "query_pre_attn_scalar": 3, "initializer_range": 0.5, "pad_token_id": 0}
TEXT |= {"final_logit_softcapping": None, "eos_token_id": 98}
# The root of the hidden size is whole: the reference keeps it in float32.
GEMMA = {family.model_type: family for family in LLAMAS}["gemma3_text"].tiny | {"hidden_size": 64, "sliding_window": 4}


class PaliConfig(PictureTextConfig):
    model_type = "paligemma"
    parts: ClassVar[dict[str, Any]] = {"vision_config": EYE, "text_config": TEXT}

    vision_config: Config | None = None
    text_config: Config | None = None
    image_token_id: int = IMG


class PaliModel(PictureTextBackbone):
    """A picture and the first part of a text are a block."""

    config_class = PaliConfig
    base_model_prefix = "model"
    picture_inputs = ("token_type_ids",)
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "pixel_values", "attention_mask", "position_ids", "past_key_values", "token_type_ids"),
        *("inputs_embeds", "labels", "mm_encoder_outputs", "block_sequence_ids", "use_cache"),
    )

    def __init__(self, config: PaliConfig) -> None:
        super().__init__(config)
        c: Any = config
        self.projector = nn.Linear(c.vision_config.hidden_size, c.text_config.hidden_size)

    def features(self, kind: str, pixels: Tensor, inputs: Mapping[str, Any]) -> BackboneOutput:
        states = self.visual(pixels).last_hidden_state  # type: ignore[operator]
        return BackboneOutput(last_hidden_state=states, pooler_output=tuple(self.projector(states)))  # type: ignore[arg-type]

    def sizes(self, kind: Pictures, given: Mapping[str, Any]) -> list[int]:
        return [N] * len(given[kind.pixels])

    def blocks(self, x: Tensor, cache: Cache | None, found: Mapping[str, Any]) -> Tensor | None:
        types = found.get("token_type_ids")
        is_first = cache is None or not cache.is_initialized
        return torch.where(types == 0, 0, -1) if types is not None and is_first else None


class PaliForConditionalGeneration(ForImageTextToText[PaliModel]):
    pass


class BlockwiseModel(Gemma3TextModel):
    """Gemma 3's text model as it reads pictures: a window bounds them too."""

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, bounds_blocks=True, **more)


@pytest.fixture
def unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's norms and weights of attention are rounded to float32, whatever the model's type; not here."""
    rounded, softmax = Tensor.float, nn.functional.softmax
    monkeypatch.setattr(Tensor, "float", lambda x: x if x.dtype is torch.float64 else rounded(x))
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim, **options: softmax(x, dim))


def both() -> tuple[Any, Any]:
    """Our model and the reference's, with the same weights, in float64."""
    import transformers

    torch.manual_seed(0)
    more = {"image_token_index": IMG, "projection_dim": TEXT["hidden_size"], "hidden_size": TEXT["hidden_size"]}
    config = transformers.PaliGemmaConfig(vision_config=dict(EYE), text_config=dict(TEXT), **more)
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    theirs = transformers.PaliGemmaForConditionalGeneration(config).double().eval()
    theirs.generation_config.eos_token_id = None
    ours = PaliForConditionalGeneration(PaliConfig(vision_config=dict(EYE), text_config=dict(TEXT))).double().eval()
    body = theirs.model
    parts = (("visual", "vision_tower"), ("projector", "multi_modal_projector.linear"), ("language_model", "language_model"))
    for own, other in parts:
        ours.backbone.get_submodule(own).load_state_dict(body.get_submodule(other).state_dict())
    return ours, theirs


def inputs(pad: str) -> dict[str, Tensor]:
    """Two texts about a picture each, the second shorter; behind the first part what is to be written."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 85, (2, N + 8), generator=generator)
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    ids[0, :N], types[:, -3:] = IMG, 1
    begin = 2 if pad == "left" else 0
    ids[1, begin : begin + N] = IMG
    hidden = slice(0, 2) if pad == "left" else slice(-2, None)
    ids[1, hidden], mask[1, hidden] = 0, 0
    pixels = torch.randn(2, 3, 16, 16, generator=generator).double()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "pixel_values": pixels}


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("pad", ["left", "right"])
def test_paligemma_of_parts_equals_the_reference(pad: str) -> None:
    ours, theirs = both()
    given = inputs(pad)
    given["position_ids"] = torch.arange(1, N + 9)[None]  # as the reference counts
    real = given["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**given).logits
        for kernel in ("eager", "sdpa"):
            ours.set_attn_implementation(kernel)
            assert error(ours(**given).logits[real], expected[real]) <= EXACT
        causal = {name: value for name, value in given.items() if name != "token_type_ids"}
        assert error(ours(**causal).logits[real], expected[real]) > 1e-3


@pytest.mark.usefixtures("unrounded")
def test_paligemma_of_parts_writes_as_the_reference() -> None:
    ours, theirs = both()
    given = inputs("left")
    given["token_type_ids"] = torch.zeros_like(given["token_type_ids"])  # a prompt is a first part
    greedy = {"max_new_tokens": 8, "do_sample": False}
    expected = theirs.generate(**given, **greedy)
    for more in ({}, {"use_cache": False}, {"prefill_chunk_size": 3}):
        assert torch.equal(ours.generate(**given, **greedy, **more, eos_token_id=None), expected)
    del given["token_type_ids"]
    assert not torch.equal(ours.generate(**given, **greedy, eos_token_id=None), expected)


@pytest.mark.parametrize("past", [0, 5])
def test_masks_of_gemma3_equal_the_reference(past: int) -> None:
    """Pictures see each other both ways, but in layers with a window not what is too far before."""
    import transformers
    from transformers.models.gemma3 import modeling_gemma3

    types = torch.tensor([[0, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0]])
    blocks = modeling_gemma3.get_block_sequence_ids_for_mask(types)
    config = transformers.Gemma3TextConfig(**SMALL, vocab_size=99, sliding_window=3, num_hidden_layers=2)
    config._attn_implementation = "sdpa"
    size = types.shape[1]
    mask = torch.ones_like(types)
    mask[1, :1] = 0
    cache = transformers.DynamicCache()
    if past:
        states = torch.zeros(2, 1, past, 4)
        cache.update(states, states, 0)
    x = torch.zeros(2, size - past, 16)
    told = {"attention_mask": mask, "past_key_values": cache, "position_ids": None, "block_sequence_ids": blocks}
    theirs = modeling_gemma3.create_masks_for_vision_model(config, x, **told)
    for kind, window in (("full_attention", None), ("sliding_attention", 3)):
        pattern = Pattern(causal=True, window=window, bounds_blocks=True)
        ours = lower(pattern, mask.bool(), size - past, size, x.device, blocks=blocks)
        assert torch.equal(ours, theirs[kind])


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_gemma3_reads_pictures_as_the_reference(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and then token by token past the window, with a cache."""
    import transformers
    from transformers.models.gemma3 import modeling_gemma3

    torch.manual_seed(0)
    config = transformers.Gemma3Config(vision_config=dict(EYE), text_config=dict(GEMMA), image_token_index=98)
    config._attn_implementation = config.text_config._attn_implementation = kernel
    theirs = transformers.Gemma3Model(config).double().eval()
    ours = BlockwiseModel(Gemma3TextConfig(**GEMMA)).double().eval()
    ours.load_state_dict(theirs.language_model.state_dict())
    ours.set_attn_implementation(kernel)
    ids = torch.randint(3, 97, (2, 18), generator=torch.Generator().manual_seed(1))
    types = torch.zeros_like(ids)
    types[0, 1:8], types[0, 9:12], types[1, :6] = 1, 1, 1
    blocks = modeling_gemma3.get_block_sequence_ids_for_mask(types)
    expected = in_double(theirs, monkeypatch, input_ids=ids, token_type_ids=types).last_hidden_state
    with torch.no_grad():
        assert error(ours(ids, block_sequence_ids=blocks).last_hidden_state, expected) <= EXACT
        assert error(ours(ids).last_hidden_state, expected) > 1e-3
        for cache in (DynamicCache(), SlidingWindowCache()):
            parts = [ours(ids[:, :13], block_sequence_ids=blocks[:, :13], past_key_values=cache)]
            parts += [ours(ids[:, place : place + 1], past_key_values=cache) for place in range(13, 18)]
            assert error(torch.cat([part.last_hidden_state for part in parts], dim=1), expected) <= EXACT
