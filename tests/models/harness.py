"""Pairs of one of our models and the reference's with the same weights, and inputs and labels for any of them."""

from __future__ import annotations

import copy
import inspect
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, wraps
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.public import HALVES
from tests.report import note
from transept.core import auto
from transept.core.model import Backbone, Model
from transept.core.task import TaskModel
from transept.kinds.seq2seq import Stack
from transept.kinds.spectrograms import SpectrogramBackbone

from .documents import document_batch
from .entities import entity_inputs
from .families import FAMILIES, Family
from .pictures import picture_batch
from .seq2seq import image_to_text_batch, reads_only, seq2seq_batch, speech_batch, written_labels
from .tables import table_labels, table_types

# Families whose layers the reference computes by its eager kernel alone.
EAGER_ALONE = ("big_bird", "megatron_bert", "rembert", "roformer")
# max|difference| / max|reference|
SINGLE, DOUBLE, ROUNDED = 1e-5, 1e-10, 1e-6
# One program over equal weights that lie elsewhere in memory: on some processors a matrix's place decides in which order a short
# product is summed. Orders of n <= 64 terms differ by some sqrt(n) * 2**-24 = 2**-21; twice that for what later layers add.
REPEATED = 2.0**-20


def family_module(family: Family) -> Any:
    return auto.family(family.model_type)


def classes(family: Family) -> list[type[Model]]:
    """The public models that a family's file defines, and that the reference has as well."""
    module = family_module(family)
    found = [value for name, value in vars(module).items() if inspect.isclass(value) and not name.startswith("_")]
    return [
        cls
        for cls in found
        if f"{cls.__module__}.".startswith(f"{module.__name__}.")
        and issubclass(cls, Model)
        and hasattr(cls, "config_class")
        and (not issubclass(cls, TaskModel) or "backbone_class" in dir(cls))
        and not is_part(cls)
        and cls.__name__ not in family.beyond
    ]


def is_part(cls: type[Model]) -> bool:
    """Whether the class is one half of an encoder–decoder, and not public."""
    return issubclass(cls, Stack | SpectrogramBackbone) and not cls.__name__.endswith("Model") and cls.__name__ not in HALVES


EVERY = [pytest.param(family, cls, id=cls.__name__) for family in FAMILIES for cls in classes(family)]
TASKS = [case for case in EVERY if not issubclass(case.values[1], Backbone)]
BACKBONES = [case for case in EVERY if issubclass(case.values[1], Backbone)]
READERS = [case for case in BACKBONES if case.values[0].modality in ("text", "seq2seq")]
FIRST = [case for case in EVERY if case.values[1] is classes(case.values[0])[0]]
# Of the families that most programs load, every run tests all; of others it tests a share of what costs much.
MOST_USED = ("bert", "gpt2", "llama", "t5", "vit", "clip", "wav2vec2", "whisper")
USED = [case for case in EVERY if case.values[0].model_type in MOST_USED]


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two inputs are the same to the bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def decodes(model: Model) -> bool:
    """Whether the model has positions that see only those before them."""
    return any(stack.causal for stack in model.stacks)


def takes_cache(cls: type[Model]) -> bool:
    return "past_key_values" in inspect.signature(cls.forward).parameters


@cache
def reference_class(cls: type[Model]) -> Any:
    import transformers

    found: Any = getattr(transformers, cls.__name__)
    if cls.__name__.startswith("NllbMoe"):
        repair_experts()
    if cls.__name__.startswith("ProphetNet"):
        repair_streams()
    if cls.__name__ != "OpenAIGPTDoubleHeadsModel":
        return found

    def forward(self: Any, *args: Any, attention_mask: Any = None, **inputs: Any) -> Any:
        """The reference's, which takes no masks of choices."""
        rows = attention_mask if attention_mask is None else attention_mask.flatten(0, -2)
        return found.forward(self, *args, attention_mask=rows, **inputs)

    return type(cls.__name__, (found,), {"forward": forward, "__module__": found.__module__})


