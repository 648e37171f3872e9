"""Pairs of an encoder of any kind and a text decoder, two models with checkpoints of their own (Rothe et al. 2020).

The decoder is a task model that predicts the next token and has cross-attention, such as BERT's with ``add_cross_attention``.
Shapes: B batch, T' states of the encoder, T positions of the decoder, D hidden size.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from transept.config.fields import specs
from transept.config.model import Config
from transept.core.auto import read_config
from transept.core.inputs import OF_DECODER, calling
from transept.core.model import Backbone, Model
from transept.core.parts import Composed, CompositeConfig, Part, resolved
from transept.core.task import TaskModel, wants_loss_alone
from transept.errors import InputError
from transept.generation.generate import Generates
from transept.kinds.seq2seq import Seq2SeqConfig, as_output, recorded, shifted
from transept.kinds.text import TextBackbone
from transept.layers.caches.cache import Cache
from transept.objectives.classification import Unscored, counted, cross_entropy
from transept.objectives.terms import Items, total
from transept.outputs import BackboneOutput, Seq2SeqLogitsOutput
from transept.storage.source import take_source_options


class PairConfig(Seq2SeqConfig, CompositeConfig):
    """Settings of a pair: ``encoder`` and ``decoder`` are configs, or what their files hold."""

    encoder: Config | None = None
    decoder: Config | None = None

    @classmethod
    def from_encoder_decoder_configs(cls, encoder_config: Config, decoder_config: Config, **settings: Any) -> Self:
        """The config of a pair, whose decoder reads an encoder; the given ones stay as they are."""
        return cls(encoder=encoder_config.with_settings(), decoder=_role(decoder_config, decoder=True), **settings)


def _role(config: Config, *, decoder: bool) -> Config:
    names = {"is_decoder", "add_cross_attention"}  # a decoder of any family says so, as in files of the reference
    names = names if decoder else names & specs(type(config)).keys()
    return config.with_settings(**dict.fromkeys(names, decoder))


class Pair(Generates, Composed):
    """An encoder and a decoder in one, built from a config, from both models, or from all three.

    The ``encoder`` is a backbone of the kind ``encoder_class``, the ``decoder`` a task model that predicts the next token and
    has cross-attention. A family says what stands in front, and what it takes, in ``reads``.

    Raises:
        InputError: neither a config nor both models, or models that cannot play these parts.
    """

    config_class: ClassVar[type[PairConfig]]
    encoder_class: ClassVar[type[Backbone]]
    parts = (
        Part("encoder", resolved("Model", "GenerationEncoder"), "encoder"),
        Part("decoder", resolved("ForCausalLM", "LMHeadModel", "GenerationDecoder"), "decoder"),
    )
    passes_on = True
    config: PairConfig
    encoder: Backbone
    decoder: TaskModel[TextBackbone]

    def __init__(self, config: PairConfig | None = None, encoder: Model | None = None, decoder: Model | None = None) -> None:
        if config is None:
            if encoder is None or decoder is None:
                raise InputError("an encoder–decoder is built from a config, or from an encoder and a decoder.")
            config = self.config_class(encoder=encoder.config, decoder=decoder.config)
        super().__init__(config, encoder=encoder, decoder=decoder)
        config.encoder, config.decoder = self.encoder.config, self.decoder.config
        self._check_parts()
        self.enc_to_dec_proj = self._projection()

    def _check_parts(self) -> None:
        encoder: Any = self.encoder
        decoder: Any = self.decoder
        if not isinstance(encoder, self.encoder_class):
            hint = f"Use a model of the kind {self.encoder_class.__name__}, without a head."
            raise InputError(f"{type(encoder).__name__} is no encoder by itself here.", hint=hint)
        if not isinstance(decoder, TaskModel) or decoder.get_output_embeddings() is None:
            raise InputError(f"{type(decoder).__name__} predicts no next token.", hint="Use one such as BertLMHeadModel.")
        if not decoder.backbone.reads_encoder:
            hint = "Set `add_cross_attention` in its config; families without that setting cannot be decoders here."
            raise InputError(f"{type(decoder).__name__} has no cross-attention to read an encoder with.", hint=hint)

    def _projection(self) -> nn.Module:
        """What makes the encoder's states as wide as the decoder's, unless that reads states of another width than its own."""
        given, wide = self.encoder.dim, self.decoder.backbone.dim
        read = getattr(self.decoder.config, "cross_attention_hidden_size", None)
        if read is not None and read != given:
            what = f"`cross_attention_hidden_size` of the decoder is {read}, but the encoder's states have {given}."
            raise InputError(what, hint="Set it to that size, or to None for a projection between the two.")
        return nn.Identity() if given in (wide, read) else nn.Linear(given, wide)

    @classmethod
    def from_encoder_decoder_pretrained(
        cls,
        encoder_pretrained_model_name_or_path: str | os.PathLike[str] | None = None,
        decoder_pretrained_model_name_or_path: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """A pair of two checkpoints, in evaluation mode; layers that a decoder lacks to read an encoder are new.

        Each is a directory or repository; or pass ``encoder_model`` or ``decoder_model``. Options that start with ``encoder_``
        or ``decoder_`` are for that model's ``from_pretrained``, others are settings of the pair, as is
        ``decoder_start_token_id``.

        Raises:
            InputError: a model that is neither named nor given.
        """
        start = {name: options.pop(name) for name in ("decoder_start_token_id",) if name in options}
        models: dict[str, Any] = {}
        places = {"encoder": encoder_pretrained_model_name_or_path, "decoder": decoder_pretrained_model_name_or_path}
        for half, place in places.items():
            theirs = [name for name in options if name.startswith(f"{half}_")]
            given = {name.removeprefix(f"{half}_"): options.pop(name) for name in theirs}
            models[half] = given.pop("model", None)
            if models[half] is None and place is None:
                raise InputError(f"no {half} was named.", hint=f"Pass where it is, or `{half}_model`.")
            models[half] = models[half] or cls._loaded(place, half, given)
        configs = {half: model.config for half, model in models.items()}
        return cls(cls.config_class(**configs, **start, **options), **models).eval()

    @classmethod
    def _loaded(cls, place: Any, half: str, options: dict[str, Any]) -> Any:
        config = options.pop("config", None)
        if config is None:
            values, path = Config.read(place, take_source_options(dict(options)))
            config = read_config(values, path).from_dict(values, path=path)
        kind = next(part for part in cls.parts if part.name == half).model_class(config)
        return kind.from_pretrained(place, config=_role(config, decoder=half == "decoder"), **options)

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        return cls.reads

    @property
    def body(self) -> Backbone:
        return self.encoder

    def get_decoder(self) -> TaskModel[TextBackbone]:
        return self.decoder

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.decoder.get_output_embeddings()

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Embedding:
        """Nothing but an error, since the vocabulary is the decoder's, or there are two."""
        hint = "Use model.encoder.resize_token_embeddings() or model.decoder.resize_token_embeddings()."
        raise InputError("the encoder and the decoder have vocabularies of their own.", hint=hint)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to write these labels: (B, T) -> (B, T); see :func:`transept.kinds.seq2seq.shifted`."""
        return shifted(self.config, labels)

    def count(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        labels = inputs.get("labels")
        return {} if labels is None else {"language": counted(labels)}

    def to_encoder(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the encoder is given of the ``inputs`` of a forward pass that are not the decoder's."""
        return inputs

    def states_mask(self, inputs: dict[str, Any], states: Tensor) -> Tensor | None:
        """Which of the encoder's states (B, T', D) are real: (B, T'), or all."""
        raise NotImplementedError

    def decoder_mask(self, ids: Tensor) -> Tensor | None:
        """Which of the decoder's inputs (B, T) that were made of labels are real, or all."""
        return None

    def shown(self, states: Tensor) -> dict[str, Tensor]:
        """What an output shows otherwise than both models do, of the states (B, T', D) that the decoder reads."""
        return {}

    def forward(
        self,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BackboneOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        *,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **more: Any,
    ) -> Seq2SeqLogitsOutput:
        """Predict what follows each position of the decoder; arguments as for ``ForConditionalGeneration``.

        What starts with ``decoder_``, and ``logits_to_keep``, goes to the decoder; what else there is (``token_type_ids``)
        to the encoder; what to record is asked of both.
        """
        if labels is not None:
            use_cache = bool(use_cache)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = shifted(self.config, labels)
                if decoder_attention_mask is None:
                    decoder_attention_mask = self.decoder_mask(decoder_input_ids)
        if decoder_attention_mask is None and decoder_input_ids is not None and past_key_values is None:
            decoder_attention_mask = torch.ones_like(decoder_input_ids)  # it may start with padding
        both: dict[str, Any] = {"return_dict": True}
        for name in ("output_attentions", "output_hidden_states"):
            both[name] = getattr(self.config, name) if (asked := more.pop(name, None)) is None else asked
        theirs = [name for name in more if name.startswith("decoder_") or name == "logits_to_keep"]
        to_decoder = {name.removeprefix("decoder_"): more.pop(name) for name in theirs}
        given = self.to_encoder(more)
        encoded = as_output(self.encoder(**given, **both) if encoder_outputs is None else encoder_outputs)
        states = self.enc_to_dec_proj(encoded.last_hidden_state)
        alone = labels is not None and wants_loss_alone()
        with calling(OF_DECODER):
            decoded: Any = (self.decoder.for_loss if alone else self.decoder)(
                input_ids=decoder_input_ids,
                attention_mask=decoder_attention_mask,
                inputs_embeds=decoder_inputs_embeds,
                encoder_hidden_states=states,
                encoder_attention_mask=self.states_mask(given, states),
                past_key_values=past_key_values,
                use_cache=use_cache,
                **both,
                **to_decoder,
            )
        output = Seq2SeqLogitsOutput(logits=decoded.logits, **recorded(decoded, encoded) | self.shown(states))
        if labels is not None:
            terms = {"language": cross_entropy(decoded.logits, labels)}
            output["logits"] = None if alone and isinstance(decoded.logits, Unscored) else decoded.logits
            output["loss"], output["loss_terms"] = total(terms, num_items_in_batch), terms
        as_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        return output.to_tuple() if as_tuple else output  # type: ignore[return-value]
