"""Any encoder with any decoder (Rothe et al. 2020): two models with checkpoints of their own make one that translates.

The decoder is a whole task model that predicts the next token and has cross-attention, such as BERT's or GPT-2's with
``add_cross_attention``. Where its hidden size is not the encoder's, a layer in between makes one of the other. The
checkpoint keeps both under their own names, below ``encoder`` and ``decoder``. The file is longer than others since it
puts models together and asks each for what belongs to it.

Shapes: B batch, T' positions of the encoder, T of the decoder, D hidden size, V vocabulary.
"""

from __future__ import annotations

import os
from typing import Any, Self

import torch
from torch import Tensor, nn

from transept.config import Config
from transept.core.auto import read_config, resolve
from transept.core.composite import Composite, CompositeConfig
from transept.core.model import Backbone, Model, TaskModel
from transept.core.seq2seq import Seq2SeqConfig, as_output, recorded, shifted
from transept.core.text import TextBackbone
from transept.errors import InputError
from transept.fields import specs
from transept.generation.generate import Generates
from transept.layers.cache import Cache
from transept.objectives.classification import cross_entropy
from transept.objectives.terms import Items, LossTerm, total
from transept.outputs import BackboneOutput, LogitsOutput, Seq2SeqLogitsOutput
from transept.source import take_source_options

# How the classes of decoders end.
WRITERS = ("ForCausalLM", "LMHeadModel")