@cache
def repair_experts() -> None:
    """Let the reference's NLLB ask the experts that were chosen: it reads whether one was as its number, and asks the first two."""
    from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeExperts

    def forward(self: Any, hidden_states: Tensor, router_mask: Tensor, router_probs: Tensor) -> Tensor:
        kept = self.token_dropout if self.training else lambda x: x * (1 - self.moe_token_dropout)
        experts = [self[f"expert_{number}"] for number in range(self.num_experts)]
        outputs = [kept(expert(hidden_states)) * router_probs[:, [place]] for place, expert in enumerate(experts)]
        return torch.stack(outputs).sum(dim=0).to(hidden_states.dtype)

    NllbMoeExperts.forward = forward  # type: ignore[method-assign]


@cache
def repair_streams() -> None:
    """Let streams of the reference's ProphetNet have the scores by distance that their states give.

    Read at once, it takes those of other positions, streams and heads; steps with a cache are right. Masks get the model's type,
    since those of integers times the smallest number of float64 are not numbers.
    """
    from transformers.models.prophetnet import modeling_prophetnet as theirs

    def in_type(forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def call(self: Any, *args: Any, **inputs: Any) -> Any:
            masks = {name: mask.to(self.dtype) for name, mask in inputs.items() if name.endswith("mask") and mask is not None}
            return forward(self, *args, **inputs | masks)

        return call

    for kind in (theirs.ProphetNetEncoder, theirs.ProphetNetDecoder):
        kind.forward = in_type(kind.forward)
    of_step = theirs.ProphetNetNgramSelfAttention.get_predict_relative_pos_embeddings

    def scores(self: Any, hidden_states: Tensor, attn_weights: Tensor, position_ids: Tensor, buckets: Tensor | None) -> Tensor:
        if buckets is None:
            return of_step(self, hidden_states, attn_weights, position_ids, buckets)
        by_bucket = self.relative_pos_embeddings(hidden_states).unflatten(-1, (self.num_buckets, -1))
        return by_bucket.permute(0, 2, 4, 1, 3).gather(4, buckets.long()[:, None, None].expand(attn_weights.shape))

    theirs.ProphetNetNgramSelfAttention.get_predict_relative_pos_embeddings = scores  # type: ignore[method-assign]


def settings(family: Family, cls: type[Model], **more: Any) -> dict[str, Any]:
    given = dict(family.tiny)
    if any(part in cls.__name__ for part in ("LMHead", "CausalLM", "GenerationDecoder")):
        given |= family.decoder or {}
    if family.modality == "seq2seq" and reads_only(cls):
        given["is_encoder_decoder"] = False
    part = (given | more).get(reference_class(cls).config_class.base_config_key)  # of a composed model's
    return given | more if part is None else part | {name: value for name, value in more.items() if name not in given}


DEPTHS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def shallow(settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that say how deep a model is, and say one layer; none where layers are asked for by number."""
    if {"out_indices", "backbone_out_indices", "attention_types"} & settings.keys():
        return {}
    parts = ("encoder", "decoder", "text_config", "vision_config")
    inner = {name: value | shallow(value) for name, value in settings.items() if name in parts}
    kinds = {name: settings[name][-1:] for name in ("layer_types", "layers_block_type") if settings.get(name)}
    sharing = {name: 0 for name in settings if name == "num_kv_shared_layers"}
    least = 2 if "rescale_every" in settings else 1  # of which the reference's RWKV cannot have one
    return {name: least for name in settings if name in DEPTHS} | kinds | sharing | inner


def reference_model(family: Family, cls: type[Model], **more: Any) -> Any:
    theirs = reference_class(cls)
    torch.manual_seed(0)
    config = theirs.config_class(**settings(family, cls, **more))
    model = theirs(config).eval()
    model.set_experts_implementation("eager")  # the others take neither float64 nor every size
    # Biases and norms start as constants, which would hide swapped ones.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim <= 1 or (parameter == parameter.flatten()[0]).all():
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.tie_weights()
    return model


@lru_cache(maxsize=1024)
def _originals(family: Family, cls: type[Model], more: str) -> tuple[Model, Any, dict[str, Tensor]]:
    theirs = reference_model(family, cls, **json.loads(more))
    with tempfile.TemporaryDirectory() as directory:
        theirs.save_pretrained(directory)
        return cls.from_pretrained(directory), theirs, stored(directory)


def originals(family: Family, cls: type[Model], **more: Any) -> tuple[Model, Any, dict[str, Tensor]]:
    """Ours read from the reference's file, theirs that wrote it, and the file's tensors: shared by tests, not to be changed."""
    return _originals(family, cls, json.dumps(more, sort_keys=True))


def pair(family: Family, cls: type[Model], *, attention: str = "sdpa", **more: Any) -> tuple[Model, Any]:
    """Ours and theirs with equal weights, in float32 and evaluation mode, to be changed at will."""
    ours, theirs = copy.deepcopy(originals(family, cls, **more)[:2])
    ours.set_attn_implementation(attention)
    fused = all(getattr(part, "_supports_sdpa", True) for part in theirs.modules())
    asked = attention if fused else "eager"
    theirs.set_attn_implementation(asked)
    if theirs.config._attn_implementation != asked:  # Falcon refuses it, and looks into its config in each pass
        theirs.config._attn_implementation = asked
    return ours, theirs


def check_same(again: Any, model: Any, run: Callable[[Any], Any]) -> None:
    """One model twice: equal weights and buffers bit for bit, and what `run` makes of both equal to rounding."""
    found, expected = again.state_dict(), model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    compare(run(again), run(model), REPEATED)


def stored(directory: str) -> dict[str, Tensor]:
    return load_file(f"{directory}/model.safetensors")


def batch(family: Family, cls: type[Model], *, pad: str | None = None, rows: int = 3, length: int = 9) -> dict[str, Tensor]:
    """Inputs without labels: three rows, the last ones padded on one side (or none: `pad="none"`), as the family allows."""
    pad = ("none" if family.reads_padding else "right") if pad is None else pad
    generator = torch.Generator().manual_seed(1)
    if family.modality == "image":
        size = family.tiny.get("image_size", 32)
        found = {"pixel_values": torch.randn(rows, family.tiny.get("num_channels", 3), size, size, generator=generator)}
        if "pixel_mask" in cls.arguments() and pad != "none":
            real = torch.arange(size) < torch.tensor([size, size - 5, size - 9])[:rows, None]
            found["pixel_mask"] = (real[:, :, None] & real.flip(0)[:, None]).long()
        return found
    if family.modality == "image and text":
        return _image_and_text(family, cls, pad=pad, rows=rows, length=length)
    if family.modality == "audio":
        samples = 2000
        values = torch.randn(rows, samples, generator=generator)
        mask = torch.ones(rows, samples, dtype=torch.long)
        if pad != "none":
            for row in range(1, rows):
                mask[row, samples - 300 * row :] = 0
        return {"input_values": values * mask, "attention_mask": mask}
    if "pixel_values" in cls.arguments() and family.modality == "pictures":
        return picture_batch(family, pad=pad, rows=rows)
    if family.modality == "speech":
        return speech_batch(cls, family.tiny, pad=pad, rows=rows)
    if family.modality == "document":
        return document_batch(family.tiny, pad=pad, rows=rows, length=length)
    if family.modality == "image to text":
        return image_to_text_batch(family.tiny, pad=pad, rows=rows)
    if family.modality == "seq2seq":
        config = reference_class(cls).config_class(**family.tiny)
        return seq2seq_batch(cls, config, pad=pad, rows=rows, length=length)
    tiny = settings(family, cls)
    ids = torch.randint(5, tiny.get("vocab_size", 99), (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    if pad != "none":
        for row in range(1, rows):
            mask[row, length - 2 * row :] = 0
    if pad == "left":
        mask = mask.flip(1)
    padding = getattr(reference_class(cls).config_class(**tiny), "pad_token_id", 0)
    ids = torch.where(mask == 1, ids, padding if padding is not None else 1)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family.token_types and "token_type_ids" in inspect.signature(cls.forward).parameters:
        inputs["token_type_ids"] = (torch.arange(length)[None] > 3).long() * mask
    if family.model_type == "tapas":
        inputs["token_type_ids"] = table_types(mask)
    if family.model_type == "splinter":
        ids[:, 1] = tiny["question_token_id"]
    if "global_attention_mask" in cls.arguments() and not cls.__name__.endswith("SequenceClassification"):
        inputs["global_attention_mask"] = (ids % 5 == 1).long() * mask
    if "entity_ids" in cls.arguments():
        inputs |= entity_inputs(tiny, mask, places="entity_start_positions" in cls.arguments())
    if "attention_mask" not in inspect.signature(cls.forward).parameters:
        del inputs["attention_mask"]
    if cls.__name__.endswith(("MultipleChoice", "DoubleHeadsModel")):
        inputs = {name: torch.stack([value, value.flip(0)], dim=1) for name, value in inputs.items()}
    if cls.__name__.endswith("DoubleHeadsModel"):
        inputs["mc_token_ids"] = torch.randint(0, length, (rows, 2), generator=generator)
    return inputs


def _image_and_text(family: Family, cls: type[Model], *, pad: str, rows: int, length: int) -> dict[str, Tensor]:
    """Images and texts, or one of both, as the class reads them."""
    sides = {"pixel_values": "vision_config", "input_ids": "text_config"}
    names, inputs = inspect.signature(cls.forward).parameters, dict[str, Tensor]()
    pad = "none" if "decoder_input_ids" in names else pad  # what is padding in questions the reference reads
    for modality, (name, side) in zip(("image", "text"), sides.items(), strict=True):
        if name in names:
            one = replace(family, tiny=family.tiny[side], modality=modality)
            inputs |= batch(one, cls, pad=pad, rows=rows, length=length)
    if (end := family.tiny["text_config"].get("eos_token_id")) is not None and "input_ids" in inputs:
        ends = (inputs["attention_mask"] * torch.arange(1, length + 1)).argmax(dim=1)
        inputs["input_ids"][torch.arange(rows), ends] = end
    if "encoder_hidden_states" in names and "LMHead" in cls.__name__:
        inputs["encoder_hidden_states"] = torch.randn(rows, 5, 32, generator=torch.Generator().manual_seed(3))
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :4].flip(0).clamp(min=5)
    return inputs


def labels(family: Family, cls: type[Model], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Labels for a task class, by its name; empty for a backbone."""
    name, first = cls.__name__, next(iter(inputs.values()))
    rows = first.shape[0]
    generator = torch.Generator().manual_seed(2)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    if issubclass(cls, Backbone) or name.endswith(("WithTeacher", "ForImageTextRetrieval")):  # the reference's takes none
        return {}
    if name.endswith(("WithProjection", "ContextEncoder", "QuestionEncoder", "DPRReader")):
        return {}
    if "return_loss" in inspect.signature(cls.forward).parameters:
        return {"return_loss": True}  # type: ignore[dict-item]
    if name == "BlipForQuestionAnswering":
        return {"labels": inputs["decoder_input_ids"]}
    if name.endswith("MultipleChoice"):
        return {"labels": integers(2, rows)}
    if name == "SplinterForPreTraining":
        found = {"start_positions": integers(4, rows, 2), "end_positions": integers(4, rows, 2) + 1}
        return found | {"question_positions": torch.tensor([[1, 3]]).expand(rows, -1)}
    if "float_answer" in cls.arguments():
        return table_labels(inputs["token_type_ids"])
    if name.endswith(("QuestionAnswering", "QuestionAnsweringSimple")):
        found = {"start_positions": integers(5, rows), "end_positions": integers(5, rows) + 2}
        if name in ("XLNetForQuestionAnswering", "XLMForQuestionAnswering", "FlaubertForQuestionAnswering"):
            found |= {"cls_index": integers(9, rows), "is_impossible": integers(2, rows).float()}
        return found
    if name.endswith("ForNextSentencePrediction"):
        return {"labels": integers(2, rows)}
    if name.endswith(("EntityClassification", "EntityPairClassification")):
        return {"labels": integers(2, rows)}
    if name.endswith(("ForSequenceClassification", "ForImageClassification", "ForAudioClassification", "ForXVector")):
        return {"labels": integers(2, rows)}
    if "decoder_input_ids" in inputs:
        return {"labels": written_labels(inputs)}
    if family.modality in ("text", "seq2seq") or "input_ids" in inputs:
        ids = inputs.get("input_ids", first).clone()
        if name.endswith(("ForTokenClassification", "EntitySpanClassification")):
            ids = integers(2, *ids.shape)
        if name in ("ElectraForPreTraining", "FunnelForPreTraining"):
            return {"labels": integers(2, *ids.shape)}
        if "attention_mask" in inputs:
            ids[inputs["attention_mask"] == 0] = -100
        # Padding on the left sees nothing, which kernels show in their own ways: it is to predict nothing.
        if family.modality == "image and text" or family.model_type in EAGER_ALONE:
            ids[torch.arange(rows), inputs["attention_mask"].argmax(dim=1)] = -100
        ids[0, ..., 2] = -100
        orders = [
            label
            for label in ("next_sentence_label", "sentence_order_label")
            if label in inspect.signature(cls.forward).parameters
        ]
        more = {label: integers(2, rows) for label in orders}
        if "entity_labels" in inspect.signature(cls.forward).parameters:
            more["entity_labels"] = integers(family.tiny["entity_vocab_size"], *ids.shape)
        more |= {"mc_labels": integers(2, rows)} if name.endswith("DoubleHeadsModel") else {}
        return {"labels": ids} | more
    if name in ("DetrForObjectDetection", "DetrForSegmentation"):
        return {"labels": [_targets(integers, number, first.shape[2:]) for number in (2, 0, 3)[:rows]]}
    if name.endswith("ForDepthEstimation"):
        return {}  # which the reference cannot be trained for
    if name.endswith("ForSemanticSegmentation"):
        classes = integers(family.tiny["num_labels"], rows, *first.shape[2:])
        return {"labels": torch.where(integers(5, *classes.shape) == 0, 255, classes)}
    if name == "BeitForMaskedImageModeling":  # one patch a row, so that a row's label is the one of its number
        hidden = torch.zeros(rows, (family.tiny["image_size"] // family.tiny["patch_size"]) ** 2, dtype=torch.bool)
        hidden[torch.arange(rows), integers(hidden.shape[1], rows)] = True
        return {"bool_masked_pos": hidden, "labels": integers(family.tiny["vocab_size"], rows)}
    if family.modality == "image":
        size, patch = family.tiny["image_size"], family.tiny["patch_size"]
        return {"bool_masked_pos": integers(2, rows, (size // patch) ** 2).bool()}
    if name.endswith("ForCTC"):
        ids = integers(family.tiny["vocab_size"], rows, 6)
        ids[0, 1], ids[1, 3:] = -100, -100
        return {"labels": ids}
    return _frame_labels(family, cls, inputs)


def _targets(integers: Callable[..., Tensor], number: int, size: torch.Size) -> dict[str, Tensor]:
    """So many objects of an image."""
    boxes = (integers(60, number, 4) + 20) / 200  # inside the image
    return {"class_labels": integers(3, number), "boxes": boxes, "masks": integers(2, number, *size)}


def _frame_labels(family: Family, cls: type[Model], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Labels for each frame of a waveform, or what a pretraining hides of them."""
    import numpy as np
    from transformers.models.wav2vec2 import modeling_wav2vec2 as wave

    rows, frames = inputs["input_values"].shape
    lengths = inputs["attention_mask"].sum(dim=1)
    for kernel, stride in zip(family.tiny["conv_kernel"], family.tiny["conv_stride"], strict=True):
        frames, lengths = (frames - kernel) // stride + 1, (lengths - kernel) // stride + 1
    if cls.__name__.endswith("ForAudioFrameClassification"):
        return {"labels": torch.eye(2)[torch.arange(rows * frames).view(rows, frames) // 5 % 2]}
    assert cls.__name__.endswith("ForPreTraining"), f"labels for {cls.__name__}: add them to the harness"
    np.random.seed(0)  # noqa: NPY002 (the reference draws from it)
    real = (torch.arange(frames) < lengths[:, None]).long()
    masked = wave._compute_mask_indices((rows, frames), 0.5, 4, real, min_masks=2)
    negatives = wave._sample_negative_indices((rows, frames), family.tiny["num_negatives"], masked)
    return {"mask_time_indices": torch.tensor(masked), "sampled_negative_indices": torch.tensor(negatives)}


def error(ours: Any, theirs: Any) -> float:
    """max|difference| / max|reference| over tensors and nested tuples of them."""
    if isinstance(theirs, Tensor):
        assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
        assert torch.isfinite(ours).all()
        ours, theirs = ours.detach().double(), theirs.detach().double()
        return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))
    if isinstance(theirs, dict):
        theirs = {name: value for name, value in theirs.items() if value != ()}  # where nothing is to be seen
        assert ours.keys() == theirs.keys()
        return max((error(ours[name], value) for name, value in theirs.items()), default=0.0)
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs), (len(ours), len(theirs))
        return max((error(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    return 0.0  # a cache: its content is seen through the outputs


def compare(ours: Any, theirs: Any, tolerance: float, *, only: Tensor | None = None) -> float:
    """Compare two outputs key by key; `only` (B, T) or (B, N, T) selects the positions of values (*only, ...) that count."""
    names = [
        name for name, value in theirs.items() if not (isinstance(value, tuple) and not value)
    ]  # theirs has empty tuples where nothing is to be seen
    assert set(ours.keys()) == set(names), (list(ours.keys()), names)
    worst = 0.0
    for name in names:
        mine, other = ours[name], theirs[name]
        if only is not None:
            mine, other = _selected(mine, only), _selected(other, only)
        found = error(mine, other)
        note(name, found)
        assert found <= tolerance, f"{name}: {found:.3g} > {tolerance}"
        worst = max(worst, found)
    return worst


def _selected(value: Any, only: Tensor) -> Any:
    if isinstance(value, tuple):
        return tuple(_selected(item, only) for item in value)
    if isinstance(value, dict):
        return {name: _selected(item, only) for name, item in value.items()}
    if isinstance(value, Tensor) and only.ndim == 2 and value.ndim == 4 and value.shape[::2] == only.shape:  # logits of streams
        return value.transpose(1, 2)[only.bool()]
    if (
        isinstance(value, Tensor) and only.ndim == 2 and value.ndim == 3 and value.shape[1] % only.shape[1] == 0
    ):  # states of streams
        only = only.repeat(1, value.shape[1] // only.shape[1])
    for places in (only, only.flatten(0, -2)):  # choices are rows in layers
        if isinstance(value, Tensor) and value.ndim >= places.ndim and value.shape[: places.ndim] == places.shape:
            return value[places.bool()]
    return value


def whole_loss(output: Any) -> Tensor:
    """All that is trained on: two losses of one class, whose sum is left to its users; the answer where there is no loss."""
    if "predicted_depth" in output:
        return output.predicted_depth.square().sum()
    if "relevance_logits" in output:
        return (output.start_logits - output.end_logits).square().sum() + output.relevance_logits.square().sum()
    if "pooler_output" in output and "loss" not in output:
        return output.pooler_output.square().sum()
    for name in () if "loss" in output else ("text_embeds", "image_embeds"):
        if name in output:
            return output[name].square().sum()
    if "itm_score" in output:
        return output.itm_score.square().sum()
    if "loss" not in output:
        return output.logits.square().sum()
    return output.loss + output.mc_loss if "mc_loss" in output else output.loss


def doubled(values: Any) -> Any:
    """Numbers of float32 as float64, wherever they are."""
    if isinstance(values, dict):
        return {name: doubled(value) for name, value in values.items()}
    if isinstance(values, list):
        return [doubled(value) for value in values]
    return values.double() if isinstance(values, Tensor) and values.is_floating_point() else values


def in_double(theirs: Any, patch: pytest.MonkeyPatch, **inputs: Any) -> Any:
    """The reference's output, where what it computes in float32 stays in float64, but for angles, which ours are too."""
    narrow, cast, single = Tensor.float, Tensor.to, torch.float32

    def to(x: Tensor, *args: Any, **options: Any) -> Tensor:
        angles = options.get("dtype") == torch.float64 and "device" in options and x.is_floating_point()
        return cast(x, *args, **options | ({"dtype": single} if angles else {}))

    with patch.context() as inner, torch.no_grad():
        inner.setattr(torch, "float32", torch.float64)
        inner.setattr(torch, "float", torch.float64)
        inner.setattr(Tensor, "float", lambda x: x if x.dtype == torch.float64 else narrow(x))
        inner.setattr(Tensor, "to", to)
        return theirs(**inputs)


def noise_of(cls: type[Model], name: str, gradient: Tensor) -> float:
    """What a gradient of that name may differ by in float32, whatever its own size.

    The bias of scores among which a softmax chooses, a position or one of several choices, gets the sum of their probabilities less
    one, which is zero: what rounding leaves of it, for 16 scores at most 2**-25 each, in their probabilities and in sums of two orders.
    """
    chooses = cls.__name__.endswith(("MultipleChoice", "DoubleHeadsModel"))
    shared = gradient.numel() == 1 if chooses else "qa_outputs" in name and gradient.numel() <= 2
    return 2.0**-20 if shared else 0.0


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def check_config_file(cls: Any, values: dict[str, Any]) -> None:
    """A `config.json` means the same to both, and what ours writes the reference reads as its own."""
    import transformers

    theirs = getattr(transformers, cls.__name__).from_dict(dict(values))
    ours = cls.from_dict(dict(values))
    for name in ours.to_dict():
        if name not in ("transformers_version", "model_type") and hasattr(theirs, name):
            value, other = getattr(ours, name), getattr(theirs, name)
            other = list(other) if isinstance(other, tuple) else other
            assert value == other, name
    again = json.loads(type(theirs).from_dict(ours.to_dict()).to_json_string(use_diff=False))
    expected = json.loads(theirs.to_json_string(use_diff=False))
    assert {name: again.get(name) for name in expected} == expected
    back = cls.from_dict(theirs.to_dict())
    assert all(getattr(back, name) == getattr(ours, name) for name in ours.__dict__ if name != "_extra")


def check_steps(ours: Model, theirs: Any, inputs: dict[str, Tensor], **fixed: Tensor) -> None:
    """A prompt first and then token by token, each time with the cache: equal to the reference where tokens are real.

    `inputs` are cut into steps, but for their mask, which grows; `fixed` are the same at each step.
    """
    mask, caches = inputs["attention_mask"], [None, None]
    for start, end in ((0, 5), (5, 6), (6, 9)):
        part = {name: value[:, start:end] for name, value in inputs.items()} | fixed
        part |= {"attention_mask": mask[:, :end], "use_cache": True}
        with torch.no_grad():
            mine = ours(**part, past_key_values=caches[0], output_hidden_states=True)
            other = theirs(**part, past_key_values=caches[1], output_hidden_states=True)
        compare(mine, other, SINGLE, only=mask[:, start:end])
        caches = [mine.past_key_values, other.past_key_values]


def check_decoder(family: Family, cls: type[Model], *, pad: str) -> None:
    """A decoder that reads an encoder's states equals the reference at each step."""
    ours, theirs = pair(family, cls, attention="eager", **(family.decoder or {}), add_cross_attention=True)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(3, 5, family.tiny["hidden_size"], generator=generator)
    mask = (torch.arange(5) < torch.tensor([[5], [4], [2]])).long()
    check_steps(ours, theirs, batch(family, cls, pad=pad), encoder_hidden_states=states, encoder_attention_mask=mask)
