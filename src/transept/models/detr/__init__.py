"""DETR (Carion et al. 2020): a transformer reads a map of features, and learned queries find an object each, or none.

Positions are added to queries and keys in every layer. Shapes: B batch, C channels, H height, W width (of the map), T = H * W
positions, Q queries, D hidden size, K classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Share
from transept.config.model import Config
from transept.core.model import Backbone
from transept.core.parts import Composed, CompositeConfig, Part, resolved
from transept.errors import InputError
from transept.heads.detect import ForObjectDetection
from transept.kinds.feature_maps import FeatureMaps, maps_alone
from transept.kinds.image import ImageBackbone
from transept.kinds.queries import AddedPositions, PlacedStack, QueryDecoder
from transept.kinds.seq2seq import as_output, recorded
from transept.layers.conv import freeze_norms
from transept.layers.positions import LearnedMapPositions, SineMapPositions
from transept.models.detr.layers import BLOCK, BLOCK_FILES, block
from transept.models.detr.masks import ATTENTION_FILES, MASK_FILES, MASK_HEAD, MapAttention, MaskHead
from transept.objectives.matching import MatchingWeights
from transept.outputs import DetectionModelOutput, ModelOutput


class DetrConfig(CompositeConfig):
    """Settings of DETR; the defaults are those of detr-resnet-50.

    Files that say ``use_timm_backbone`` hold a ResNet under timm's names.
    """

    model_type = "detr"
    aliases = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    parts = {"backbone_config": {"model_type": "resnet", "out_features": ["stage4"]}}

    backbone_config: Config | None = None
    num_channels: Count = 3
    num_queries: Count = 100
    encoder_layers: Layers = 6
    encoder_ffn_dim: Count = 2048
    encoder_attention_heads: Count = 8
    decoder_layers: Layers = 6
    decoder_ffn_dim: Count = 2048
    decoder_attention_heads: Count = 8
    encoder_layerdrop: Share = 0.0
    decoder_layerdrop: Share = 0.0
    is_encoder_decoder: bool = True
    activation_function: str = "relu"
    d_model: Count = 256
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    activation_dropout: Share = 0.0
    init_std: Deviation = 0.02
    init_xavier_std: Deviation = 1.0
    auxiliary_loss: bool = False
    position_embedding_type: Literal["sine", "learned"] = "sine"
    dilation: bool = False
    class_cost: int | float = 1
    bbox_cost: int | float = 5
    giou_cost: int | float = 2
    mask_loss_coefficient: int | float = 1
    dice_loss_coefficient: int | float = 1
    bbox_loss_coefficient: int | float = 5
    giou_loss_coefficient: int | float = 2
    eos_coefficient: float = 0.1

    initializer_range = property(lambda self: self.init_std)

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        timm, name = values.pop("use_timm_backbone", True), values.pop("backbone", None)
        options = values.pop("backbone_kwargs", None) or {}
        values = {key: value for key, value in values.items() if key != "use_pretrained_backbone"}
        if values.get("backbone_config") is None and timm:
            part = {"model_type": "timm_backbone", "backbone": name or "resnet50", "out_indices": [1, 2, 3, 4]}
            part |= {"num_channels": values.get("num_channels", 3)} | options
            values["backbone_config"] = part | ({"output_stride": 16} if values.get("dilation") else {})
        return super().upgrade(values)

    def validate(self) -> None:
        super().validate()
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if self.d_model % getattr(self, name) or self.d_model % 4:
                self.fail("d_model", f"must be a multiple of 4 and of `{name}` ({getattr(self, name)})")

    @property
    def weights(self) -> MatchingWeights:
        """What counts how much in the loss."""
        costs = self.class_cost, self.bbox_cost, self.giou_cost, self.eos_coefficient
        shares = (getattr(self, f"{name}_loss_coefficient") for name in ("bbox", "giou", "mask", "dice"))
        return MatchingWeights(*costs, *shares)


@dataclass(frozen=True)
class Features:
    """What the transformer reads: ``maps`` (B, C, H, W) of stages, the last one ``projected`` (B, D, H, W), and which places of
    it are real (B, H, W); ``masked`` where not all may be.
    """

    maps: tuple[Tensor, ...]
    projected: Tensor
    real: Tensor
    masked: bool


class _Detector(Composed, ImageBackbone):
    """What :class:`DetrModel` is, but for its explicit signature, which is made for classes that inherit a forward pass."""

    config_class = DetrConfig
    base_model_prefix = "model"
    reads = (
        *("pixel_values", "pixel_mask", "decoder_attention_mask", "encoder_outputs", "inputs_embeds", "decoder_inputs_embeds"),
        *("labels", "image_sizes"),
    )
    names = Names(
        {
            "position_embedding": ("places", {"row_embeddings": "rows", "column_embeddings": "columns"}),
            "query_position_embeddings": "queries",
            "input_projection": "project",
            "encoder.layers.*": ("encoder.layers.*", BLOCK),
            "decoder.layers.*": ("decoder.layers.*", BLOCK),
            "decoder.layernorm": "decoder.norm",
        },
        files={f"{stack}.layers.*": (f"{stack}.layers.*", BLOCK_FILES) for stack in ("encoder", "decoder")},
        legacy={"backbone.position_embedding": "position_embedding"},
        ignore=("num_batches_tracked",),
    )
    parts = (
        Part("features", resolved("Backbone"), "backbone_config", place="backbone.model", stored="backbone.conv_encoder.model"),
    )
    config: DetrConfig
    features: FeatureMaps

    def __init__(self, config: DetrConfig) -> None:
        super().__init__(config)
        c = config
        freeze_norms(self.features)
        for module in self.features.fixed_modules():
            module.requires_grad_(False)
        self.project = nn.Conv2d(self.features.channels[-1], c.d_model, kernel_size=1)
        self.places = SineMapPositions(c.d_model) if c.position_embedding_type == "sine" else LearnedMapPositions(c.d_model)
        self.queries = nn.Embedding(c.num_queries, c.d_model)
        encoder, decoder = (c.encoder_attention_heads, c.encoder_ffn_dim), (c.decoder_attention_heads, c.decoder_ffn_dim)
        self.encoder = PlacedStack(c, nn.ModuleList(block(c, *encoder, cross=False) for _ in range(c.encoder_layers)))
        layers = nn.ModuleList(block(c, *decoder, cross=True) for _ in range(c.decoder_layers))
        self.decoder = QueryDecoder(c, layers, nn.LayerNorm(c.d_model), auxiliary=c.auxiliary_loss)
        self.dropout = nn.Dropout(c.dropout)

    def ready(self) -> None:
        super().ready()
        # `backbone` is the model itself, as that of each model without a head; so `backbone.model` has to be its part here.
        holder = self._modules["backbone"]
        assert holder is not None
        self.link("model", holder, "model")

    @property
    def stacks(self) -> tuple[Backbone, ...]:
        return *super().stacks, self.encoder, self.decoder

    def get_encoder(self) -> Backbone:
        return self.encoder

    def get_decoder(self) -> Backbone:
        return self.decoder

    def freeze_backbone(self) -> None:
        """Train nothing of the network that makes the maps."""
        self.features.requires_grad_(False)

    def unfreeze_backbone(self) -> None:
        """Train all of it."""
        self.features.requires_grad_(True)

    def initialize_own(self, module: nn.Module) -> None:
        if isinstance(module, LearnedMapPositions):
            module.reset()
        elif not any(module is table for table in (getattr(self.places, "rows", None), getattr(self.places, "columns", None))):
            super().initialize_own(module)

    def look(self, pixel_values: Tensor | None, pixel_mask: Tensor | None, image_sizes: Tensor | None = None) -> Features:
        """The features of images (B, C, H, W), of which those pixels are real where the mask (B, H, W) is 1, or by sizes."""
        pixels = self.check_pixels(pixel_values)
        if image_sizes is not None:
            maps, real = maps_alone(self.features, pixels, image_sizes)
            return Features(maps, self.project(maps[-1]), real, masked=True)
        masked = pixel_mask is not None
        if pixel_mask is None:
            pixel_mask = torch.ones_like(pixels[:, 0])
        if pixel_mask.shape != (pixels.shape[0], *pixels.shape[2:]):
            wanted = (pixels.shape[0], *pixels.shape[2:])
            raise InputError(f"`pixel_mask` has the shape {tuple(pixel_mask.shape)}, but the images need {wanted}.")
        maps = self.features(pixels, return_dict=True).feature_maps
        real = F.interpolate(pixel_mask[None].float(), size=maps[-1].shape[2:])[0].bool()
        return Features(maps, self.project(maps[-1]), real, masked)

    def forward(
        self, pixel_values: Tensor | None = None, pixel_mask: Tensor | None = None, **inputs: Any
    ) -> DetectionModelOutput | tuple[Any, ...]:
        """Find objects.

        Args:
            pixel_values, pixel_mask: images (B, C, H, W), and (B, H, W), 1 for real pixels.
            inputs: more of what is in ``reads``: ``image_sizes`` (B, 2), height and width of images that are padded at the
                right and at the bottom, each of which is then seen as it is alone, while beside a mask alone convolutions see
                padding too; a mask (B, Q) of the queries that others see; what the encoder gave before; states (B, T, D) of
                square maps in place of images; states (B, Q, D) that the decoder starts from, else zeros.
        """
        if (embeds := inputs.pop("inputs_embeds", None)) is None:
            return self.attend(self.look(pixel_values, pixel_mask, inputs.pop("image_sizes", None)), **inputs)
        side = math.isqrt(embeds.shape[1])
        if side**2 != embeds.shape[1] or embeds.shape[2] != self.config.d_model:
            wanted = f"(B, T, {self.config.d_model})"
            raise InputError(f"`inputs_embeds` are states {wanted} of square maps, not {tuple(embeds.shape)}.")
        projected = embeds.transpose(1, 2).unflatten(2, (side, side))
        real = torch.ones_like(projected[:, 0], dtype=torch.bool)
        if pixel_mask is not None:
            real = F.interpolate(pixel_mask[None].float(), size=(side, side))[0].bool()
        return self.attend(Features((), projected, real, pixel_mask is not None), **inputs)

    def attend(self, features: Features, **inputs: Any) -> Any:
        """The output of the transformer over features; ``inputs`` are those of the forward pass."""
        given = inputs.get
        asked = {name: given(name) for name in ("output_attentions", "output_hidden_states", "return_dict")}
        real, batch = features.real, len(features.real)
        mask = real.flatten(1)[:, None, None] if features.masked else None
        places = self.places(real, features.projected.dtype)
        if (encoded := given("encoder_outputs")) is None:
            ctx: Any = self.encoder.context(**asked)
            ctx.own, ctx.full_mask, ctx.as_tuple = AddedPositions(places), mask, False
            encoded = self.encoder(self.dropout(features.projected.flatten(2).transpose(1, 2)), ctx)
        encoded = as_output(encoded)
        ctx = self.decoder.context(**asked)
        queries = self.queries.weight.expand(batch, -1, -1)
        ctx.own = AddedPositions(queries, places)
        ctx.encoder_states, ctx.encoder_mask = encoded.last_hidden_state, mask
        if (seen := given("decoder_attention_mask")) is not None:
            wanted = queries.shape[:2]
            if seen.shape != wanted:
                raise InputError(f"`decoder_attention_mask` has the shape {tuple(seen.shape)}, but must be {tuple(wanted)}.")
            ctx.full_mask = (seen != 0)[:, None, None]
        start = given("decoder_inputs_embeds")
        as_tuple, ctx.as_tuple = ctx.as_tuple, False
        decoded = self.decoder(torch.zeros_like(queries) if start is None else start, ctx)
        output = DetectionModelOutput(last_hidden_state=decoded.last_hidden_state, **recorded(decoded, encoded))
        output["intermediate_hidden_states"] = decoded.intermediate_hidden_states
        return output.to_tuple() if as_tuple else output


class DetrModel(_Detector):
    """DETR without a head: ``last_hidden_state`` (B, Q, D) holds a state of each query.

    The network that makes the maps has frozen norms, and the stem and first stage of a ResNet are not trained.
    """


class DetrForObjectDetection(ForObjectDetection[DetrModel]):
    """DETR that finds boxes and their classes."""


class _States(DetectionModelOutput):
    """A detector's states, and the features that they come from."""

    features: Features


