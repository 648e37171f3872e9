"""What models return: dictionaries whose values are also reached as attributes and by index.

Fields that are ``None`` do not exist for keys and indices, so that ``outputs[0]`` is the loss when labels were given and the
logits when not. ``loss_terms`` stands outside: an attribute only.

Shapes: B batch, T positions, D hidden size, V vocabulary, C classes, H heads.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

import torch.utils._pytree as pytree
from torch import Tensor

from transept.errors import InputTypeError, MissingNameError, nearest
from transept.objectives.terms import LossTerm

if TYPE_CHECKING:
    from transept.layers.caches.cache import Cache

_OUTSIDE = frozenset({"loss_terms"})
_CACHE = "past_key_values"
# The order of what outputs share: losses before a class's own fields, what a backbone recorded after them.
_LOSSES = ("loss", "aux_loss", "mc_loss")
RECORDED = (
    *("mems", _CACHE, "hidden_states", "hidden_states_ngram", "entity_hidden_states", "decoder_hidden_states"),
    *("decoder_ngram_hidden_states", "attentions", "ngram_attentions", "global_attentions", "decoder_attentions"),
    *("decoder_ngram_attentions", "decoder_router_logits", "cross_attentions", "reshaped_hidden_states"),
    *("encoder_last_hidden_state", "encoder_hidden_states", "encoder_attentions", "encoder_global_attentions"),
    *("encoder_router_logits", "router_logits", "image_hidden_states"),
)
_AFTER = (*RECORDED, "contrastive_loss", "diversity_loss")


@dataclass_transform(eq_default=False, kw_only_default=True)
class ModelOutput(dict[str, Any]):
    """Base of all outputs; a subclass declares its fields by annotations.

    An output is made of values by name, of values in the order of the fields, of one mapping, or of pairs of name and value,
    as ``torch.nn.DataParallel`` passes. A subclass is defined with ``cache``, what its cache is called among the keys (and as
    an attribute, beside ``past_key_values``). It is a dataclass already, and may be decorated as one again.
    """

    names: ClassVar[tuple[str, ...]] = ()
    cache_name: ClassVar[str] = _CACHE
    _ranks: ClassVar[dict[str, int]] = {}
    _order: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, cache: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Keywords alone, so that fields without a default may stand anywhere; constructors in the class's own body are kept.
        dataclass(eq=False, init=False, kw_only=True)(cls)
        if "__init__" not in cls.__dict__:
            type.__setattr__(cls, "__init__", ModelOutput.__init__)
        declared = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        defaults = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]
        cls.names = tuple(sorted(declared, key=lambda name: cls._ranks.get(name, 0)))
        cls.cache_name = cache or cls.cache_name
        cls._order = tuple(cls._key(name) for name in cls.names if name not in _OUTSIDE)
        for name in {*cls.names, cls.cache_name} - _OUTSIDE:
            setattr(cls, name, _Stored(cls._key(name), defaults.get(name)))
        more: Any = {"flatten_with_keys_fn": _flatten_with_keys, "serialized_type_name": f"{cls.__module__}.{cls.__qualname__}"}
        pytree.register_pytree_node(cls, _flatten, lambda values, names: cls(**dict(zip(names, values, strict=True))), **more)

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__()
        if len(values) == 1 and not named and not isinstance(values[0], Tensor) and values[0] is not None:
            given = dict(values[0])
        else:
            given = {**dict(zip(self.names, values, strict=False)), **named}
            for name in named:
                if name not in self.names and name != self.cache_name:
                    raise InputTypeError(f"{type(self).__name__} has no field {name!r}.", hint=nearest(name, self.names))
        if _CACHE in given and self.cache_name != _CACHE:
            given[self.cache_name] = given.pop(_CACHE)
        for key in self._order:  # in this order nothing has to be moved
            if given.get(key) is not None:
                super().__setitem__(key, given[key])
        for key in given.keys() - set(self._order):
            self[key] = given[key]
        self.__post_init__()

    def __post_init__(self) -> None:
        """Nothing: what subclasses do beside, once the values are there."""

    @classmethod
    def _key(cls, name: str) -> str:
        return cls.cache_name if name == _CACHE else name

    def complete(self, states: ModelOutput) -> None:
        """Take over what a backbone recorded, where this output has a place for it."""
        for name in RECORDED:
            if name in self.names and name in states.names:
                self[name] = states.get(states._key(name))  # PyTorch 2.11 loses attributes that it compiles

    def to_tuple(self) -> tuple[Any, ...]:
        """The values that are not ``None``, in order."""
        return tuple(self.values())

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _OUTSIDE:
            setattr(self, key, value)
            return
        key = self._key(key)
        if value is None:
            self.pop(key, None)
            return
        new = key not in self
        super().__setitem__(key, value)
        if new and key in self._order:  # keys stand in the order of the fields, whenever they are set
            for later in self._order[self._order.index(key) + 1 :]:
                if later in self:
                    super().__setitem__(later, self.pop(later))


class _Stored(property):
    """A field as an attribute: its value is stored in the dictionary alone. The class shows its default, as dataclasses ask."""

    def __init__(self, key: str, default: Any) -> None:
        super().__init__(lambda output: output.get(key), lambda output, value: output.__setitem__(key, value))
        self.default = default

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None and self.default is MISSING:
            raise MissingNameError("the field has no default.")
        return self.default if instance is None else super().__get__(instance, owner)


def _flatten(output: ModelOutput) -> tuple[list[Any], list[str]]:
    names = [name for name in output.names if getattr(output, name) is not None]
    return [getattr(output, name) for name in names], names


def _flatten_with_keys(output: ModelOutput) -> tuple[list[tuple[Any, Any]], list[str]]:
    values, names = _flatten(output)
    return [(pytree.GetAttrKey(name), value) for name, value in zip(names, values, strict=True)], names


class _Ordered(ModelOutput):
    """Fields that several outputs share stand in one order, wherever they are declared."""

    _ranks = {name: place for names, first in ((_LOSSES, -3), (_AFTER, 1)) for place, name in enumerate(names, first)}


class _States(_Ordered):
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class _Loss(_Ordered):
    loss: Tensor | None = None
    loss_terms: dict[str, LossTerm] | None = None


class _Stacks(_Ordered):
    past_key_values: Cache | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    encoder_global_attentions: tuple[Tensor, ...] | None = None


class BackboneOutput(_States):
    """A backbone's states.

    Shapes: ``last_hidden_state`` (B, T, D); ``pooler_output`` (B, D); ``hidden_states`` one (B, T, D) for the embeddings
    and for each layer; ``attentions`` and ``cross_attentions`` one (B, H, T, S) a layer.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None
    past_key_values: Cache | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


