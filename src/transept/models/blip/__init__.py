"""BLIP (Li et al. 2022): a ViT reads an image, and BERTs with cross-attention to its states describe it and answer questions.

Shapes: B batch, C channels, H height, W width, S states of an image, T positions of a text, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.core.inputs import OF_DECODER, calling
from transept.core.model import Backbone
from transept.core.parts import Composed, Part
from transept.errors import InputError
from transept.generation.config import GenerationConfig
from transept.generation.generate import Generates
from transept.generation.prompt import check_ids
from transept.generation.run import Run
from transept.heads.dual import towers
from transept.models.blip.networks import BlipConfig, BlipTextConfig, BlipTextLMHeadModel, BlipTextModel, BlipVisionModel
from transept.models.clip import CLIPModel
from transept.objectives.classification import IGNORED
from transept.objectives.terms import Items, LossTerm
from transept.outputs import BackboneOutput, ModelOutput
from transept.storage.source import Source


class BlipWritingOutput(ModelOutput):
    """The loss, the logits (B, T, V) where the task shows them, and the states (B, S, D) of images, under two names."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    image_embeds: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class BlipMatchingOutput(ModelOutput):
    """How well texts fit images, and the states of images (B, S, D) and texts (B, T, D).

    ``itm_score`` is (B, 2), logits for no match and for a match of each pair; or (B images, B texts) of cosines.
    """

    itm_score: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    question_embeds: Tensor | None = None


_VISION = Part("vision_model", BlipVisionModel, "vision_config")
_ENCODER = Part("text_encoder", BlipTextModel, "text_config", options={"add_pooling_layer": False})
_DECODER = Part("text_decoder", BlipTextLMHeadModel, "text_config")


class _Blip(Composed):
    """What all of BLIP's models have in common: a network that reads images, and one or two for text."""

    config_class = BlipConfig
    main_input_name = "pixel_values"
    config: BlipConfig
    vision_model: BlipVisionModel
    text_encoder: BlipTextModel

    def __init__(self, config: BlipConfig) -> None:
        super().__init__(config)
        if not config.text_config.is_decoder:
            config.text_config.fail("is_decoder", "must be true, since the text reads images")

    @property
    def body(self) -> Backbone:
        return self.vision_model

    @property
    def token_parts(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if part.field == "text_config")

    def see(self, pixel_values: Tensor | None, interpolate: bool | None, asked: dict[str, Any]) -> BackboneOutput:
        """What the image's network makes of images (B, C, H, W)."""
        for name in ("output_attentions", "output_hidden_states"):
            asked[name] = getattr(self.config, name) if asked.get(name) is None else asked[name]
        output: BackboneOutput = self.vision_model(pixel_values, interpolate, return_dict=True, **asked)
        return output

    def answer(self, output: ModelOutput, seen: BackboneOutput, return_dict: bool | None) -> Any:
        """An output with what was recorded of the images, in the form that the caller wants."""
        for name in ("last_hidden_state", "hidden_states", "attentions"):
            output[name] = getattr(seen, name)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()


