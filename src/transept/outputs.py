"""What models return: dataclasses whose values are reached as attributes, by key or by index.

Fields that are ``None`` do not exist for keys and indices, so that ``outputs[0]`` is the loss when labels were given and the
logits when not. ``loss_terms`` stands outside: an attribute only.

Shapes: B batch, T positions, D hidden size, V vocabulary, C classes, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

import torch.utils._pytree as pytree
from torch import Tensor

from transept.objectives.terms import LossTerm

if TYPE_CHECKING:
    from transept.layers.cache import Cache

_OUTSIDE = frozenset({"loss_terms"})
_RECORDED = (
    *("past_key_values", "mems", "hidden_states", "attentions", "cross_attentions", "router_logits"),
    *("decoder_hidden_states", "decoder_attentions"),
    *("encoder_last_hidden_state", "encoder_hidden_states", "encoder_attentions"),
)


@dataclass_transform(eq_default=False)
class ModelOutput:
    """Base of all outputs; a subclass is a dataclass by being defined. ``first`` are fields that stand before all others.

    ``cache_name`` is what the cache is called among the keys.
    """

    names: ClassVar[tuple[str, ...]] = ()
    cache_name: ClassVar[str] = "past_key_values"

    def __init_subclass__(cls, first: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(eq=False)(cls)
        cls.names = tuple(dict.fromkeys((*first, *(field.name for field in fields(cls)))))  # type: ignore[arg-type]
        pytree.register_pytree_node(
            cls,
            _flatten,
            _Unflatten(cls),
            flatten_with_keys_fn=_flatten_with_keys,
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        )

    def complete(self, states: ModelOutput) -> None:
        """Take over what a backbone recorded, where this output has a place for it."""
        for name in _RECORDED:
            if name in self.names and name in states.names:
                setattr(self, name, getattr(states, name))

    def to_tuple(self) -> tuple[Any, ...]:
        """The values that are not ``None``, in order."""
        return tuple(value for _, value in self.items())

    def items(self) -> list[tuple[str, Any]]:
        """Pairs of name and value, without those that are ``None``."""
        found = ((name, getattr(self, name)) for name in self.names if name not in _OUTSIDE)
        shown = {"past_key_values": self.cache_name}
        return [(shown.get(name, name), value) for name, value in found if value is not None]

    def keys(self) -> list[str]:
        """Names of the values that are not ``None``."""
        return [name for name, _ in self.items()]

    def values(self) -> list[Any]:
        """The values that are not ``None``."""
        return [value for _, value in self.items()]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of that name, or ``default``."""
        return dict(self.items()).get(name, default)

    def __getitem__(self, key: str | int | slice) -> Any:
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.items())


class _Unflatten:
    """Rebuilds an output of one class; an object and not a closure, so that it pickles with exported programs."""

    def __init__(self, cls: type[ModelOutput]) -> None:
        self.cls = cls

    def __call__(self, values: Any, names: Any) -> ModelOutput:
        return self.cls(**dict(zip(names, values, strict=True)))


def _flatten(output: ModelOutput) -> tuple[list[Any], list[str]]:
    names = [name for name in output.names if getattr(output, name) is not None]
    return [getattr(output, name) for name in names], names


def _flatten_with_keys(output: ModelOutput) -> tuple[list[tuple[Any, Any]], list[str]]:
    values, names = _flatten(output)
    return [(pytree.GetAttrKey(name), value) for name, value in zip(names, values, strict=True)], names


class BackboneOutput(ModelOutput):
    """A backbone's states.

    Shapes: ``last_hidden_state`` (B, T, D); ``pooler_output`` (B, D); ``hidden_states`` one (B, T, D) for the embeddings
    and for each layer; ``attentions`` and ``cross_attentions`` one (B, H, T, S) a layer.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None


class LogitsOutput(ModelOutput):
    """A task's logits: (B, C), (B, T, C) or (B, T, V)."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class SparseOutput(BackboneOutput):
    """A backbone's states where tokens choose experts: ``router_logits``, one (B * T, experts) a layer that has them.

    ``loss_terms`` has how evenly they choose.
    """

    router_logits: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class SparseLogitsOutput(LogitsOutput, first=("loss", "aux_loss")):
    """Logits, and how evenly experts were chosen: ``aux_loss``, before it is weighted into the loss."""

    aux_loss: Tensor | None = None
    router_logits: tuple[Tensor, ...] | None = None


class _Recurrent:
    """Of outputs whose cache is known as ``cache_params``, too."""

    cache_name = "cache_params"
    past_key_values: Cache | None

    @property
    def cache_params(self) -> Cache | None:
        """The cache."""
        return self.past_key_values