class FeatureMapOutput(_States):
    """Feature maps (B, C, H, W) of some stages, from the first on."""

    feature_maps: tuple[Tensor, ...]


class LogitsOutput(_Loss, _States):
    """A task's logits: (B, C), (B, T, C) or (B, T, V)."""

    logits: Tensor | None = None
    past_key_values: Cache | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


class GridOutput(BackboneOutput):
    """A backbone's states over grids: ``reshaped_hidden_states`` are the hidden states as maps (B, D, H, W)."""

    reshaped_hidden_states: tuple[Tensor, ...] | None = None


class GridLogitsOutput(LogitsOutput):
    """Logits (B, C), and the hidden states as maps."""

    reshaped_hidden_states: tuple[Tensor, ...] | None = None


class PictureTextOutput(BackboneOutput):
    """A text model's states where texts hold pictures: ``image_hidden_states`` (N, D) are the features of all pictures."""

    image_hidden_states: Tensor | None = None


class PictureTextLogitsOutput(LogitsOutput):
    """Logits (B, T, V), and the features (N, D) of all pictures."""

    image_hidden_states: Tensor | None = None


class SparseOutput(BackboneOutput):
    """A backbone's states where tokens choose experts: ``router_logits``, one (B * T, experts) a layer that has them.

    ``loss_terms`` has how evenly they choose.
    """

    router_logits: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class SparseLogitsOutput(LogitsOutput):
    """Logits, and how evenly experts were chosen: ``aux_loss``, before it is weighted into the loss."""

    aux_loss: Tensor | None = None
    router_logits: tuple[Tensor, ...] | None = None


class RecurrentOutput(BackboneOutput, cache="cache_params"):
    """A backbone's states where layers keep one of their own."""


class RecurrentLogitsOutput(LogitsOutput, cache="cache_params"):
    """Logits where layers keep a state of their own."""


class HashedOutput(BackboneOutput, cache="past_buckets_states"):
    """A backbone's states where layers keep the buckets of keys."""


class HashedLogitsOutput(LogitsOutput, cache="past_buckets_states"):
    """Logits where layers keep the buckets of keys."""


class MemoryOutput(BackboneOutput):
    """A backbone's states where layers look back at those of earlier segments: ``mems``, one (M, B, D) a layer."""

    mems: tuple[Tensor, ...] | None = None


class MemoryLogitsOutput(LogitsOutput):
    """Logits, and what is remembered for the next segment: ``mems``, one (M, B, D) a layer."""

    mems: tuple[Tensor, ...] | None = None


