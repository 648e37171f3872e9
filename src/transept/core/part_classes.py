"""Classes of the parts of a family's models: to match, to build from a config, and to derive from.

A part has a class under the reference's name (``BertLayer``, ``BertSelfOutput``, ``LlamaMLP``), which families share. Called
with a config, such a class gives the part that a model with this config would have.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from transept.checkpoint.load import put
from transept.config.model import Config
from transept.core.auto import resolve
from transept.core.model import Model
from transept.errors import UnsupportedError, refuse
from transept.layers.links import Container, Step, attribute, links
from transept.layers.rotary import RotaryTables

# What the name of a class ends in -> where a model may have such a part: the end of the model's name, and a path of attributes,
# of which "@" is a layer.
_LAYERS, _ATTENTION = (("Model", "@"),), (("Model", "@.attention"), ("Model", "@.self_attn"))
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    **dict.fromkeys(("Layer", "EncoderLayer", "DecoderLayer", "Block", "TransformerBlock"), _LAYERS),
    "Attention": _ATTENTION,
    "SelfAttention": (("Model", "@.attention.self"), ("Model", "@.attention.attn"), *_ATTENTION),
    "SelfOutput": (("Model", "@.attention.output"),),
    "Intermediate": (("Model", "@.intermediate"),),
    "Output": (("Model", "@.output"),),
    **dict.fromkeys(("MLP", "FFN", "FeedForward"), (("Model", "@.mlp"),)),
    "Encoder": (("Model", "encoder"), ("Model", "text_model.encoder")),
    "Transformer": (("Model", "transformer"),),
    "Embeddings": (("Model", "embeddings"),),
    "TextEmbeddings": (("Model", "embeddings"), ("Model", "text_model.embeddings")),
    "VisionEmbeddings": (("Model", "embeddings"), ("Model", "vision_model.embeddings")),
    "PatchEmbeddings": (("Model", "embeddings.patch_embeddings"),),
    "Pooler": (("Model", "pooler"),),
    "RMSNorm": (("Model", "norm"),),
    "RotaryEmbedding": (("Model", "rotary_emb"),),
    "LayerSelfAttention": (("Model", "@.layer.0"),),
    "LayerFF": (("Model", "@.layer.1"),),
    "DenseActDense": (("Model", "@.mlp"),),
    "DenseGatedActDense": (("Model", "@.mlp"),),
    "LMPredictionHead": (("ForMaskedLM", "cls.predictions"),),
    "OnlyMLMHead": (("ForMaskedLM", "cls"),),
    "PredictionHeadTransform": (("ForMaskedLM", "cls.predictions.transform"),),
    "OnlyNSPHead": (("ForNextSentencePrediction", "cls"),),
    "PreTrainingHeads": (("ForPreTraining", "cls"),),
    "LMHead": (("ForMaskedLM", "lm_head"),),
    "ClassificationHead": (("ForSequenceClassification", "classifier"),),
    "DiscriminatorPredictions": (("ForPreTraining", "discriminator_predictions"),),
    "GeneratorPredictions": (("ForMaskedLM", "generator_predictions"),),
}


class PartClass(type):
    """Of classes under the reference's names: instances are all modules of the class that computes such a part."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "kind" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        if any(isinstance(value, Config) for value in (*args, *kwargs.values())):
            return cls.taken(args, kwargs)[1]
        return cls.__dict__["kind"](*args, **kwargs)

    def __setattr__(cls, name: str, value: Any) -> None:
        what = f"{cls.__name__} is shared by families and layers, and `{name}` cannot be replaced for all of them."
        hint = f"Give `{name}` to the modules of your model, or put your own in their places."
        refuse("kind" in cls.__dict__ and not name.startswith("__"), what, hint, UnsupportedError)
        super().__setattr__(name, value)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__dict__.get("kind", ())) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__dict__.get("kind", ())) or super().__subclasscheck__(other)

    def taken(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Model, nn.Module]:
        """A new part with the arguments of its constructor, the config and the number of the layer; and the model around it."""
        given: list[Any] = [*args, *kwargs.values()]
        config = next(value for value in given if isinstance(value, Config))
        index = kwargs.get("layer_idx", next((value for value in args if type(value) is int), None)) or 0
        found = find(config, cls.part, min(index, getattr(config, "num_hidden_layers", 1) - 1))  # type: ignore[attr-defined]
        if found is None:
            raise UnsupportedError(f"a model with this {type(config).__name__} has no part {cls.part!r}.")  # type: ignore[attr-defined]
        model, part = found
        if PLACES[cls.part][0][1].startswith("@") and not kwargs.get("has_relative_attention_bias"):  # type: ignore[attr-defined]
            for module in part.modules():  # the first layer has the biases for all
                module._modules.pop("relative_attention_bias", None)
        if (device := torch.get_default_device()).type != "meta":
            tensors = (*part.named_parameters(remove_duplicate=False), *part.named_buffers(remove_duplicate=False))
            made: dict[int, Any] = {}
            for name, tensor in tensors:
                put(part, name, made.setdefault(id(tensor), torch.empty_like(tensor, device=device)))
            for module in part.modules():
                model._init_weights(module)
        return model, part