class _Hashed:
    """Of outputs whose cache is known as ``past_buckets_states``, too."""

    cache_name = "past_buckets_states"
    past_key_values: Cache | None

    @property
    def past_buckets_states(self) -> Cache | None:
        """The cache."""
        return self.past_key_values


class RecurrentOutput(_Recurrent, BackboneOutput):
    """A backbone's states where layers keep one of their own."""


class RecurrentLogitsOutput(_Recurrent, LogitsOutput):
    """Logits where layers keep a state of their own."""


class HashedOutput(_Hashed, BackboneOutput):
    """A backbone's states where layers keep the buckets of keys."""


class HashedLogitsOutput(_Hashed, LogitsOutput):
    """Logits where layers keep the buckets of keys."""


class MemoryOutput(BackboneOutput, first=("last_hidden_state", "mems")):
    """A backbone's states where layers look back at those of earlier segments: ``mems``, one (M, B, D) a layer."""

    mems: tuple[Tensor, ...] | None = None


class MemoryLogitsOutput(LogitsOutput, first=("loss", "logits", "mems")):
    """Logits, and what is remembered for the next segment: ``mems``, one (M, B, D) a layer."""

    mems: tuple[Tensor, ...] | None = None


class QuestionAnsweringOutput(ModelOutput):
    """Start and end logits, (B, T) each."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class MemoryQuestionAnsweringOutput(QuestionAnsweringOutput, first=("loss", "start_logits", "end_logits", "mems")):
    """Start and end logits, (B, T) each, and what is remembered for the next segment."""

    mems: tuple[Tensor, ...] | None = None


class BeamQuestionAnsweringOutput(ModelOutput):
    """The likeliest starts (B, N), for each of them the likeliest ends, (B, M * N) with those of one rank side by side, and
    ``cls_logits`` (B): how likely it is that there is no answer. Probabilities are no logarithms, whatever their name.
    """

    loss: Tensor | None = None
    start_top_log_probs: Tensor | None = None
    start_top_index: Tensor | None = None
    end_top_log_probs: Tensor | None = None
    end_top_index: Tensor | None = None
    cls_logits: Tensor | None = None
    mems: tuple[Tensor, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class PreTrainingOutput(ModelOutput):
    """BERT's two objectives: ``prediction_logits`` (B, T, V) and ``seq_relationship_logits`` (B, 2)."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class DoubleHeadsOutput(ModelOutput):
    """Next tokens, ``logits`` (B, N, T, V), and choices, ``mc_logits`` (B, N), each with its own loss."""

    loss: Tensor | None = None
    mc_loss: Tensor | None = None
    logits: Tensor | None = None
    mc_logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class AudioOutput(ModelOutput):
    """An audio backbone's states: ``extract_features`` (B, T, C) are those of its convolutions, before the layers."""

    last_hidden_state: Tensor
    extract_features: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class ReconstructionOutput(ModelOutput):
    """Images painted anew: ``reconstruction`` (B, channels, height, width)."""

    loss: Tensor | None = None
    reconstruction: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class XVectorOutput(ModelOutput):
    """Who speaks: ``embeddings`` (B, E) to compare recordings by, ``logits`` (B, E) that the loss is computed from."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    embeddings: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class ContrastiveOutput(ModelOutput):
    """States and quantized features in one space, (B, T, P) each, and the perplexity of the codebooks' use."""

    loss: Tensor | None = None
    projected_states: Tensor | None = None
    projected_quantized_states: Tensor | None = None
    codevector_perplexity: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    contrastive_loss: Tensor | None = None
    diversity_loss: Tensor | None = None
    loss_terms: dict[str, LossTerm] | None = None


class Seq2SeqOutput(ModelOutput):
    """The states of an encoder–decoder: ``last_hidden_state`` (B, T, D) is the decoder's.

    Of the decoder: ``decoder_hidden_states``, ``decoder_attentions`` (B, H, T, T) and ``cross_attentions`` (B, H, T, T');
    of the encoder: ``encoder_last_hidden_state`` (B, T', D), ``encoder_hidden_states`` and ``encoder_attentions``.
    """

    last_hidden_state: Tensor
    past_key_values: Cache | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None


class Seq2SeqLogitsOutput(ModelOutput):
    """An encoder–decoder's logits, (B, T, V) or (B, C), and what its stacks recorded."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class Seq2SeqQuestionAnsweringOutput(ModelOutput):
    """An encoder–decoder's start and end logits, (B, T) each, and what its stacks recorded."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    past_key_values: Cache | None = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None