class QuestionAnsweringOutput(_Loss, _States):
    """Start and end logits, (B, T) each."""

    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    past_key_values: Cache | None = None


class MemoryQuestionAnsweringOutput(QuestionAnsweringOutput):
    """Start and end logits, (B, T) each, and what is remembered for the next segment."""

    mems: tuple[Tensor, ...] | None = None


class BeamQuestionAnsweringOutput(_Loss, _States):
    """The likeliest starts (B, N), for each of them the likeliest ends, (B, M * N) with those of one rank side by side, and
    ``cls_logits`` (B): how likely it is that there is no answer. Probabilities are no logarithms, whatever their name.
    """

    start_top_log_probs: Tensor | None = None
    start_top_index: Tensor | None = None
    end_top_log_probs: Tensor | None = None
    end_top_index: Tensor | None = None
    cls_logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None


class PreTrainingOutput(_Loss, _States):
    """BERT's two objectives: ``prediction_logits`` (B, T, V) and ``seq_relationship_logits`` (B, 2)."""

    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None


class DoubleHeadsOutput(_Loss, _States):
    """Next tokens, ``logits`` (B, N, T, V), and choices, ``mc_logits`` (B, N), each with its own loss."""

    mc_loss: Tensor | None = None
    logits: Tensor | None = None
    mc_logits: Tensor | None = None
    past_key_values: Cache | None = None


class AudioOutput(_States):
    """An audio backbone's states: ``extract_features`` (B, T, C) are those of its convolutions, before the layers."""

    last_hidden_state: Tensor
    extract_features: Tensor | None = None


class ReconstructionOutput(_Loss, _States):
    """Images painted anew: ``reconstruction`` (B, channels, height, width)."""

    reconstruction: Tensor | None = None


class GridReconstructionOutput(ReconstructionOutput):
    """The same, and the hidden states as maps (B, D, H, W)."""

    reshaped_hidden_states: tuple[Tensor, ...] | None = None


class DistilledOutput(_States):
    """Logits (B, C) of a class token and of a distillation token, and as ``logits`` their mean."""

    logits: Tensor | None = None
    cls_logits: Tensor | None = None
    distillation_logits: Tensor | None = None


class DepthOutput(_Loss, _States):
    """Depths (B, H, W) of pixels."""

    predicted_depth: Tensor | None = None


class XVectorOutput(_Loss, _States):
    """Who speaks: ``embeddings`` (B, E) to compare recordings by, ``logits`` (B, E) that the loss is computed from."""

    logits: Tensor | None = None
    embeddings: Tensor | None = None


class ContrastiveOutput(_Loss, _States):
    """States and quantized features in one space, (B, T, P) each, and the perplexity of the codebooks' use."""

    projected_states: Tensor | None = None
    projected_quantized_states: Tensor | None = None
    codevector_perplexity: Tensor | None = None
    contrastive_loss: Tensor | None = None
    diversity_loss: Tensor | None = None


class Seq2SeqOutput(_Stacks):
    """The states of an encoder–decoder: ``last_hidden_state`` (B, T, D) is the decoder's.

    Of the decoder: ``decoder_hidden_states``, ``decoder_attentions`` (B, H, T, T) and ``cross_attentions`` (B, H, T, T');
    of the encoder: ``encoder_last_hidden_state`` (B, T', D), ``encoder_hidden_states`` and ``encoder_attentions``.
    """

    last_hidden_state: Tensor


class DetectionModelOutput(Seq2SeqOutput):
    """The states of a detector; ``intermediate_hidden_states`` (layers, B, Q, D) are the normed ones of all its layers."""

    intermediate_hidden_states: Tensor | None = None


class DetectionOutput(_Loss, _Stacks):
    """What was found: logits (B, Q, K + 1), boxes (B, Q, 4), masks (B, Q, H, W), and the states (B, Q, D) that they come from.

    ``loss_dict`` shows the parts of the loss, and ``auxiliary_outputs`` the logits and boxes of each layer but the last.
    """

    loss_dict: dict[str, Tensor] | None = None
    logits: Tensor | None = None
    pred_boxes: Tensor | None = None
    pred_masks: Tensor | None = None
    auxiliary_outputs: list[dict[str, Tensor]] | None = None
    last_hidden_state: Tensor | None = None


class Seq2SeqLogitsOutput(_Loss, _Stacks):
    """An encoder–decoder's logits, (B, T, V) or (B, C), and what its stacks recorded."""

    logits: Tensor | None = None


class Seq2SeqQuestionAnsweringOutput(_Loss, _Stacks):
    """An encoder–decoder's start and end logits, (B, T) each, and what its stacks recorded."""

    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
