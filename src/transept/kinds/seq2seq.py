"""Encoder–decoders: a stack that reads one sequence, and one that writes another while it looks at the first.

Shapes: B batch, T' positions of the encoder, T of the decoder, S cached and new ones of the decoder, D hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.inputs import OF_DECODER, calling
from transept.core.model import Backbone
from transept.core.parts import Composed, Part
from transept.errors import InputError
from transept.kinds.text import TextBackbone
from transept.objectives.classification import IGNORED
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, LogitsOutput, Seq2SeqOutput


class Seq2SeqConfig(Config):
    """Decoding starts with ``decoder_start_token_id``; its first and last token may be forced to others."""

    is_encoder_decoder: bool = True
    is_decoder: bool = False
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | list[int] | None = None


class Stack(TextBackbone):
    """One half of an encoder–decoder, which can be called by itself."""

    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "encoder_hidden_states", "encoder_attention_mask"),
        *("past_key_values", "inputs_embeds", "labels", "use_cache"),
    )


class EncoderStack(Stack):
    """The half that reads: each position sees all."""


class DecoderStack(Stack):
    """The half that writes: each position sees those before it and the encoder's states."""

    causal = reads_encoder = True

    def infer_mask(self, ids: Tensor) -> Tensor | None:
        """None: padding may start the sequence, and at its end nothing real comes after it."""
        return None


def shifted(config: Config, ids: Tensor) -> Tensor:
    """(B, T) ids or labels -> (B, T): the start token before them, without the last; ignored labels become padding."""
    start, pad = config.decoder_start_token_id, config.pad_token_id
    if start is None or pad is None:
        name = "decoder_start_token_id" if start is None else "pad_token_id"
        raise InputError(f"the decoder's inputs cannot be made: `{name}` is not set.", hint=f"Set model.config.{name}.")
    moved = torch.cat([ids.new_full((ids.shape[0], 1), start), ids[:, :-1]], dim=1)
    return moved.masked_fill(moved == IGNORED, pad)


def shift_tokens_right(input_ids: Tensor, pad_token_id: int | None, decoder_start_token_id: int | None = None) -> Tensor:
    """The tokens that a decoder reads to write those of ``input_ids``: the start token first, -100 as padding.

    Without a start token it is the last one that is no padding, as in mBART.
    """
    if pad_token_id is None:
        raise InputError("`pad_token_id` is None.", hint="Pass the id of the padding token.")
    ids = input_ids.masked_fill(input_ids == IGNORED, pad_token_id)
    if decoder_start_token_id is None:
        start = ids.gather(1, (ids.ne(pad_token_id).sum(dim=1, keepdim=True) - 1).clamp(min=0))
    else:
        start = ids.new_full((ids.shape[0], 1), decoder_start_token_id)
    return torch.cat([start, ids[:, :-1]], dim=1)


