"""Funnel Transformer (Dai et al. 2020): an encoder whose blocks halve the sequence, and a decoder that restores its length."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Multiple, PaddingId, Share, derived
from transept.config.model import Config
from transept.heads import classify, language, span
from transept.kinds.text import Options, TextBackbone
from transept.layers import MLP, Context
from transept.layers.attention.kernels import weigh
from transept.layers.links import Layer, Linked
from transept.models.electra import ElectraForPreTraining
from transept.outputs import BackboneOutput

FIRST_TYPE = 2  # the type of the first token, which is of both texts


class FunnelConfig(Config):
    """Settings of Funnel Transformer.

    Blocks have ``block_sizes`` layers, each run ``block_repeats`` times, and halve the sequence by the ``mean`` or ``max``, the
    queries alone with ``pool_q_only``. With ``separate_cls`` the first token stays as it is, and with ``truncate_seq`` the last
    one is left out then. ``num_decoder_layers`` come behind.
    """

    model_type = "funnel"
    aliases = {"hidden_size": "d_model", "num_attention_heads": "n_head"}

    vocab_size: int = 30522
    block_sizes: list[int] = derived(lambda c: [4, 4, 4])
    block_repeats: list[int] = derived(lambda c: [1] * len(c.block_sizes))
    num_decoder_layers: int = 2
    d_model: Annotated[int, Multiple("n_head")] = 768
    n_head: int = 12
    d_head: Count = 64
    d_inner: int = 3072
    hidden_act: str = "gelu_new"
    hidden_dropout: Share = 0.1
    attention_dropout: Share = 0.1
    activation_dropout: Share = 0.0
    initializer_range: Deviation = 0.1
    initializer_std: float | None = None
    layer_norm_eps: float = 1e-9
    pooling_type: Literal["mean", "max"] = "mean"
    attention_type: Literal["relative_shift", "factorized"] = "relative_shift"
    separate_cls: bool = True
    truncate_seq: bool = True
    pool_q_only: bool = True
    pad_token_id: PaddingId | None = None

    def check_model(self) -> None:
        super().check_model()
        if len(self.block_sizes) != len(self.block_repeats):
            self.fail("block_repeats", f"must be as many as block_sizes, {len(self.block_sizes)}")

    @property
    def num_hidden_layers(self) -> int:
        return sum(self.block_sizes)


class Places(NamedTuple):
    """What is known of each place of a sequence: positions (T), token types (B, T), and which are real (B, T)."""

    positions: Tensor
    types: Tensor
    real: Tensor | None


class FunnelAttention(Linked):
    """Attention with scores of contents, of distances and of token types: queries (B, T, D), states (B, S, D) -> (B, T, D)."""

    def __init__(self, c: FunnelConfig, block: int) -> None:
        super().__init__()
        self.heads, self.head_dim, self.block, self.factorized = c.n_head, c.d_head, block, c.attention_type == "factorized"
        self.separate, self.dropout, self.range, self.dim = c.separate_cls, c.attention_dropout, c.initializer_range, c.d_model
        size = c.n_head * c.d_head
        self.q_proj, self.k_proj = nn.Linear(c.d_model, size, bias=False), nn.Linear(c.d_model, size)
        self.v_proj, self.o_proj = nn.Linear(c.d_model, size), nn.Linear(size, c.d_model)
        self.r_w_bias, self.r_r_bias, self.r_s_bias = (nn.Parameter(torch.zeros(c.n_head, c.d_head)) for _ in range(3))
        self.r_kernel = nn.Parameter(torch.zeros(c.d_model, c.n_head, c.d_head))
        self.seg_embed = nn.Parameter(torch.zeros(2, c.n_head, c.d_head))

    def reset(self) -> None:
        for table in (self.r_w_bias, self.r_r_bias, self.r_s_bias, self.r_kernel, self.seg_embed):
            nn.init.uniform_(table, b=self.range)

    def forward(self, x: Tensor, states: Tensor, asking: Places, asked: Places, ctx: Context) -> Tensor:
        scale = self.head_dim**-0.5
        q = self.q_proj(x).view(*x.shape[:2], self.heads, -1) * scale  # (B, T, H, E)
        k, v = (layer(states).view(*states.shape[:2], self.heads, -1) for layer in (self.k_proj, self.v_proj))
        scores = torch.einsum("bind,bjnd->bnij", q + self.r_w_bias * scale, k)
        far = self.by_place(q + self.r_r_bias * scale, asking, asked)
        of_types = torch.einsum("bind,snd->bnis", q + self.r_s_bias * scale, self.seg_embed)
        first = (asking.types == FIRST_TYPE)[:, :, None] | (asked.types == FIRST_TYPE)[:, None]
        same = (asking.types[:, :, None] == asked.types[:, None]) | first
        alike = torch.where(same[:, None], of_types[..., 1:], of_types[..., :1])
        if self.separate:  # the first token has no place
            inner = F.pad(scores.new_ones(scores.shape[2] - 1, scores.shape[3] - 1), (1, 0, 1, 0))
            far, alike = far * inner, alike * inner
        mask = None if asked.real is None else asked.real[:, None, None]
        out, weights = weigh(scores + far + alike, v.transpose(1, 2), mask, False, self.dropout if self.training else 0.0)
        if ctx.attentions is not None:
            ctx.attentions.append(weights)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def by_place(self, q: Tensor, asking: Places, asked: Places) -> Tensor:
        """The scores (B, H, T, S) of distances, of queries (B, T, H, E)."""
        queries, keys = q.shape[1], len(asked.positions)
        if self.factorized:
            x = torch.einsum("binh,dnh->bnid", q, self.r_kernel)
            (sin_q, cos_q), (sin_k, cos_k) = self.waves(asking.positions, q), self.waves(asked.positions, q)
            psi, omega = torch.cat([cos_k, sin_k], dim=-1), torch.cat([-sin_k, cos_k], dim=-1)
            return (x * torch.cat([sin_q] * 2, dim=-1)) @ psi.mT + (x * torch.cat([cos_q] * 2, dim=-1)) @ omega.mT
        step = 2 if queries != keys else 1  # whether queries are of the halved sequence, and keys of the whole one
        stride = 2**self.block // step
        first = -stride if step == 2 and self.separate else 0
        # The distance of places i and j is first + stride * (step * i - j).
        distances = first + stride * torch.arange(step * (queries - 1), -keys, -1, device=q.device)
        table = torch.einsum("td,dnh->tnh", torch.cat(self.waves(distances, q), dim=-1), self.r_kernel)
        scores = torch.einsum("binh,tnh->bnit", q, table)
        i, j = torch.arange(queries, device=q.device)[:, None], torch.arange(keys, device=q.device)
        return scores.gather(3, (step * (queries - 1 - i) + j).expand(*scores.shape[:2], -1, -1))

    def waves(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Sines and cosines (T, D / 2) of positions (T)."""
        half = self.dim // 2
        frequencies = 1 / 10000 ** (torch.arange(half, device=like.device).to(like.dtype) / half)
        angles = positions.to(like.dtype)[:, None] * frequencies
        return angles.sin(), angles.cos()


