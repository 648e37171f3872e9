"""LayoutLMv3 (Huang et al. 2022): an encoder that reads the words of a page, where they stand on it, and its picture.

Words are embedded as RoBERTa's are, with their boxes beside; patches of the picture follow them behind a class token of their
own. Scores have a bias by the distance of two positions in order, and by that of their boxes along both sides of the page.
Shapes: B batch, T words' pieces, N patches, S = T + 1 + N positions, C channels, H height, W width, D hidden size.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import MAX_SIZE, Below, Count, PaddingId, Range, Share
from transept.config.model import Config
from transept.core.inputs import INTEGERS, check_range, check_tensor
from transept.errors import InputError
from transept.heads import classify, span
from transept.heads.classify import Classifier
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.image import check_images, check_patches, pair
from transept.kinds.text import Options, TextBackbone
from transept.layers import Context, CountedPositions
from transept.layers.grids import GridPositions, PatchEmbeddings, Patches, learned_tokens
from transept.layers.links import Linked
from transept.layers.positions import distance_buckets
from transept.models.bert import BERT_BLOCK
from transept.models.roberta import EMBEDDINGS
from transept.outputs import ModelOutput

PAGE = 1000  # the sides of a page, whatever the size of its picture
_PATCH_EPS = 1e-6  # of the norm of patches; the config's own number is the other norms'
_LAST_SIZE = 1023  # of a box, however large the tables are


class LayoutLMv3Config(EncoderConfig):
    """Settings of LayoutLMv3; the defaults are those of layoutlmv3-base.

    ``input_size`` is that of the pictures that the positions of patches were learned for. Without ``text_embed`` or
    ``visual_embed`` a model reads no words, or no pictures. Distances of boxes count only where those in order do.
    """

    model_type = "layoutlmv3"
    aliases = {"image_size": "input_size"}

    vocab_size: int = 50265
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-5
    pad_token_id: Annotated[PaddingId | None, Below("max_position_embeddings")] = 1
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 2
    max_2d_position_embeddings: Count = 1024
    coordinate_size: Count = 128
    shape_size: Count = 128
    has_relative_attention_bias: bool = True
    rel_pos_bins: Annotated[int, Range(4, MAX_SIZE)] = 32
    max_rel_pos: int = 128
    has_spatial_attention_bias: bool = True
    rel_2d_pos_bins: Annotated[int, Range(4, MAX_SIZE)] = 64
    max_rel_2d_pos: int = 256
    text_embed: bool = True
    visual_embed: bool = True
    input_size: int | list[int] = 224
    num_channels: Count = 3
    patch_size: int | list[int] = 16
    classifier_dropout: Share | None = None

    def validate(self) -> None:
        super().validate()
        check_patches(self)
        if 4 * self.coordinate_size + 2 * self.shape_size != self.hidden_size:
            rule = f"must be such that 4 of it and 2 `shape_size` ({self.shape_size}) make `hidden_size` ({self.hidden_size})"
            self.fail("coordinate_size", rule)
        for bins, furthest in (("rel_pos_bins", "max_rel_pos"), ("rel_2d_pos_bins", "max_rel_2d_pos")):
            if getattr(self, furthest) <= getattr(self, bins) // 4:
                self.fail(furthest, f"must be more than a quarter of `{bins}` ({getattr(self, bins)})")


class BoxEmbedding(Linked):
    """Boxes (B, T, 4), each left, top, right and bottom from 0 to 1000 -> (B, T, D): their sides and sizes, side by side."""

    def __init__(self, c: LayoutLMv3Config) -> None:
        super().__init__()
        rows = c.max_2d_position_embeddings
        self.x, self.y = (nn.Embedding(rows, c.coordinate_size) for _ in range(2))
        self.h, self.w = (nn.Embedding(rows, c.shape_size) for _ in range(2))
        self.last_size = min(_LAST_SIZE, rows - 1)

    def forward(self, boxes: Tensor) -> Tensor:
        left, top, right, bottom = boxes.unbind(-1)
        height, width = ((end - begin).clamp(0, self.last_size) for begin, end in ((top, bottom), (left, right)))
        sides = self.x(left), self.y(top), self.x(right), self.y(bottom)
        return torch.cat([*sides, self.h(height), self.w(width)], dim=-1)

    def check(self, boxes: Tensor | None, x: Tensor) -> Tensor:
        """The boxes (B, T, 4) of embeddings (B, T, D), checked where they can be looked at; all zero where none are given."""
        if boxes is None:
            return torch.zeros(*x.shape[:2], 4, dtype=torch.long, device=x.device)
        hint = "The tokenizer makes them, of boxes from 0 to 1000: tokenizer(words, boxes=boxes)."
        boxes = check_tensor("bbox", boxes, INTEGERS, "(batch, positions, 4)", hint)
        if boxes.shape != (*x.shape[:2], 4):
            wanted = (*x.shape[:2], 4)
            raise InputError(
                f"`bbox` has the shape {tuple(boxes.shape)}, but must be {wanted}: a box for each token.", hint=hint
            )
        check_range("bbox", boxes, self.x.num_embeddings, "the model has the coordinates 0 to", "Scale boxes to 0 to 1000.")
        sizes = boxes[..., 2:] - boxes[..., :2]
        if not torch.compiler.is_compiling() and sizes.device.type == "cpu" and (sizes < 0).any():
            row, place, side = (sizes < 0).nonzero()[0].tolist()
            box, name = boxes[row, place].tolist(), ("width", "height")[side]
            what = f"`bbox` holds {box} at [{row}, {place}], a box of negative {name}."
            raise InputError(what, hint="A box is left, top, right, bottom.")
        return boxes


def patch_boxes(rows: int, columns: int, device: torch.device) -> Tensor:
    """(1 + N, 4): the box of the class token, nearly the whole page, and those of patches on a grid over it."""
    x, y = (torch.arange(count + 1, device=device) * PAGE // count for count in (columns, rows))
    sides = (x[None, :-1], y[:-1, None], x[None, 1:], y[1:, None])
    grid = torch.stack([side.expand(rows, columns) for side in sides], dim=-1)
    return torch.cat([grid.new_tensor([[1, 1, PAGE - 1, PAGE - 1]]), grid.flatten(0, 1)])


_BOXES = {f"{name}_position_embeddings": f"embed_boxes.{name}" for name in ("x", "y", "h", "w")}
_BIASES = {"rel_pos_bias": "order_bias", "rel_pos_x_bias": "x_bias", "rel_pos_y_bias": "y_bias"}


class DistanceBias(nn.Embedding):
    """What each head adds to scores for a distance; the weight (heads, buckets) has a column for each range of distances."""

    def __init__(self, heads: int, buckets: int, furthest: int) -> None:
        super().__init__(heads, buckets)
        self.furthest = furthest

    def forward(self, input: Tensor) -> Tensor:
        """(1 or B, heads, S, S), for the distances of places (1 or B, S) to one another."""
        apart = input[:, None, :] - input[:, :, None]
        buckets = distance_buckets(apart, buckets=self.embedding_dim, furthest=self.furthest)
        return self.weight.index_select(1, buckets.flatten()).view(-1, *buckets.shape).transpose(0, 1)


class LayoutLMv3Model(TextBackbone):
    """LayoutLMv3 without a head: words, a picture, or both -> states (B, S, D), those of words first."""

    config_class = LayoutLMv3Config
    head_dropouts = ("classifier_dropout", "hidden_dropout_prob")
    ragged = False  # biases differ from row to row
    by_position = (*TextBackbone.by_position, "bbox")
    reads = (
        *("input_ids", "bbox", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
        *("labels", "pixel_values"),
    )
    names = Names(
        {
            "cls_token": "picture.cls_token",
            "pos_embed": "picture.positions.table",
            "embeddings": ("", {**EMBEDDINGS, **_BOXES}),
            "patch_embed": ("picture.patches", {"proj": "projection"}),
            "LayerNorm": "joint_norm",
            "norm": "picture.norm",
            "encoder": ("", {"layer.*": ("layers.*", BERT_BLOCK), **_BIASES}),
        },
        ignore=("embeddings.position_ids", "visual_bbox"),
    )
    config: LayoutLMv3Config

    def __init__(self, config: LayoutLMv3Config) -> None:
        super().__init__(config)
        del self.norm  # there is none after the last layer: the norm of patches is called so
        c = config
        norm = partial(nn.LayerNorm, c.hidden_size, c.layer_norm_eps)
        if c.text_embed:
            assert c.pad_token_id is not None
            self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size, padding_idx=c.pad_token_id)
            self.embed_positions = CountedPositions(c.max_position_embeddings, c.hidden_size, c.pad_token_id)
            self.embed_types = nn.Embedding(c.type_vocab_size, c.hidden_size)
            self.embed_boxes = BoxEmbedding(c)
            self.embed_norm = norm()
        if c.visual_embed:
            self.picture, self.joint_norm = self.make_picture(c), norm()
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        if c.has_relative_attention_bias:
            self.order_bias = DistanceBias(c.num_attention_heads, c.rel_pos_bins, c.max_rel_pos)
        if c.has_spatial_attention_bias:
            table = (c.num_attention_heads, c.rel_2d_pos_bins, c.max_rel_2d_pos)
            self.x_bias, self.y_bias = DistanceBias(*table), DistanceBias(*table)
        self.layers = encoder_layers(c)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        x = x + self.segments(types, x, self.embed_types) + self.embed_positions(positions)
        return self.dropout(self.embed_norm(x))

    def finalize(self, x: Tensor) -> Tensor:
        return x

    def make_picture(self, c: LayoutLMv3Config) -> PatchEmbeddings:
        """Patches of pictures of any size, a class token before them, learned positions, a norm."""
        patches = Patches(c.num_channels, c.hidden_size, pair(c.patch_size))
        return PatchEmbeddings(
            patches,
            tokens=learned_tokens(c.hidden_size, "cls_token"),
            positions=GridPositions(patches.grid(*pair(c.input_size)), c.hidden_size, first=1),
            norm=nn.LayerNorm(c.hidden_size, _PATCH_EPS),
        )

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        bbox: Tensor | None = None,
        pixel_values: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context]:
        """Embed words, a picture (B, C, H, W) of any size, or both.

        ``bbox`` (B, T, 4) are the boxes of the words, integers from 0 to 1000; all zero when absent. The mask (B, T) is of
        words alone: a picture is always seen whole.

        Raises:
            InputError: neither words nor a picture, or one that this model has no part for; boxes of another shape, outside
                the page or of negative size; a picture of another number of channels, or smaller than a patch.
        """
        if input_ids is None and inputs_embeds is None and pixel_values is not None:
            record = {name: options.get(name) for name in ("output_attentions", "output_hidden_states", "return_dict")}
            ctx = self.context(**record)  # type: ignore[arg-type]
            return self.with_picture(None, None, pixel_values, ctx)
        if not self.config.text_embed:
            raise InputError("this model reads no words: its config has no `text_embed`.", hint="Pass `pixel_values` alone.")
        ctx = self.start(input_ids, inputs_embeds, attention_mask, **options)
        x: Any = self.embed_ids(input_ids) if input_ids is not None else inputs_embeds  # one of the two is there
        boxes = self.embed_boxes.check(bbox, x)
        positions = self.positions(position_ids, x, ctx, input_ids)
        x = self.embed(x + self.embed_boxes(boxes), token_type_ids, positions, ctx)
        if pixel_values is not None:
            return self.with_picture(x, boxes, pixel_values, ctx)
        self.add_biases(ctx, torch.arange(x.shape[1], device=x.device), boxes)
        return x, ctx

    def with_picture(self, x: Tensor | None, boxes: Tensor | None, pixels: Tensor, ctx: Context) -> tuple[Tensor, Context]:
        """The words' states (B, T, D), if there are any, and behind them those of a picture (B, C, H, W)."""
        if not self.config.visual_embed:
            hint = "Leave `pixel_values` out."
            raise InputError("this model reads no pictures: its config has no `visual_embed`.", hint=hint)
        pixels = check_images(pixels, self.config.num_channels, self.dtype)
        patches, grid = self.picture(pixels), self.picture.grid(*pixels.shape[2:])
        count, size = patches.shape[:2]
        on_page = patch_boxes(*grid, patches.device)[None].expand(count, -1, -1)
        order = torch.arange(size, device=patches.device)
        if x is not None and boxes is not None:
            if len(x) != count:
                raise InputError(f"there are {len(x)} rows of words, but {count} pictures.", hint="Pass one for each row.")
            if ctx.full_mask is not None:
                hint = "Pass (batch, positions), 1 for real tokens."
                raise InputError("beside a picture, `attention_mask` cannot be for pairs of positions.", hint=hint)
            order = torch.cat([torch.arange(x.shape[1], device=x.device), order])  # it begins anew at the picture
            boxes, patches = torch.cat([boxes, on_page], dim=1), torch.cat([x, patches], dim=1)
            if ctx.padding is not None:
                ctx.padding = torch.cat([ctx.padding, ctx.padding.new_ones(count, size)], dim=1)
            ctx.texts = None
        ctx.queries = ctx.keys = patches.shape[1]
        self.add_biases(ctx, order, on_page if boxes is None else boxes)
        return self.dropout(self.joint_norm(patches)), ctx

    def add_biases(self, ctx: Context, order: Tensor, boxes: Tensor) -> None:
        """Put (1 or B, heads, S, S) into the context, for the numbers (S) of positions in order and their boxes (B, S, 4)."""
        c = self.config
        if not c.has_relative_attention_bias:
            return
        bias = self.order_bias(order[None])
        if c.has_spatial_attention_bias:
            across, down = boxes[..., 0], boxes[..., 3]
            bias = bias + self.x_bias(across) + self.y_bias(down)
        ctx.position_bias = bias * (c.hidden_size // c.num_attention_heads) ** -0.5  # as scores are


class LayoutLMv3ForSequenceClassification(classify.ForSequenceClassification[LayoutLMv3Model]):
    """LayoutLMv3 that classifies pages, by the state of the first word's piece, or of the picture's class token."""

    reads = (
        *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
        *("labels", "bbox", "pixel_values"),
    )
    act = "tanh"
    names = Names({"classifier": "head"})


class LayoutLMv3ForTokenClassification(classify.ForTokenClassification[LayoutLMv3Model]):
    """LayoutLMv3 that classifies the words of a page; with ten classes or more by a head of two layers."""

    _MANY = 10

    def make_head(self, config: Config) -> nn.Module:
        if config.num_labels < self._MANY:
            return Classifier(self.backbone.dim, self.classes, dropout=config.hidden_dropout_prob)
        return Classifier(self.backbone.dim, self.classes, act="tanh", dropout=self.backbone.head_dropout())

    @classmethod
    def own_names_of(cls, config: Config) -> Names:
        return Names({"classifier": "head.out_proj" if config.num_labels < cls._MANY else "head"})

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        given = [inputs[name] for name in ("input_ids", "inputs_embeds") if inputs.get(name) is not None]
        if not given:
            raise InputError("there are no words to classify, but a picture alone.", hint="Pass `input_ids` and `bbox`.")
        return self.output_class(logits=self.head(states.last_hidden_state[:, : given[0].shape[1]]))


class LayoutLMv3ForQuestionAnswering(span.ForQuestionAnswering[LayoutLMv3Model]):
    """LayoutLMv3 that answers questions by words of a page; logits are (B, S), though patches are no answers."""

    reads = (
        *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
        *("start_positions", "end_positions", "bbox", "pixel_values"),
    )
    act, head_dropouts = "tanh", None
    names = Names({"qa_outputs": "head"})

    def length(self, inputs: dict[str, Any]) -> int:
        given = [inputs[name].shape[1] for name in ("input_ids", "inputs_embeds") if inputs.get(name) is not None]
        rows, columns = (
            (0, 0) if (pixels := inputs.get("pixel_values")) is None else self.backbone.picture.grid(*pixels.shape[2:])
        )
        return sum(given[:1]) + rows * columns + (pixels is not None)