class DetrForSegmentation(ForObjectDetection[DetrModel]):
    """DETR that finds boxes, their classes, and a mask for each: ``pred_masks`` (B, Q, H / 4, W / 4).

    Targets have ``masks`` (n, H, W) too.
    """

    base_model_prefix = "detr.model"
    targets: ClassVar[tuple[str, ...]] = ("class_labels", "boxes", "masks")
    names = Names(
        {
            "detr": ("", {"class_labels_classifier": "class_head", "bbox_predictor": "box_head"}),
            "mask_head": ("masks", MASK_HEAD),
            "bbox_attention": "attention",
        },
        files={"mask_head": ("mask_head", MASK_FILES), "bbox_attention": ("bbox_attention", ATTENTION_FILES)},
    )

    def __init__(self, config: DetrConfig) -> None:
        super().__init__(config)
        if len(self.backbone.features.channels) < 3:
            raise InputError("masks need the maps of three stages.", hint="Set `out_features` of `backbone_config`.")
        if config.d_model % 16 or (config.d_model + config.encoder_attention_heads) % 8:
            raise InputError(f"masks need a `d_model` of a multiple of 16, and of 8 with the heads, not {config.d_model}.")
        sizes = config.d_model, config.encoder_attention_heads
        self.masks = MaskHead(*sizes, config.activation_function, self.backbone.features.channels)
        self.attention = MapAttention(*sizes)

    def encode(self, inputs: dict[str, Any], labels: Any) -> _States:
        self.check(inputs, labels)
        seen = "pixel_values", "pixel_mask", "image_sizes"
        rest = {name: value for name, value in inputs.items() if name not in (*seen, "inputs_embeds")}
        features = self.backbone.look(*(inputs.get(name) for name in seen))
        return _States(**self.backbone.attend(features, return_dict=True, **rest), features=features)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        output, features = super().predict(states, inputs), states.features
        attention = self.attention(states.last_hidden_state, states.encoder_last_hidden_state, features.real)
        output["pred_masks"] = self.masks(features.projected, attention, features.maps)
        return output