class FunnelLayer(Layer):
    """Attention and a feed-forward layer, each added to its input and normed; keys may be of a longer sequence."""

    def __init__(self, c: FunnelConfig, block: int) -> None:
        super().__init__()
        self.self_attn, self.self_attn_norm = FunnelAttention(c, block), nn.LayerNorm(c.d_model, c.layer_norm_eps)
        options: dict[str, Any] = {"dropout": c.activation_dropout, "chunk_size": c.chunk_size_feed_forward}
        self.mlp = MLP(c.d_model, c.d_inner, c.hidden_act, **options)
        self.mlp_norm, self.dropout = nn.LayerNorm(c.d_model, c.layer_norm_eps), nn.Dropout(c.hidden_dropout)

    def forward(self, x: Tensor, states: Tensor, asking: Places, asked: Places, ctx: Context) -> Tensor:
        x = self.self_attn_norm(x + self.dropout(self.self_attn(x, states, asking, asked, ctx)))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


class FunnelBlock(Linked):
    """Layers of one length."""

    def __init__(self, layers: list[FunnelLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


FUNNEL_LAYER: Table = {
    "attention": (
        "",
        {
            "q_head": "self_attn.q_proj",
            "k_head": "self_attn.k_proj",
            "v_head": "self_attn.v_proj",
            "post_proj": "self_attn.o_proj",
            **{name: f"self_attn.{name}" for name in ("r_w_bias", "r_r_bias", "r_kernel", "r_s_bias", "seg_embed")},
            "layer_norm": "self_attn_norm",
        },
    ),
    "ffn": ("", {"linear_1": "mlp.up_proj", "linear_2": "mlp.down_proj", "layer_norm": "mlp_norm"}),
}


class FunnelBaseModel(TextBackbone):
    """The encoder of Funnel Transformer: states of the shortened sequence."""

    config_class = FunnelConfig
    accepts = Options  # without what tells of several texts in a row
    ragged = False  # states would be halved across texts
    head_dropouts = ("hidden_dropout",)
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels"),
    )
    names = Names(
        {
            "embeddings": ("", {"word_embeddings": "embed_tokens", "layer_norm": "embed_norm"}),
            "encoder.blocks.*.*": ("blocks.*.layers.*", FUNNEL_LAYER),
            "decoder.layers.*": ("decoder_layers.*", FUNNEL_LAYER),
        }
    )
    config: FunnelConfig

    def __init__(self, config: FunnelConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model, padding_idx=c.pad_token_id)
        self.embed_norm, self.dropout = nn.LayerNorm(c.d_model, c.layer_norm_eps), nn.Dropout(c.hidden_dropout)
        self.blocks = nn.ModuleList(
            FunnelBlock([FunnelLayer(c, block) for _ in range(size)]) for block, size in enumerate(c.block_sizes)
        )

    @property
    def layers(self) -> list[nn.Module]:  # type: ignore[override]
        return [layer for block in self.blocks for layer in block.layers]  # type: ignore[union-attr]

    @property
    def rows_apart(self) -> bool:
        return False

    def deviation(self, module: nn.Module) -> float:
        if self.config.initializer_std is not None or isinstance(module, nn.Embedding):
            return 1.0 if self.config.initializer_std is None else self.config.initializer_std
        return (1 / sum(module.weight.shape)) ** 0.5 if isinstance(module, nn.Linear) else super().deviation(module)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        kinds = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device) if types is None else types.expand(len(x), -1)
        ctx.own = Places(places, kinds, ctx.padding)
        return self.dropout(self.embed_norm(x))

    def every_other(self, x: Tensor) -> Tensor:
        """(..., T) -> (..., T / 2) or so: every other one."""
        if not self.config.separate_cls:
            return x[..., ::2]
        x = torch.cat([x[..., :1], x], dim=-1)
        return x[..., :-1:2] if self.config.truncate_seq else x[..., ::2]

    def halved(self, x: Tensor, by: str) -> Tensor:
        """(B, D, T) -> (B, D, T / 2) or so: the mean, the max or the min of neighbours."""
        if self.config.separate_cls:
            x = torch.cat([x[..., :1], x[..., :-1] if self.config.truncate_seq else x], dim=-1)
        if by == "mean":
            return F.avg_pool1d(x, 2, ceil_mode=True)
        return -F.max_pool1d(-x, 2, ceil_mode=True) if by == "min" else F.max_pool1d(x, 2, ceil_mode=True)

    def shortened(self, places: Places, x: Tensor) -> Places:
        real = None if places.real is None else self.halved(places.real[:, None].to(x.dtype), "min")[:, 0] > 0
        return Places(self.every_other(places.positions), self.every_other(places.types), real)

    def run(self, x: Tensor, ctx: Context, start: int = 0, stop: int | None = None) -> Tensor:
        """States (B, T, D) through all blocks: (B, S, D)."""
        return self.encoded(x, ctx)[-1]

    def encoded(self, x: Tensor, ctx: Context) -> list[Tensor]:
        """What goes into the first layer, and what each gives."""
        c, states, places = self.config, [x], ctx.own
        layer: Any
        for number, block in enumerate(self.blocks):
            shortens = number > 0 and x.shape[1] > (2 if c.separate_cls else 1)
            for layer in [layer for layer in block.layers for _ in range(c.block_repeats[number])]:  # type: ignore[union-attr]
                if shortens:
                    query, short = self.halved(x.mT, c.pooling_type).mT, self.shortened(places, x)
                    keys = (x, places) if c.pool_q_only else (query, short)
                    x, places, shortens = layer(query, keys[0], short, keys[1], ctx), short, False
                else:
                    x = layer(x, x, places, places, ctx)
                states.append(x)
        if ctx.hidden_states is not None:
            ctx.hidden_states += states[:-1]
        return states

    def end(self, x: Tensor, ctx: Context) -> Any:
        return self.recorded(BackboneOutput(last_hidden_state=x), x, ctx)