class EncoderDecoderBackbone(Composed, Backbone):
    """An encoder of any kind and a text decoder without a task; the embeddings of tokens are the decoder's."""

    encoder_class: ClassVar[type[Backbone]]
    decoder_class: ClassVar[type[Stack]]
    shows: ClassVar[tuple[str, ...]] = ("output_attentions", "output_hidden_states")  # what both stacks may be asked for
    encoder: Backbone
    decoder: TextBackbone

    @classmethod
    def parts_of(cls, config: Config) -> tuple[Part, ...]:
        return Part("encoder", cls.encoder_class), Part("decoder", cls.decoder_class)

    @property
    def token_parts(self) -> tuple[str, ...]:
        return ("decoder",)

    def cache_matters(self, inputs: Mapping[str, Any]) -> bool:
        own = {name.removeprefix("decoder_"): value for name, value in inputs.items() if name.startswith("decoder_")}
        return self.decoder.cache_matters(own | {"past_key_values": inputs.get("past_key_values")})

    def shifted(self, ids: Tensor) -> Tensor:
        """What the decoder reads to write these ids, (B, T) with -100 for padding: the same, one position later."""
        return shifted(self.config, ids)

    _shift_right = shifted  # what the reference calls it

    def default_decoder_ids(self, ids: Tensor | None) -> Tensor:
        """What the decoder reads where the caller gives nothing; families that restore their inputs derive it from those."""
        what = f"{type(self).__name__} needs `decoder_input_ids` (or `decoder_inputs_embeds`)."
        raise InputError(what, hint="For training pass `labels` to a task model; for writing call generate().")

    def encode(self, inputs: dict[str, Any], asked: dict[str, Any]) -> tuple[BackboneOutput, Tensor | None]:
        """The encoder's output, of the ``inputs`` or given among them, and which of its states are real: (B, T'), or all.

        ``asked`` are the arguments that say what to record.
        """
        raise NotImplementedError

    def forward(self, decoder_input_ids: Tensor | None = None, return_dict: bool | None = None, **inputs: Any) -> Seq2SeqOutput:
        """Read one batch of inputs and decode another of sequences.

        Args:
            decoder_input_ids: (B, T), only new ones where there is a cache.
            return_dict: ``False`` for a tuple.
            inputs: more of what is in ``reads``: what the encoder takes, such as ids (B, T') with an ``attention_mask``
                (B, T'), 1 for real tokens. ``encoder_outputs`` is what the encoder gave for these inputs before; it does not
                run then. Embeddings are (B, T', D) and (B, T, D), and the decoder's mask (B, S), 1 for its real tokens, cached
                and new. ``past_key_values`` is a cache to go on from.
        """
        given = inputs.get
        if decoder_input_ids is None and given("decoder_inputs_embeds") is None:
            decoder_input_ids = self.default_decoder_ids(given("input_ids"))
        asked = {name: given(name) for name in self.shows} | {"return_dict": True}
        encoded, mask = self.encode(inputs, asked)
        decoder_inputs = {"encoder_hidden_states": encoded.last_hidden_state, "encoder_attention_mask": mask}
        decoder_inputs |= {name.removeprefix("decoder_"): given(name) for name in self.reads if name.startswith("decoder_")}
        decoder_inputs |= {name: given(name) for name in ("past_key_values", "use_cache")} | {"input_ids": decoder_input_ids}
        with calling(OF_DECODER):
            decoded = self.decoder(**decoder_inputs, **asked)
        output = self.joined(decoded, encoded)
        as_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        return output.to_tuple() if as_tuple else output  # type: ignore[return-value]

    def joined(self, decoded: BackboneOutput, encoded: BackboneOutput) -> Seq2SeqOutput:
        """The output, of those of both stacks."""
        return Seq2SeqOutput(last_hidden_state=decoded.last_hidden_state, **recorded(decoded, encoded))


# The stacks' tables of embeddings are the model's.
SHARED_TABLES = {f"{name}.embed_tokens.weight": "embed_tokens.weight" for name in ("encoder", "decoder")}