class EncoderDecoderConfig(Seq2SeqConfig, CompositeConfig):
    """Settings of the pair: ``encoder`` and ``decoder`` are configs, or what their files hold; BERT's when absent."""

    model_type = "encoder-decoder"
    parts = {
        "encoder": {"model_type": "bert"},
        "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    }

    encoder: Config | None = None
    decoder: Config | None = None

    @classmethod
    def from_encoder_decoder_configs(cls, encoder_config: Config, decoder_config: Config, **settings: Any) -> Self:
        """The config of a pair, whose decoder reads an encoder; the given ones stay as they are."""
        return cls(encoder=encoder_config.with_settings(), decoder=_role(decoder_config, decoder=True), **settings)


def _role(config: Config, *, decoder: bool) -> Config:
    """A config for a decoder that reads an encoder, or for an encoder."""
    names = specs(type(config)).keys() & {"is_decoder", "add_cross_attention"}
    return config.with_settings(**dict.fromkeys(names, decoder))


class EncoderDecoderModel(Generates, Composite):
    """An encoder and a decoder in one.

    Args:
        config: settings of both; made of the models' own when absent.
        encoder: a backbone; built from the config when absent.
        decoder: a task model that predicts the next token and has cross-attention; built from the config when absent.

    Raises:
        InputError: neither a config nor both models, or models that cannot play these parts.
    """

    config_class = EncoderDecoderConfig
    parts = ("encoder", "decoder")
    config: EncoderDecoderConfig
    encoder: TextBackbone
    decoder: TaskModel[TextBackbone]

    def __init__(
        self,
        config: EncoderDecoderConfig | None = None,
        encoder: Model | None = None,
        decoder: Model | None = None,
    ) -> None:
        if config is None:
            if encoder is None or decoder is None:
                raise InputError("an encoder–decoder is built from a config, or from an encoder and a decoder.")
            config = EncoderDecoderConfig(encoder=encoder.config, decoder=decoder.config)
        super().__init__(config)
        assert config.encoder is not None
        assert config.decoder is not None
        self.encoder = encoder or self.part_class("encoder", config.encoder)(config.encoder)  # type: ignore[assignment]
        self.decoder = decoder or self.part_class("decoder", config.decoder)(config.decoder)  # type: ignore[assignment]
        config.encoder, config.decoder = self.encoder.config, self.decoder.config
        _check(self.encoder, self.decoder)
        narrow, wide = self.encoder.dim, self.decoder.backbone.dim
        self.enc_to_dec_proj: nn.Module = nn.Identity() if narrow == wide else nn.Linear(narrow, wide)
        if config.attn_implementation is not None:
            self.set_attn_implementation(config.attn_implementation)

    @classmethod
    def from_encoder_decoder_pretrained(
        cls,
        encoder_pretrained_model_name_or_path: str | os.PathLike[str] | None = None,
        decoder_pretrained_model_name_or_path: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """A pair of two checkpoints, in evaluation mode; layers that a decoder lacks to read an encoder are new.

        Args:
            encoder_pretrained_model_name_or_path: a directory or repository; or pass ``encoder_model``.
            decoder_pretrained_model_name_or_path: a directory or repository; or pass ``decoder_model``.
            options: those that start with ``encoder_`` or ``decoder_`` are for that model's ``from_pretrained``, others
                are settings of the pair, as is ``decoder_start_token_id``.

        Raises:
            InputError: a model that is neither named nor given.
        """
        own = {name: options.pop(name) for name in tuple(options) if _half(name) is None}
        models = []
        for half, place in zip(cls.parts, (encoder_pretrained_model_name_or_path, decoder_pretrained_model_name_or_path)):
            given = {name.removeprefix(f"{half}_"): value for name, value in options.items() if _half(name) == half}
            model = given.pop("model", None)
            if model is None and place is None:
                raise InputError(f"no {half} was named.", hint=f"Pass where it is, or `{half}_model`.")
            models.append(_loaded(place, half == "decoder", given) if model is None else model)
        encoder, decoder = models
        config = cls.config_class(encoder=encoder.config, decoder=decoder.config, **own)
        return cls(config, encoder, decoder).eval()

    @classmethod
    def part_class(cls, name: str, config: Config) -> type[Model]:
        return resolve(config.model_type, *(WRITERS if name == "decoder" else ("Model",)))

    @property
    def backbone(self) -> Backbone:
        """The encoder, whose embeddings are the model's input."""
        return self.encoder

    def get_encoder(self) -> TextBackbone:
        """The half that reads, which can be called by itself."""
        return self.encoder

    def get_decoder(self) -> TaskModel[TextBackbone]:
        """The half that writes."""
        return self.decoder

    def get_output_embeddings(self) -> nn.Linear | None:
        """The layer that gives logits over the decoder's vocabulary."""
        return self.decoder.get_output_embeddings()

    def resize_token_embeddings(self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None) -> nn.Embedding:
        """Nothing, since there are two vocabularies.

        Raises:
            InputError: always.
        """
        hint = "Use model.encoder.resize_token_embeddings() or model.decoder.resize_token_embeddings()."
        raise InputError("the encoder and the decoder have vocabularies of their own.", hint=hint)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to write these labels: (B, T) -> (B, T).

        Raises:
            InputError: the config has no token to start with, or none for padding.
        """
        return shifted(self.config, labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BackboneOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
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
                if decoder_attention_mask is None and self.config.pad_token_id is not None:
                    decoder_attention_mask = decoder_input_ids.ne(self.config.pad_token_id).long()
        if attention_mask is None and input_ids is not None:
            attention_mask = self.encoder.infer_mask(input_ids)  # the decoder needs it too
        if decoder_attention_mask is None and decoder_input_ids is not None and past_key_values is None:
            decoder_attention_mask = torch.ones_like(decoder_input_ids)  # it may start with padding
        encoder_options, decoder_options = self._options(more)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **encoder_options
            )
        encoded = as_output(encoder_outputs)
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            encoder_hidden_states=self.enc_to_dec_proj(encoded.last_hidden_state),
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **decoder_options,
        )
        terms = None if labels is None else {"language": cross_entropy(decoded.logits, labels)}
        return self._answer(decoded, encoded, terms, num_items_in_batch, return_dict)

    def _options(self, more: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the encoder and the decoder get of the arguments that are left."""
        both: dict[str, Any] = {"return_dict": True}
        for name in ("output_attentions", "output_hidden_states"):
            both[name] = getattr(self.config, name) if (asked := more.pop(name, None)) is None else asked
        kept = {"logits_to_keep": more.pop("logits_to_keep")} if "logits_to_keep" in more else {}
        to_decoder = {name.removeprefix("decoder_"): more.pop(name) for name in tuple(more) if name.startswith("decoder_")}
        return both | more, both | kept | to_decoder

    def _answer(
        self,
        decoded: LogitsOutput,
        encoded: BackboneOutput,
        terms: dict[str, LossTerm] | None,
        items: Items | None,
        return_dict: bool | None,
    ) -> Seq2SeqLogitsOutput:
        output = Seq2SeqLogitsOutput(
            loss=None if terms is None else total(terms, items),
            logits=decoded.logits,
            **recorded(decoded, encoded),
            loss_terms=terms,
        )
        as_output = self.config.return_dict if return_dict is None else return_dict
        return output if as_output else output.to_tuple()  # type: ignore[return-value]


def _check(encoder: Model, decoder: Model) -> None:
    """Refuse models that cannot play their parts."""
    if not isinstance(encoder, TextBackbone):
        raise InputError(f"{type(encoder).__name__} is no encoder by itself.", hint="Use a backbone such as BertModel.")
    if not isinstance(decoder, TaskModel) or decoder.get_output_embeddings() is None:
        raise InputError(f"{type(decoder).__name__} predicts no next token.", hint="Use one such as BertLMHeadModel.")
    if not decoder.backbone.reads_encoder:
        raise InputError(
            f"{type(decoder).__name__} has no cross-attention to read an encoder with.",
            hint="Set `add_cross_attention` in its config; families without that setting cannot be decoders here.",
        )


def _half(name: str) -> str | None:
    """Which model an option is for, by its prefix."""
    halves = (half for half in EncoderDecoderModel.parts if name.startswith(f"{half}_"))
    return None if name == "decoder_start_token_id" else next(halves, None)


def _loaded(place: Any, decoder: bool, options: dict[str, Any]) -> Model:
    """One of the models, from a directory or repository."""
    config = options.pop("config", None)
    if config is None:
        values, path = Config.read(place, take_source_options(dict(options)))
        config = read_config(values, path).from_dict(values, path=path)
    kind = EncoderDecoderModel.part_class("decoder" if decoder else "encoder", config)
    model: Model = kind.from_pretrained(place, config=_role(config, decoder=decoder), **options)
    return model