class FunnelModel(FunnelBaseModel):
    """Funnel Transformer without a head: states of the whole sequence, by its decoder."""

    reads = ("input_ids", "attention_mask", "token_type_ids", "inputs_embeds", "labels")

    def __init__(self, config: FunnelConfig) -> None:
        super().__init__(config)
        self.decoder_layers = nn.ModuleList(FunnelLayer(config, 0) for _ in range(config.num_decoder_layers))

    @property
    def layers(self) -> list[nn.Module]:  # type: ignore[override]
        return [*super().layers, *self.decoder_layers]

    def run(self, x: Tensor, ctx: Context, start: int = 0, stop: int | None = None) -> Tensor:
        """States (B, T, D) through all blocks and the decoder: (B, T, D)."""
        states, places = self.encoded(x, ctx), ctx.own
        if ctx.hidden_states is not None:
            ctx.hidden_states.append(states[-1])
        x = self.stretched(states[-1], x.shape[1]) + states[self.config.block_sizes[0]]
        for layer in self.decoder_layers:
            if ctx.hidden_states is not None:
                ctx.hidden_states.append(x)
            x = layer(x, x, places, places, ctx)
        return x

    def stretched(self, x: Tensor, length: int) -> Tensor:
        """(B, S, D) -> (B, T, D): each state as often as it stands for a place."""
        c, times = self.config, 2 ** (len(self.config.block_sizes) - 1)
        if times == 1:
            return x
        if not c.separate_cls:
            return x.repeat_interleave(times, dim=1)[:, :length]
        rest = x[:, 1:].repeat_interleave(times, dim=1)
        rest = F.pad(rest, (0, 0, 0, times - 1)) if c.truncate_seq else rest
        return torch.cat([x[:, :1], rest[:, : length - 1]], dim=1)


class FunnelForPreTraining(ElectraForPreTraining, backbone=FunnelModel): ...


class FunnelForMaskedLM(language.ForMaskedLM[FunnelModel]):
    names = Names({"lm_head": "lm_head"}, ties={"lm_head.weight": "backbone.embed_tokens.weight"})

    def step_classes(self) -> dict[str, Any]:
        return {}

    def make_head(self, config: Config) -> nn.Module:
        return nn.Linear(self.backbone.dim, config.vocab_size)


_DENSE: Table = {"classifier": ("head", {"linear_hidden": "dense", "linear_out": "out_proj"})}


class FunnelForSequenceClassification(classify.ForSequenceClassification[FunnelBaseModel]):
    head_class, act = classify.DenseClassifier, "tanh"
    names = Names(_DENSE)
    reads = FunnelModel.reads


class FunnelForMultipleChoice(classify.ForMultipleChoice[FunnelBaseModel]):
    head_class, act = classify.DenseClassifier, "tanh"
    names = Names(_DENSE)
    reads = FunnelModel.reads


class FunnelForTokenClassification(classify.ForTokenClassification[FunnelModel]): ...


class FunnelForQuestionAnswering(span.ForQuestionAnswering[FunnelModel]): ...