def derived_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """The constructor of classes that are derived from a part's: it becomes the part that a model would have."""
    nn.Module.__init__(self)
    made: Any = next(base for base in type(self).__mro__ if "kind" in base.__dict__)
    if not any(isinstance(value, Config) for value in (*args, *kwargs.values())):
        made.kind.__init__(self, *args, **kwargs)
        return
    model, part = made.taken(args, kwargs)
    self.__dict__.update(part.__dict__)
    for module in [*model.modules(), self]:
        for name, (holder, key) in links(module).items():
            if holder is part:
                module.link(name, self, key)
        if isinstance(module, Step) and module.owner is part:
            module.__dict__["owner"] = self
        for key, child in module._modules.items():
            if child is part:
                module._modules[key] = self


def find(config: Config, kind: str, index: int = 0) -> tuple[Model, nn.Module] | None:
    """A model with a config, without memory, and the part of that kind in it; ``None`` where there is none of one kind."""
    for task, path in PLACES[kind]:
        try:
            model = resolve(config.model_type, task, *(("",) if task == "Model" else ()))._without_memory(config, {})
        except UnsupportedError:
            continue
        if path.partition(".")[0] != "@":
            parts = [attribute(model, path, None)]
        else:
            stacks = model.stacks
            if config.is_encoder_decoder:
                stacks = stacks[-1:] if kind == "DecoderLayer" else stacks[:1]
            lists: list[list[Any]] = [list(getattr(stack, "layers", ()))[index : index + 1] for stack in stacks]
            layers = [layer[0] for layer in lists if layer]
            if any(type(child) is nn.ModuleList for layer in layers for child in layer.children()):  # stages
                return None
            parts = [attribute(layer, path.removeprefix("@").removeprefix("."), None) for layer in layers]
        parts = [part for part in parts if _computes(part)]
        if parts and len({type(part) for part in parts}) == 1:
            return model, parts[0]
    return None


def _computes(part: Any) -> bool:
    if isinstance(part, RotaryTables):
        return True
    if not isinstance(part, nn.Module) or next(part.parameters(), None) is None:
        return False
    return isinstance(part, Step) or not isinstance(part, Container | nn.ModuleList)


@cache
def part_class(kind: str, config_class: type[Config]) -> type[nn.Module] | None:
    """The class of a family's parts of a kind, a name of ``PLACES``; ``None`` where it has none, or several kinds of them."""
    if kind not in PLACES or (found := find(config_class(), kind)) is None:
        return None
    own = type(found[1])
    body = {"kind": own, "part": kind, "__init__": derived_init, "__module__": own.__module__, "__doc__": own.__doc__}
    made: Any = PartClass(own.__name__, (own,), body)
    return made  # type: ignore[no-any-return]