class Seq2SeqBackbone(EncoderDecoderBackbone):
    """From text to text; the tables of the stacks that share ``embed_tokens`` are tied to it.

    Without a name for it in ``names``, the stacks share none, and it is the encoder's.
    """

    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs"),
        *("past_key_values", "inputs_embeds", "decoder_inputs_embeds", "labels", "use_cache"),
    )
    # How a question and its context are put into one text for models that write answers; ``None`` where they are a pair.
    question_layout: ClassVar[str | None] = None
    encoder_reads: ClassVar[tuple[str, ...]] = ()  # what only the encoder takes, beside its ids, mask and embeddings
    names = Names({"shared": "embed_tokens", "encoder": "encoder", "decoder": "decoder"}, ties=SHARED_TABLES)
    encoder: TextBackbone

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if "embed_tokens" in self.names_of(config).table.values():
            self.embed_tokens = copy.deepcopy(self.encoder.embed_tokens)  # the same weights, once they are tied
        else:
            self.link("embed_tokens", self.encoder, "embed_tokens")

    # T' at most, and of the longest sequences that the model was made for; ``None`` where there is no end.
    max_positions = property(lambda self: self.encoder.max_positions)
    trained_positions = property(lambda self: self.encoder.trained_positions)

    @property
    def token_parts(self) -> tuple[str, ...]:
        return "encoder", "decoder"

    def embedding_table(self) -> nn.Module:
        return self.embed_tokens

    def replace_embedding_table(self, table: nn.Module) -> None:
        self.embed_tokens = table  # type: ignore[assignment]
        super().replace_embedding_table(table)

    def vocabulary_layers(self) -> list[nn.Module]:
        return [self.embed_tokens, *super().vocabulary_layers()]

    def encode(self, inputs: dict[str, Any], asked: dict[str, Any]) -> tuple[BackboneOutput, Tensor | None]:
        ids, mask, embeds, encoded = map(inputs.get, ("input_ids", "attention_mask", "inputs_embeds", "encoder_outputs"))
        if mask is None and ids is not None:
            mask = self.encoder.infer_mask(ids)  # the decoder needs it too
        if encoded is None:
            asked = asked | {name: inputs.get(name) for name in self.encoder_reads}
            encoded = self.encoder(input_ids=ids, attention_mask=mask, inputs_embeds=embeds, **asked)
        return as_output(encoded), mask


class SparseSeq2SeqOutput(Seq2SeqOutput):
    """The states of an encoder–decoder whose tokens choose experts: the routers' logits too, one a layer that has experts.

    ``loss_terms`` has what a loss says about them.
    """

    encoder_router_logits: tuple[Tensor, ...] | None = None
    decoder_router_logits: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class SparseSeq2SeqBackbone(Seq2SeqBackbone):
    """From text to text, by stacks that are :class:`~transept.kinds.experts.RoutedBackbone`."""

    shows = (*Seq2SeqBackbone.shows, "output_router_logits")

    @classmethod
    def options(cls) -> tuple[str, ...]:
        return (*super().options(), "output_router_logits")

    def joined(self, decoded: BackboneOutput, encoded: BackboneOutput) -> Seq2SeqOutput:
        output = SparseSeq2SeqOutput(**super().joined(decoded, encoded))
        for side, found in (("encoder", encoded), ("decoder", decoded)):
            output[f"{side}_router_logits"] = getattr(found, "router_logits", None)
            terms = getattr(found, "loss_terms", None) or {}
            output.loss_terms = (output.loss_terms or {}) | {f"{side}_{name}": term for name, term in terms.items()}
        return output


def as_output(encoded: BackboneOutput | tuple[Tensor, ...]) -> BackboneOutput:
    """An encoder's output, where a caller has it as a tuple of states, hidden states and attentions."""
    if isinstance(encoded, tuple | list):
        names = ("last_hidden_state", "hidden_states", "attentions")
        return BackboneOutput(**dict(zip(names, encoded)))  # type: ignore[arg-type]
    return encoded


def recorded(decoded: BackboneOutput | LogitsOutput, encoded: BackboneOutput) -> dict[str, Any]:
    """What both stacks recorded, and the decoder's cache, by the names that an encoder–decoder's output has for them."""
    sides, names = (("decoder", decoded), ("encoder", encoded)), ("hidden_states", "attentions")
    found = {f"{side}_{name}": getattr(output, name) for side, output in sides for name in names}
    found |= {name: getattr(decoded, name) for name in ("past_key_values", "cross_attentions")}
    found["encoder_global_attentions"] = getattr(encoded, "global_attentions", None)
    return found | {"encoder_last_hidden_state": encoded.last_hidden_state}


Seq2SeqB = TypeVar("Seq2SeqB", bound=EncoderDecoderBackbone)