class _Writer(Generates, _Blip):
    """BLIP that writes by its ``text_decoder``, whose settings for generation are the model's."""

    text_decoder: BlipTextLMHeadModel

    def __init__(self, config: BlipConfig) -> None:
        super().__init__(config)
        text = config.text_config
        tokens: dict[str, Any] = {
            "bos_token_id": text.bos_token_id,
            "eos_token_id": text.sep_token_id,
            "pad_token_id": text.pad_token_id,
        }
        self.generation_config = GenerationConfig(**tokens)

    def loaded(self, source: Source) -> None:
        super().loaded(source)
        if (settings := self.__dict__.pop("_generation_config", None)) is not None:
            settings.fill(self.generation_config)
            self.generation_config = settings

    @property
    def generation_config(self) -> GenerationConfig:
        return self.text_decoder.generation_config

    @generation_config.setter
    def generation_config(self, settings: GenerationConfig) -> None:
        self.text_decoder.generation_config = settings

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.text_decoder.get_output_embeddings()

    def count(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return self.text_decoder.count({"labels": inputs.get("labels")})

    def output(self, said: Any, seen: BackboneOutput, logits: Tensor | None, return_dict: bool | None) -> BlipWritingOutput:
        """The output for what the decoder said."""
        output = BlipWritingOutput(logits=logits, image_embeds=seen.last_hidden_state)
        output["loss"], output["loss_terms"] = said.loss, said.loss_terms
        return self.answer(output, seen, return_dict)

    def write(self, ids: Tensor, settings: GenerationConfig | None, kwargs: dict[str, Any]) -> Run:
        """One call of the decoder; texts end with SEP."""
        text = self.config.text_config
        return self.text_decoder._run(
            ids, settings, {"eos_token_id": text.sep_token_id, "pad_token_id": text.pad_token_id} | kwargs
        )


class BlipForConditionalGeneration(_Writer):
    """BLIP that describes images, or goes on from the beginning of a description."""

    parts = (_VISION, _DECODER)

    def forward(
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        *,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **asked: Any,
    ) -> BlipWritingOutput:
        """Predict what follows each token of descriptions.

        Args:
            pixel_values: (B, C, H, W).
            input_ids, attention_mask: (B, T).
            labels: (B, T), the same tokens again; -100 is ignored. The shift by one happens here.
            interpolate_pos_encoding: whether images may be of another size than the model's.
            logits_to_keep: of how many last positions logits are wanted (0: all), or of which.
            num_items_in_batch: labels of the whole batch, where this is a micro-batch.
            asked: ``output_attentions`` and ``output_hidden_states``, of the image's network.
        """
        seen = self.see(pixel_values, interpolate_pos_encoding, asked)
        said = self.text_decoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            encoder_hidden_states=seen.last_hidden_state,
            labels=labels,
            logits_to_keep=logits_to_keep,
            num_items_in_batch=num_items_in_batch,
            **_PLAIN,
        )
        return self.output(said, seen, said.logits, return_dict)

    def generate(  # type: ignore[override]
        self,
        pixel_values: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        **kwargs: Any,
    ) -> Tensor | ModelOutput:
        """Describe images (B, C, H, W): (B, T) ids, from BOS on.

        ``input_ids`` (B, T), which may be padded on either side, are beginnings of descriptions as the tokenizer makes them:
        BOS takes the place of their first token, and their last one is left out. They stay as they are. ``kwargs`` are those
        of every ``generate``.
        """
        kwargs |= {"input_ids": input_ids, "attention_mask": attention_mask}
        return super().generate(pixel_values, interpolate_pos_encoding=interpolate_pos_encoding, **kwargs)

    @torch.no_grad()
    def _run(self, inputs: Tensor | None, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> Run:
        names = ("pixel_values", "input_ids", "attention_mask", "interpolate_pos_encoding")
        pixels, ids, mask, interpolate = (kwargs.pop(name, None) for name in names)
        states = self.see(pixels if inputs is None else inputs, interpolate, {}).last_hidden_state
        text = self.config.text_config
        if ids is None:
            ids, mask = torch.full((states.shape[0], 2), text.bos_token_id, device=states.device), None
        ids, mask = _beginnings(check_ids(ids, "input_ids"), mask, text)
        return self.write(ids, generation_config, kwargs | {"attention_mask": mask, "encoder_hidden_states": states})


# Of a text network that is asked for nothing but its states or logits.
_PLAIN = {"use_cache": False, "return_dict": True, "output_attentions": False, "output_hidden_states": False}


def _beginnings(ids: Tensor, mask: Tensor | None, text: BlipTextConfig) -> tuple[Tensor, Tensor]:
    """Prompts (B, T) and their mask as they are continued: padded on the left, with BOS first and without their last token."""
    real = (mask.ne(0) if mask is not None else ids.ne(-1 if text.pad_token_id is None else text.pad_token_id)).int()
    if real.shape != ids.shape or bool((real.sum(dim=1) < 2).any()):
        what = f"`input_ids` {tuple(ids.shape)} need two real tokens in each row, and an `attention_mask` of their shape."
        raise InputError(what, hint="Pass what the tokenizer makes of a text, with its special tokens.")
    order = real.argsort(dim=1, stable=True)
    ids, real = ids.gather(1, order), real.gather(1, order)
    ids = ids.scatter(1, real.argmax(dim=1, keepdim=True), text.bos_token_id or 0)
    return ids[:, :-1], real[:, :-1]


class BlipForQuestionAnswering(_Writer):
    """BLIP that answers questions about images: one text network reads the question and the image, one writes the answer."""

    parts = (_VISION, _ENCODER, _DECODER)
    main_input_name = "input_ids"

    def __init__(self, config: BlipConfig) -> None:
        if config.text_config.hidden_size != (size := config.vision_config.hidden_size):
            config.text_config.fail(
                "hidden_size", f"must be {size}, as images have it, since answers read questions in its place"
            )
        super().__init__(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        *,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **asked: Any,
    ) -> BlipWritingOutput:
        """The loss of answers, where there are labels; the output has no logits, as the reference's has none.

        Args:
            input_ids, attention_mask: (B, T) of questions.
            pixel_values: (B, C, H, W).
            decoder_input_ids, decoder_attention_mask: (B, T') of answers; the labels when absent.
            labels: (B, T'), the same tokens as the decoder reads; -100 is ignored. The shift by one happens here.
            interpolate_pos_encoding, num_items_in_batch, asked: as for :class:`BlipForConditionalGeneration`.
        """
        if labels is None and decoder_input_ids is None:
            raise InputError("neither `labels` nor `decoder_input_ids` was passed.", hint="To write answers call generate().")
        seen = self.see(pixel_values, interpolate_pos_encoding, asked)
        states, mask = self.ask(input_ids, attention_mask, seen)
        if decoder_input_ids is None and labels is not None:
            ignored = labels == IGNORED
            decoder_input_ids = labels.masked_fill(ignored, self.config.text_config.pad_token_id or 0)
            decoder_attention_mask = (~ignored).long() if decoder_attention_mask is None else decoder_attention_mask
        given: dict[str, Any] = {"encoder_hidden_states": states, "encoder_attention_mask": mask, "labels": labels}
        with calling(OF_DECODER):
            given |= {"input_ids": decoder_input_ids, "attention_mask": decoder_attention_mask}
            said = self.text_decoder(num_items_in_batch=num_items_in_batch, **given, **_PLAIN)
        return self.output(said, seen, None, return_dict)

    def ask(self, ids: Tensor | None, mask: Tensor | None, seen: BackboneOutput) -> tuple[Tensor, Tensor | None]:
        """States (B, T, D) of questions about images, and which of them are real."""
        if mask is None and ids is not None:
            mask = self.text_encoder.infer_mask(ids)  # the decoder needs it too
        read = self.text_encoder(ids, mask, encoder_hidden_states=seen.last_hidden_state, **_PLAIN)
        return read.last_hidden_state, mask

    def generate(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        **kwargs: Any,
    ) -> Tensor | ModelOutput:
        """Answer questions (B, T) about images (B, C, H, W): (B, T') ids, from BOS on; padding of questions is not read.

        ``kwargs`` are those of every ``generate``.
        """
        kwargs |= {"pixel_values": pixel_values, "attention_mask": attention_mask}
        return super().generate(input_ids, interpolate_pos_encoding=interpolate_pos_encoding, **kwargs)

    @torch.no_grad()
    def _run(self, inputs: Tensor | None, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> Run:
        names = ("input_ids", "pixel_values", "attention_mask", "interpolate_pos_encoding")
        ids, pixels, mask, interpolate = (kwargs.pop(name, None) for name in names)
        seen = self.see(pixels, interpolate, {})
        states, mask = self.ask(ids if inputs is None else inputs, mask, seen)
        start = torch.full((states.shape[0], 1), self.config.text_config.bos_token_id, device=states.device)
        picture = {"encoder_hidden_states": states} | ({} if mask is None else {"encoder_attention_mask": mask})
        return self.write(start, generation_config, kwargs | picture)


class BlipForImageTextRetrieval(_Blip):
    """BLIP that tells how well texts fit images."""

    parts = (_VISION, _ENCODER)
    main_input_name = "input_ids"
    names = Names({name: name for name in ("vision_proj", "text_proj", "itm_head")})

    def __init__(self, config: BlipConfig) -> None:
        super().__init__(config)
        size = config.image_text_hidden_size
        self.vision_proj = nn.Linear(config.vision_config.hidden_size, size)
        self.text_proj = nn.Linear(config.text_config.hidden_size, size)
        self.itm_head = nn.Linear(config.text_config.hidden_size, 2)

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        use_itm_head: bool | None = True,
        attention_mask: Tensor | None = None,
        interpolate_pos_encoding: bool | None = None,
        *,
        return_dict: bool | None = None,
        **asked: Any,
    ) -> BlipMatchingOutput:
        """Compare texts with images.

        Args:
            input_ids, attention_mask: (B, T).
            pixel_values: (B, C, H, W).
            use_itm_head: whether each text reads its image, for two logits a pair; else all are compared with all by cosine.
            interpolate_pos_encoding, asked: as for :class:`BlipForConditionalGeneration`.
        """
        seen = self.see(pixel_values, interpolate_pos_encoding, asked)
        image = seen.last_hidden_state if use_itm_head else None
        text = self.text_encoder(input_ids, attention_mask, encoder_hidden_states=image, **_PLAIN).last_hidden_state
        if use_itm_head:
            score = self.itm_head(text[:, 0])
        else:
            image = F.normalize(self.vision_proj(seen.last_hidden_state[:, 0]), dim=-1)
            score = image @ F.normalize(self.text_proj(text[:, 0]), dim=-1).T
        return self.answer(BlipMatchingOutput(itm_score=score, question_embeds=text), seen, return_dict)


class BlipModel(CLIPModel):
    """BLIP's networks compared as CLIP's: ``logits_per_image`` (M, N) are the scaled cosines of images and texts."""

    config_class = BlipConfig  # type: ignore[assignment]
    base_model_prefix = "blip"
    parts = towers(BlipTextModel, BlipVisionModel)

    def get_multimodal_features(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
    ) -> Tensor:
        """The vectors (B, P) of texts (B, T) that have read an image (B, C, H, W) each."""
        image = self.vision_model(pixel_values, interpolate_pos_encoding, return_dict=True).last_hidden_state
        text = self.text_model(input_ids, attention_mask, encoder_hidden_states=image, return_dict=True)
        return self.text_vector(text.pooler_output)

    def shown(self, states: BackboneOutput, vectors: Tensor) -> BackboneOutput:
        return states
