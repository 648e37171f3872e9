"""ESM-1b and ESM-2 (Rives et al. 2021, Lin et al. 2023): pre-norm encoders of proteins, with learned or rotary positions.

Attention over the residues of a chain tells which of them touch: a small head reads contacts out of it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.config.rotary import FOR_ALL
from transept.core.inputs import ENCODER
from transept.errors import InputError
from transept.heads import classify, language
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.text import Options, TextBackbone
from transept.layers import Attention, Context, CountedPositions, Pooler, PreNorm
from transept.models.megatron_bert import attention_names

# The share of tokens that training hid by a mask.
HIDDEN_IN_TRAINING = 0.15 * 0.8


class EsmConfig(EncoderConfig):
    """Settings of ESM. With ``token_dropout`` masks are zeros, and a row is scaled up by how many it has, as dropout does.

    ``emb_layer_norm_before`` norms the embeddings. Models that fold (``is_folding_model``) are not built.
    """

    model_type = "esm"

    vocab_size: int | None = None
    mask_token_id: int | None = None
    max_position_embeddings: int = 1026
    rope_theta: float = 10000.0
    position_embedding_type: Literal["absolute", "rotary"] | None = "absolute"
    emb_layer_norm_before: bool | None = None
    token_dropout: bool | None = False
    is_folding_model: bool | None = False
    esmfold_config: dict[str, Any] | None = None
    vocab_list: list[str] | None = None
    is_decoder: bool | None = False
    add_cross_attention: bool | None = False
    eos_token_id: int | list[int] | None = 2

    def check_model(self) -> None:
        super().check_model()
        for name in ("is_folding_model", "is_decoder", "add_cross_attention"):
            if getattr(self, name):
                self.fail(name, "must be false: only encoders are built")
        if self.vocab_size is None:
            self.fail("vocab_size", "must be a number, that of the tokens")
        if self.position_embedding_type != "rotary" and self.pad_token_id is None:
            self.fail("pad_token_id", "must be a number where positions are learned: they count real tokens")


ESM_BLOCK: Table = {
    "attention": ("", attention_names("self_attn", after="LayerNorm")),
    "intermediate.dense": "mlp.up_proj",
    "output.dense": "mlp.down_proj",
    "LayerNorm": "mlp_norm",
}
ESM_EMBEDDINGS: Table = {
    "word_embeddings": "embed_tokens",
    "layer_norm": "embed_norm",
    "position_embeddings": "embed_positions",
}


class EsmRotary(nn.Module):
    """The tables of rotary positions, from angles that a checkpoint has, which may be rounded."""

    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.size, self.theta = size, theta
        self.inv_freq = nn.Buffer(torch.empty(size // 2))
        if not self.inv_freq.is_meta:  # where powers make PyTorch import its compiler
            self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.inv_freq.copy_(1.0 / (self.theta ** (torch.arange(0, self.size, 2).float() / self.size)))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(1 or B, T) of positions -> cosines and signed sines (1 or B, 1, T, E)."""
        angles = positions[:, None, :, None].float() * self.inv_freq.float()
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([cos, cos], dim=-1).to(dtype), torch.cat([-sin, sin], dim=-1).to(dtype)


class EsmEmbeddings(nn.Module):
    """The embeddings of words, perhaps with learned positions and a norm; padding is zero: (B, T, D) -> (B, T, D)."""

    def __init__(self, config: EsmConfig) -> None:
        super().__init__()
        c: Any = config
        self.word_embeddings = nn.Embedding(c.vocab_size, c.hidden_size, padding_idx=c.pad_token_id)
        self.layer_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps) if c.emb_layer_norm_before else None
        self.position_embeddings = (
            CountedPositions(c.max_position_embeddings, c.hidden_size, c.pad_token_id)
            if c.position_embedding_type != "rotary"
            else None
        )

    def forward(self, words: Tensor, positions: Tensor, real: Tensor | None) -> Tensor:
        x = words if self.position_embeddings is None else words + self.position_embeddings(positions)
        x = x if self.layer_norm is None else self.layer_norm(x)
        return x if real is None else x * real[..., None].to(x.dtype)


class ContactHead(nn.Module):
    """Which residues touch, of the weights of all layers' attention: (B, N, T, T) -> (B, T - 2, T - 2) probabilities."""

    def __init__(self, weights: int, eos: int) -> None:
        super().__init__()
        self.eos = eos
        self.regression = nn.Linear(weights, 1)

    def forward(self, tokens: Tensor, attentions: Tensor) -> Tensor:
        real = (tokens != self.eos).to(attentions.dtype)
        x = attentions * (real[:, None, :, None] * real[:, None, None])
        x = x[..., 1:-1, 1:-1].to(self.regression.weight)  # without the token that begins a chain, and the last
        x = x + x.mT
        # The product of both means is what a pair would have by chance.
        x = x - x.sum(-1, keepdim=True) * x.sum(-2, keepdim=True) / x.sum((-1, -2), keepdim=True)
        return torch.sigmoid(self.regression(x.movedim(1, -1)).squeeze(-1))


