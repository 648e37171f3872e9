"""Two networks whose states are compared: one for texts, one for images.

Shapes: B batch, T positions of a text, N texts, M images, D hidden size, P size of the space that is compared in.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.model import Backbone
from transept.core.parts import Composed, Part
from transept.core.task import B
from transept.errors import InputError
from transept.heads.image import ForImageClassification, P
from transept.heads.task import Task
from transept.kinds.image import PatchBackbone
from transept.objectives.terms import LossTerm, total
from transept.outputs import BackboneOutput, ModelOutput


class TextEmbedsOutput(ModelOutput):
    """Texts as vectors ``text_embeds`` (B, P), and the states (B, T, D) that they come from."""

    text_embeds: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class ImageEmbedsOutput(ModelOutput):
    """Images as vectors ``image_embeds`` (B, P), and the states (B, T, D) that they come from."""

    image_embeds: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class DualOutput(ModelOutput):
    """How well each of N texts fits each of M images: ``logits_per_text`` (N, M), ``logits_per_image`` (M, N).

    ``text_embeds`` (N, P) and ``image_embeds`` (M, P) have length 1; the outputs of both networks follow.
    """

    loss: Tensor | None = None
    logits_per_image: Tensor | None = None
    logits_per_text: Tensor | None = None
    text_embeds: Tensor | None = None
    image_embeds: Tensor | None = None
    text_model_output: BackboneOutput | None = None
    vision_model_output: BackboneOutput | None = None
    loss_terms: dict[str, LossTerm] | None = None

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(value.to_tuple() if isinstance(value, ModelOutput) else value for value in self.values())


def towers(text: type[Backbone], vision: type[Backbone]) -> tuple[Part, ...]:
    """The two networks, whose configs are ``text_config`` and ``vision_config``."""
    return Part("text_model", text, "text_config"), Part("vision_model", vision, "vision_config")


class DualEncoder(Composed):
    """A ``text_model`` and a ``vision_model`` whose pooled states are compared by cosine.

    A family sets ``parts`` by :func:`towers`, and says what follows them (:meth:`text_vector`, :meth:`image_vector`), what the
    cosines become (:meth:`logits`) and what is learnt (:meth:`terms`).
    """

    token_parts = ("text_model",)
    main_input_name = "input_ids"
    text_padding: ClassVar[str] = "longest"  # how texts were padded in training
    text_model: Backbone
    vision_model: PatchBackbone

    @property
    def body(self) -> Backbone:
        return self.vision_model

    def text_vector(self, pooled: Tensor) -> Tensor:
        """The pooled states (N, D) of texts in the space that is compared in, (N, P)."""
        return pooled

    def image_vector(self, pooled: Tensor) -> Tensor:
        """The same of images."""
        return pooled

    @abstractmethod
    def logits(self, cosines: Tensor) -> Tensor:
        """Cosines (N, M) as logits."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """How likely each of N texts is for each of M images, (M, N), of logits: one of the texts fits."""
        return logits.softmax(dim=-1)

    @property
    def vector_size(self) -> int:
        """P."""
        return self.vision_model.dim

    @abstractmethod
    def terms(self, logits: Tensor) -> dict[str, LossTerm]:
        """The parts of the loss of logits (N, N), of which those on the diagonal belong together."""

    def get_text_features(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **asked: Any,
    ) -> BackboneOutput:
        """The text network's output, whose ``pooler_output`` (N, P) are the vectors of texts (N, T)."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        return self._features(self.text_model, given, self.text_vector, asked)

    def get_image_features(
        self, pixel_values: Tensor | None = None, interpolate_pos_encoding: bool = False, **asked: Any
    ) -> BackboneOutput:
        """The image network's output, whose ``pooler_output`` (M, P) are the vectors of images (M, C, H, W)."""
        given = {"pixel_values": pixel_values, "interpolate_pos_encoding": interpolate_pos_encoding}
        return self._features(self.vision_model, given, self.image_vector, asked)

    def _features(self, tower: Backbone, given: dict[str, Any], vector: Any, asked: dict[str, Any]) -> BackboneOutput:
        as_output = asked.pop("return_dict", None)
        output = self._read(tower, given, asked)
        output["pooler_output"] = vector(output.pooler_output)
        return output if as_output in (None, True) else output.to_tuple()  # type: ignore[return-value]

    def _read(self, tower: Backbone, given: dict[str, Any], asked: dict[str, Any]) -> BackboneOutput:
        """The output of one network, which has a pooled state."""
        for name in ("output_attentions", "output_hidden_states"):
            asked[name] = getattr(self.config, name) if asked.get(name) is None else asked[name]
        output: BackboneOutput = tower(**given, **asked, return_dict=True)
        if output.pooler_output is None:
            raise InputError(f"this {type(tower).__name__} has no pooled state to compare by.")
        return output

    def shown(self, states: BackboneOutput, vectors: Tensor) -> BackboneOutput:
        """A network's output as it is shown beside the logits: with the vectors in the place of pooled states."""
        states["pooler_output"] = vectors
        return states

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        return_loss: bool | None = None,
        interpolate_pos_encoding: bool = False,
        *,
        return_dict: bool | None = None,
        **asked: Any,
    ) -> DualOutput:
        """Compare each text with each image.

        Args:
            input_ids, attention_mask, position_ids: (N, T).
            pixel_values: (M, C, H, W).
            return_loss: whether there is a loss, for which the text of each row belongs to the image of that row.
            interpolate_pos_encoding: whether images may be of another size than the model's.
            return_dict: ``False`` for a tuple.
            asked: ``output_attentions`` and ``output_hidden_states``, of both networks.
        """
        given: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        texts = self._read(self.text_model, given, asked)
        given = {"pixel_values": pixel_values, "interpolate_pos_encoding": interpolate_pos_encoding}
        images = self._read(self.vision_model, given, asked)
        vectors = self.text_vector(texts["pooler_output"]), self.image_vector(images["pooler_output"])
        text, image = map(_unit, vectors)
        logits = self.logits(text @ image.T.to(text.device))
        output = DualOutput(
            logits_per_image=logits.T,
            logits_per_text=logits,
            text_embeds=text,
            image_embeds=image,
            text_model_output=self.shown(texts, vectors[0]),
            vision_model_output=self.shown(images, vectors[1]),
        )
        if return_loss:
            terms = self.terms(logits)
            output["loss"], output["loss_terms"] = total(terms), terms
        as_output = self.config.return_dict if return_dict is None else return_dict
        return output if as_output else output.to_tuple()  # type: ignore[return-value]


