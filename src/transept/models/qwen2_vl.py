"""Qwen2-VL (Wang et al. 2024): Qwen2 reads pictures and videos of any size, as one token for each two by two patches.

The vision model looks at the patches of one frame at a time. Tokens have positions in time, in rows and in columns (M-RoPE);
text counts on from the largest of a picture's.
Shapes: B batch, T new positions, S cached and new ones, P pictures, N patches of all pictures, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Annotated, Any, ClassVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Multiple, specs
from transept.config.model import Config
from transept.core.inputs import INTEGERS, RecordOptions, check_finite, check_tensor
from transept.core.model import Backbone
from transept.core.parts import Part, PartConfig
from transept.errors import InputError
from transept.heads.image_text import ForImageTextToText
from transept.kinds.picture_text import Pictures, PictureTextBackbone, PictureTextConfig
from transept.layers import MLP, Block, Context, FusedAttention, PreNorm
from transept.layers.caches.cache import Cache
from transept.layers.context import Rows
from transept.layers.links import Linked
from transept.layers.rotary import AxialRotary, RotaryTables, SectionRotary, rotary_tables, section_positions
from transept.models.qwen2 import Qwen2Config, Qwen2Model
from transept.outputs import BackboneOutput, ModelOutput

_PROCESS = "Use the processor of this model: processor(text=..., images=...)."


class VisionConfig(PartConfig):
    """What the vision models of this kind have in common."""

    section = "vision_config"
    attribute_map = {"num_attention_heads": "num_heads", "num_hidden_layers": "depth"}

    depth: Layers = 32
    num_heads: int = 16
    in_channels: Count = 3
    patch_size: Count = 14
    spatial_merge_size: Count = 2
    temporal_patch_size: Count = 2
    initializer_range: Deviation = 0.02
    rope_parameters: dict[str, Any] | None = None

    @property
    def width(self) -> int:
        """D of the vision model."""
        raise NotImplementedError

    @property
    def text_width(self) -> int:
        """D of the text model."""
        raise NotImplementedError

    @property
    def theta(self) -> float:
        """The base of the rotary frequencies."""
        return float((self.rope_parameters or {}).get("rope_theta", 10000.0))

    def validate(self) -> None:
        super().validate()
        if self.width // self.num_heads % 4:
            self.fail("num_heads", f"must divide the size {self.width} into heads of a multiple of 4")
        if (self.rope_parameters or {}).get("rope_type", "axial") != "axial":
            self.fail("rope_parameters", "must have the `rope_type` 'axial'")


class Qwen2VLVisionConfig(VisionConfig):
    """Settings of the vision model; the defaults are those of Qwen2-VL with 7 billion parameters."""

    model_type = "qwen2_vl_vision"

    embed_dim: Annotated[int, Multiple("num_heads")] = 1280
    hidden_size: Count = 3584
    hidden_act: str = "quick_gelu"
    mlp_ratio: Count = 4

    width = property(lambda self: self.embed_dim)
    text_width = property(lambda self: self.hidden_size)


class Qwen2VLTextConfig(Qwen2Config, PartConfig):
    """Settings of the text model; the defaults are those of Qwen2-VL with 72 billion parameters."""

    model_type = "qwen2_vl_text"
    section = "text_config"
    default_theta = 1000000.0

    vocab_size: int = 152064
    hidden_size: int = 8192
    intermediate_size: int = 29568
    num_hidden_layers: Layers = 80
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    max_window_layers: Layers = 80
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 151643
    eos_token_id: int | list[int] | None = 151645

    @classmethod
    def complete(cls, rope: dict[str, Any]) -> dict[str, Any]:
        rope = super().complete(rope)
        return rope | {"rope_type": "default"} if rope["rope_type"] == "mrope" else rope


class Qwen2VLConfig(PictureTextConfig):
    """Settings of Qwen2-VL; older files have those of the text model among these, and not in ``text_config``."""

    model_type = "qwen2_vl"
    parts: ClassVar[dict[str, Any]] = {"vision_config": Qwen2VLVisionConfig, "text_config": Qwen2VLTextConfig}

    vision_config: Config | None = None
    text_config: Config | None = None
    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        text: Any = cls.parts["text_config"]
        if values.get("text_config") is None:
            own = specs(text).keys() - specs(Config).keys() | text.aliases.keys() - Config.aliases.keys()
            own |= {"rope_theta", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache"}
            values = {name: value for name, value in values.items() if name not in own} | {
                "text_config": {name: values[name] for name in own & values.keys()}
            }
        vision = values.get("vision_config")
        if isinstance(vision, dict) and vision.get("model_type") == cls.model_type:  # as files once had it
            values = values | {"vision_config": vision | {"model_type": cls.parts["vision_config"].model_type}}
        return super().upgrade(values)

    def check_model(self) -> None:
        super().check_model()
        vision, text = self.vision_config, self.text_config
        if vision is not None and text is not None and (given := vision.text_width) != text.hidden_size:
            text.fail("hidden_size", f"must be the size that `vision_config` gives its features ({given})")


class PatchEmbedding(nn.Conv3d):
    """Makes one state of each patch of two frames: the convolution of patches that are given by themselves is a product."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.flatten(1))