class EsmModel(TextBackbone):
    """ESM without a head for tokens; ``predict_contacts`` tells which residues touch."""

    config_class = EsmConfig
    head_dropouts = ("hidden_dropout_prob",)
    reads = ("input_ids", "attention_mask", "position_ids", "inputs_embeds", *ENCODER, "labels", "token_type_ids")
    names = Names(
        {
            "embeddings": ("", ESM_EMBEDDINGS),
            "rotary_embeddings": "rotary_embeddings",
            "encoder.layer.*": ("layers.*", ESM_BLOCK),
            "encoder.emb_layer_norm_after": "norm",
            "pooler": "pooler",
            "contact_head": "contact_head",
        },
        legacy={
            "encoder.layer.*.attention.self.rotary_embeddings.inv_freq": "rotary_embeddings.inv_freq",
            "**.LayerNorm.gamma": "LayerNorm.weight",
            "**.LayerNorm.beta": "LayerNorm.bias",
        },
        ignore=("embeddings.position_ids",),
        fixed=("rotary_embeddings.inv_freq",),
        optional=("contact_head",),
    )
    config: EsmConfig

    def __init__(self, config: EsmConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        c = config
        self.embeddings = EsmEmbeddings(c)
        for stored, own in ESM_EMBEDDINGS.items():
            if getattr(self.embeddings, stored) is not None:
                self.alias(str(own), f"embeddings.{stored}")
        size, rotary = c.hidden_size // c.num_attention_heads, c.position_embedding_type == "rotary"
        self.rotary_embeddings = EsmRotary(size, c.rope_theta) if rotary else None
        self.layers = encoder_layers(c, PreNorm, attention=partial(Attention, rotary=FOR_ALL if rotary else None))
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.pooler = Pooler(c.hidden_size) if add_pooling_layer else None
        self.contact_head = ContactHead(c.num_hidden_layers * c.num_attention_heads, 2)

    @property
    def max_positions(self) -> int | None:
        return None if self.rotary_embeddings is not None else super().max_positions

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context]:
        ctx = self.start(input_ids, inputs_embeds, attention_mask, **options)
        x: Any = self.embed_ids(input_ids) if input_ids is not None else inputs_embeds
        positions = self.positions(position_ids, x, ctx, input_ids)
        if self.rotary_embeddings is not None:
            ctx.rotary = {FOR_ALL: self.rotary_embeddings(positions, x.dtype)}
        if self.config.token_dropout:
            x = self.without_masks(x, input_ids, ctx)
        return self.embeddings(x, positions, ctx.padding), ctx

    def without_masks(self, x: Tensor, ids: Tensor | None, ctx: Context) -> Tensor:
        """Embeddings (B, T, D) with zeros for masks, scaled as if as many were hidden as in training."""
        if ids is None:
            return x * (1 - HIDDEN_IN_TRAINING)
        hidden: Any = ids == self.config.mask_token_id
        if ctx.rows is not None:
            shares = torch.stack([part.float().mean() for part in ctx.rows.split(hidden)])
            share = shares.repeat_interleave(torch.tensor(ctx.rows.lengths, device=x.device))[None]
        elif ctx.texts is not None:
            same = ctx.texts[:, :, None] == ctx.texts[:, None]
            share = (same & hidden[:, None]).sum(-1) / same.sum(-1)
        else:
            share = hidden.sum(-1, keepdim=True) / (ids.shape[1] if ctx.padding is None else ctx.padding.sum(-1, keepdim=True))
        x = x.masked_fill(hidden[..., None], 0.0)
        return (x * (1 - HIDDEN_IN_TRAINING) / (1 - share[..., None])).to(x.dtype)

    def predict_contacts(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Which residues touch, (B, T - 2, T - 2) probabilities, for tokens and mask (B, T)."""
        shown = self(tokens, attention_mask=attention_mask, return_dict=True, output_attentions=True).attentions
        if shown is None:
            raise InputError("contacts are read out of attention, of which this model has no layers.")
        real = attention_mask[:, None].to(shown[0].dtype)
        return self.contact_head(tokens, torch.cat(shown, dim=1) * real[:, :, None] * real[..., None])


class EsmForMaskedLM(language.ForMaskedLM[EsmModel]):
    names = language.ForMaskedLM.names | Names(
        {"lm_head": ("lm_head", {"bias": "bias", "dense": "dense", "layer_norm": "norm", "decoder": "decoder"})}
    )

    def make_head(self, config: Config) -> nn.Module:
        dim = self.backbone.dim
        return language.BiasedHead(dim, dim, config.vocab_size, act="gelu", eps=config.layer_norm_eps)

    def vocabulary_layers(self) -> list[nn.Module]:
        return [*super().vocabulary_layers(), self.lm_head]

    def predict_contacts(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Which residues touch: see :meth:`EsmModel.predict_contacts`."""
        return self.backbone.predict_contacts(tokens, attention_mask)


class EsmForSequenceClassification(classify.ForSequenceClassification[EsmModel]):
    head_class = classify.FirstClassifier
    act = "tanh"
    names = Names({"classifier": "head"})


class EsmForTokenClassification(classify.ForTokenClassification[EsmModel]): ...