def _unit(x: Tensor) -> Tensor:
    """Vectors (B, P) of length 1."""
    return x / x.square().sum(dim=-1, keepdim=True).sqrt()


class WithProjection(Task[B]):
    """One of the two networks alone, with the linear layer that its pooled states go through."""

    labels = ()
    embeds: ClassVar[str]
    reads_pooler = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = nn.Linear(self.backbone.dim, config.projection_dim, bias=False)

    def predict(self, states: BackboneOutput, inputs: dict[str, Any]) -> ModelOutput:
        assert states.pooler_output is not None
        vectors = self.head(states.pooler_output)
        output = self.output_class(**{self.embeds: vectors}, last_hidden_state=states.last_hidden_state)
        output["hidden_states"], output["attentions"] = states.hidden_states, states.attentions
        return output


class TextWithProjection(WithProjection[B]):
    """Texts as vectors, to compare with images: ``text_embeds`` (B, P)."""

    names = Names({"text_projection": "head"})
    output_class = TextEmbedsOutput
    embeds = "text_embeds"


class ImageWithProjection(WithProjection[B]):
    """Images as vectors, to compare with texts: ``image_embeds`` (B, P)."""

    names = Names({"visual_projection": "head"})
    output_class = ImageEmbedsOutput
    embeds = "image_embeds"


class ForTowerClassification(ForImageClassification[P]):
    """The image network alone, which classifies by the mean of its patches' states; its config is that of both networks."""

    base_model_prefix = "vision_model"

    @classmethod
    def backbone_part(cls, config: Config) -> Part:
        return replace(super().backbone_part(config), field="vision_config")

    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        return states.last_hidden_state[:, self.backbone.prefix_tokens :].mean(dim=1)