class Merger(Linked):
    """Makes one feature of the states of neighbouring patches, ``merge`` rows and as many columns."""

    def __init__(self, norm: nn.Module, dim: int, merge: int, out: int) -> None:
        super().__init__()
        self.norm, self.inner = norm, dim * merge**2
        self.dense, self.out_proj, self.act = nn.Linear(self.inner, self.inner), nn.Linear(self.inner, out), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N / merge^2, out)."""
        out: Tensor = self.out_proj(self.act(self.dense(self.norm(x).view(-1, self.inner))))
        return out


BLOCK: Table = {
    "norm1": "self_attn_norm",
    "norm2": "mlp_norm",
    "attn": ("self_attn", {"qkv": "qkv_proj", "proj": "o_proj"}),
}
_MERGER: Table = {"ln_q": "norm", "mlp.0": "dense", "mlp.2": "out_proj"}


class Qwen2VisionTransformerPretrainedModel(Backbone):
    """The vision model: ``last_hidden_state`` (N, D) of patches, and ``pooler_output``, the features that a text reads."""

    config_class: ClassVar[type[Config]] = Qwen2VLVisionConfig
    reads = ("hidden_states", "grid_thw")
    table_name = "embed_patches"
    names = Names(
        {
            "patch_embed.proj": "embed_patches",
            "blocks.*": ("layers.*", {**BLOCK, "mlp": ("mlp", {"fc1": "up_proj", "fc2": "down_proj"})}),
            "merger": ("merger", _MERGER),
        }
    )

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        c, size = config, (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.embed_patches = PatchEmbedding(c.in_channels, c.width, size, stride=size, bias=False)
        self.rotary_pos_emb = AxialRotary(c.width // c.num_heads, c.theta)
        self.layers = nn.ModuleList(map(self.block, range(c.depth)))
        self.merger = Merger(self.make_norm(), c.width, c.spatial_merge_size, c.text_width)

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.width, 1e-6)

    def block(self, layer: int) -> Block:
        attention = FusedAttention(self.config.width, self.config.num_heads, rotary="default")
        return self.block_class(layer)(attention, self.feed_forward(), self.make_norm)

    def block_class(self, layer: int) -> type[Block]:
        return PreNorm

    def feed_forward(self) -> nn.Module:
        return MLP(self.config.width, self.config.width * self.config.mlp_ratio, self.config.hidden_act)

    def begin(
        self, hidden_states: Tensor | None = None, grid_thw: Tensor | None = None, **options: Unpack[RecordOptions]
    ) -> tuple[Tensor, Context]:
        """Embed patches (N, numbers of a patch) of pictures with grids (P, 3) of frames, rows and columns.

        Raises:
            InputError: patches of another size, or other ones than the grids say.
        """
        c = self.config
        pixels = check_tensor("pixel_values", hidden_states, (), "(patches, numbers)", _PROCESS)
        wanted = c.in_channels * c.temporal_patch_size * c.patch_size**2
        grids = check_grids(grid_thw, c.spatial_merge_size)
        patches = sum(frames * rows * columns for frames, rows, columns in grids)
        if pixels.shape != (patches, wanted):
            what = f"`pixel_values` is {tuple(pixels.shape)}, but the grids are of {patches} patches of {wanted} numbers."
            raise InputError(what, hint=_PROCESS)
        check_finite(pixels, "pixel_values")
        ctx = self.context(**options)
        if ctx.attentions is not None:
            raise InputError("`output_attentions` cannot be shown for pictures of any size.", hint="Leave it out.")
        ctx.rows = Rows(tuple(chain.from_iterable([rows * columns] * frames for frames, rows, columns in grids)))
        x = self.embed_patches(pixels.to(self.dtype))[None]
        ctx.rotary = {"default": self.rotary_pos_emb(places_of(grids, c.spatial_merge_size).to(x.device), x.dtype)}
        return x, ctx

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        if ctx.hidden_states is not None:
            ctx.hidden_states = [each[0] for each in ctx.hidden_states]
        return self.recorded(BackboneOutput(last_hidden_state=x[0], pooler_output=self.merged(x[0], ctx)), x[0], ctx)

    def merged(self, x: Tensor, ctx: Context) -> Tensor:
        """Features of the states (N, D) of patches, in the order of the pictures."""
        out: Tensor = self.merger(x)
        return out


def check_grids(grids: Any, merge: int) -> list[tuple[int, int, int]]:
    """Frames, rows and columns of patches of each picture, of a tensor (P, 3); sides are multiples of ``merge``."""
    found = check_tensor("image_grid_thw", grids, INTEGERS, "(pictures, 3)", _PROCESS).tolist()
    for number, grid in enumerate(found):
        if len(grid) != 3 or min(grid) < 1 or grid[1] % merge or grid[2] % merge:
            what = f"the grid of picture {number} is {grid}, but must be frames, rows and columns, the latter in {merge}s."
            raise InputError(what, hint=_PROCESS)
    return [(frames, rows, columns) for frames, rows, columns in found]


def places_of(grids: Sequence[tuple[int, int, int]], merge: int) -> Tensor:
    """(2, N) rows and columns of patches, which stand in blocks of ``merge`` rows and columns."""
    found = []
    for frames, rows, columns in grids:
        cells = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).T
        blocks = cells.view(2, rows // merge, merge, columns // merge, merge).transpose(2, 3)
        found.append(blocks.reshape(2, -1).repeat(1, frames))
    return torch.cat(found, dim=1)


class Qwen2VLTextModel(Qwen2Model):
    """The text model; ``position_ids`` are (B, T), or (3, B, T) of time, rows and columns."""

    config_class = Qwen2VLTextConfig
    infers_texts = False
    names = Qwen2Model.names | Names(heads=frozenset({"visual", "lm_head"}))

    def make_rotary(self) -> RotaryTables:
        return rotary_tables(self.config, SectionRotary)

    def positions(self, given: Tensor | None, x: Tensor, ctx: Context, ids: Tensor | None = None) -> Tensor:
        if given is None or given.ndim == 2:
            return super().positions(given, x, ctx, ids)
        if given.ndim != 3 or given.shape[0] != 3 or given.shape[1] not in (1, x.shape[0]) or given.shape[2] != x.shape[1]:
            wanted = (3, *x.shape[:2])
            raise InputError(f"`position_ids` has the shape {tuple(given.shape)}, but must be {wanted[1:]} or {wanted}.")
        return given


class Qwen2VLModel(PictureTextBackbone):
    """Qwen2-VL without a head."""

    config_class: ClassVar[type[Config]] = Qwen2VLConfig
    parts = (
        Part("visual", Qwen2VisionTransformerPretrainedModel, "vision_config"),
        Part("language_model", Qwen2VLTextModel, "text_config"),
    )
    base_model_prefix = "model"
    kinds = (
        Pictures("image", "pixel_values", "image_token_id", "image_grid_thw"),
        Pictures("video", "pixel_values_videos", "video_token_id", "video_grid_thw"),
    )
    picture_inputs: ClassVar[tuple[str, ...]] = ("mm_token_type_ids",)
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "labels", "use_cache"),
        *("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw", "mm_token_type_ids"),
        "mm_encoder_outputs",
    )
    names = Names(legacy={part: f"language_model.{part}" for part in ("layers", "embed_tokens", "norm")})

    def get_image_features(self, pixel_values: Tensor, image_grid_thw: Tensor | None = None, **options: Any) -> BackboneOutput:
        """The vision model's output for images; ``pooler_output`` has the features (., D) of each one."""
        output: BackboneOutput = self.visual(pixel_values, image_grid_thw, return_dict=True, **options)
        sizes = image_grid_thw.prod(-1) // self.config.vision_config.spatial_merge_size**2  # type: ignore[union-attr]
        output["pooler_output"] = output["pooler_output"].split(sizes.tolist())
        return output

    def get_video_features(
        self, pixel_values_videos: Tensor, video_grid_thw: Tensor | None = None, **options: Any
    ) -> BackboneOutput:
        """The same for videos."""
        return self.get_image_features(pixel_values_videos, video_grid_thw, **options)

    def features(self, kind: str, pixels: Tensor, inputs: Mapping[str, Any]) -> BackboneOutput:
        return self.get_image_features(pixels, inputs.get(f"{kind}_grid_thw"))

    def sizes(self, kind: Pictures, given: Mapping[str, Any]) -> list[int]:
        merged = self.config.vision_config.spatial_merge_size**2
        return [int(size) // merged for size in given[str(kind.grids)].prod(-1)]

    def picked(self, kind: Pictures, given: dict[str, Any], keep: Sequence[bool]) -> dict[str, Any]:
        grids = given[str(kind.grids)]
        parts = given[kind.pixels].split(grids.prod(-1).tolist())
        kept = [part for part, wanted in zip(parts, keep, strict=True) if wanted]
        return {kind.pixels: torch.cat(kept), str(kind.grids): grids[torch.tensor(keep)]}

    def intervals(self, given: Mapping[str, Any]) -> Iterator[float]:
        """How far in time the steps of each video are from each other."""
        return repeat(1.0)

    def numbered(self, x: Tensor, mask: Tensor | None, cache: Cache | None, found: Mapping[str, Any]) -> Tensor | None:
        """(3, B, T): pictures take the numbers of their rows and columns, and padding takes none."""
        merge, read = self.config.vision_config.spatial_merge_size, 0 if cache is None else cache.get_seq_length()
        deltas = None if cache is None else cache.deltas
        if deltas is None and not any(kind.grids in found for kind in self.kinds):
            return None
        if x.shape[1] == 1 and mask is None and deltas is not None:  # a step of writing
            return (deltas[:, None] + read).expand(3, -1, -1)
        types = found.get("mm_token_type_ids")
        if types is None:
            types = found["image"].long() + 2 * found["video"].long()
        grids = {each: found.get(name) for each, name in ((1, "image_grid_thw"), (2, "video_grid_thw"))}
        sizes = {each: [] if grid is None else check_grids(grid, merge) for each, grid in grids.items()}
        merged = {each: [(t, h // merge, w // merge) for t, h, w in size] for each, size in sizes.items()}
        real = torch.ones(x.shape[0], read + x.shape[1], dtype=torch.bool) if mask is None else mask.cpu() != 0
        starts = real[:, :read].sum(dim=1) + (0 if deltas is None else deltas.cpu())
        queues = {1: zip(merged[1], repeat(1.0)), 2: zip(merged[2], self.intervals(found))}
        return section_positions(types.cpu(), real[:, read:], starts.tolist(), queues).to(x.device)

    def number(self, positions: Tensor | None, x: Tensor, mask: Any, cache: Any) -> None:
        if cache is not None and positions is not None and positions.ndim == 3 and positions.shape[2] > 1:
            cache.settled = cache.get_seq_length()
            real = cache.settled if mask is None or mask.ndim != 2 else (mask != 0).sum(dim=1)
            cache.deltas = (positions.amax(dim=(0, 2)) + 1 - real).expand(x.shape[0])

    def get_rope_index(
        self, input_ids: Tensor, mm_token_type_ids: Tensor | None = None, attention_mask: Tensor | None = None, **grids: Any
    ) -> tuple[Tensor, Tensor]:
        """Positions (3, B, T) of a batch with pictures, and by how much (B, 1) those that follow differ from their count.

        ``grids`` are ``image_grid_thw`` and ``video_grid_thw``.
        """
        x = self.language_model.embed_ids(input_ids)
        found = self.placeholders(input_ids, x) | {name: value for name, value in grids.items() if value is not None}
        found |= {} if mm_token_type_ids is None else {"mm_token_type_ids": mm_token_type_ids}
        plain = torch.arange(x.shape[1], device=x.device).expand(3, x.shape[0], -1)
        positions = self.numbered(x, attention_mask, None, found)
        positions = plain if positions is None else positions
        real = x.shape[1] if attention_mask is None else attention_mask.sum(dim=1)
        return positions, (positions.amax(dim=(0, 2)) + 1 - real)[:, None]


class Qwen2VLForConditionalGeneration(ForImageTextToText[Qwen2VLModel]):
    """Qwen2-VL that writes."""

    stored: ClassVar[dict[str, str]] = {"language_model": "model"}
    names = ForImageTextToText.names | Names(legacy={"language_model": "model"})

    def get_video_features(self, *args: Any, **options: Any) -> BackboneOutput:
        """The same for videos."""
        return self.backbone.get_video_features(*args, **options)

    def get_rope_index(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Positions of a batch; see :meth:`Qwen2VLModel.get_rope_index`."""
        return self.backbone.get_rope_index(*args, **options)
