"""OPT (Zhang et al. 2022): a decoder with learned positions of real tokens and ReLU.

The checkpoint with 350 million parameters has its norms after the layers, and token embeddings of a smaller size.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, PaddingId, Share, derived
from transept.config.model import Config
from transept.heads import classify, language, span
from transept.kinds.text import CausalBackbone
from transept.layers import MLP, Attention, Context, OffsetPositions, Pattern, PostNorm, PreNorm, standard_layers


class OPTConfig(Config):
    """Settings of OPT; ``_remove_final_layer_norm`` is for checkpoints that were trained without the last norm."""

    model_type = "opt"
    aliases = {"initializer_range": "init_std", "intermediate_size": "ffn_dim"}

    vocab_size: int = 50272
    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    num_hidden_layers: Layers = 12
    ffn_dim: int = 3072
    max_position_embeddings: int = 2048
    do_layer_norm_before: bool = True
    _remove_final_layer_norm: bool = False
    word_embed_proj_dim: int = derived(lambda c: c.hidden_size)
    dropout: Share = 0.1
    attention_dropout: Share = 0.0
    num_attention_heads: int = 12
    activation_function: str = "relu"
    layerdrop: Share = 0.0
    init_std: Deviation = 0.02
    pad_token_id: PaddingId | None = 1
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 2
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True


OPT_BLOCK: Table = {
    "self_attn": ("self_attn", {"k_proj": "k_proj", "v_proj": "v_proj", "q_proj": "q_proj", "out_proj": "o_proj"}),
    "self_attn_layer_norm": "self_attn_norm",
    "fc1": "mlp.up_proj",
    "fc2": "mlp.down_proj",
    "final_layer_norm": "mlp_norm",
}


class OPTModel(CausalBackbone):
    config_class = OPTConfig
    base_model_prefix = "model"
    reads = ("input_ids", "attention_mask", "past_key_values", "inputs_embeds", "labels", "use_cache", "position_ids")
    names = Names(
        {f"decoder.{name}": name for name in ("embed_tokens", "embed_positions", "project_out", "project_in")}
        | {"decoder.final_layer_norm": "norm", "decoder.layers.*": ("layers.*", OPT_BLOCK)},
        ignore=("decoder.version",),
    )

    def __init__(self, config: OPTConfig) -> None:
        super().__init__(config)
        c, narrow = config, config.word_embed_proj_dim
        self.embed_tokens = nn.Embedding(c.vocab_size, narrow, padding_idx=c.pad_token_id)
        self.embed_positions = OffsetPositions(c.max_position_embeddings, c.hidden_size)
        norm = partial(nn.LayerNorm, c.hidden_size, elementwise_affine=c.layer_norm_elementwise_affine)
        block = partial(PreNorm if c.do_layer_norm_before else PostNorm, dropout=c.dropout, layerdrop=c.layerdrop)
        options: dict[str, Any] = {"pattern": Pattern(causal=True), "bias": c.enable_bias, "dropout": c.attention_dropout}
        attention = partial(Attention, c.hidden_size, c.num_attention_heads, **options)
        mlp = partial(MLP, c.hidden_size, c.ffn_dim, c.activation_function, bias=c.enable_bias)
        self.layers = standard_layers(c, block, attention, mlp, norm)
        project: Any = nn.Identity if narrow == c.hidden_size else partial(nn.Linear, bias=False)
        self.project_in, self.project_out = project(narrow, c.hidden_size), project(c.hidden_size, narrow)
        self.norm = norm() if c.do_layer_norm_before and not c._remove_final_layer_norm else None

    @property
    def dim(self) -> int:
        """The size of the states, which is that of the token embeddings."""
        return self.config.word_embed_proj_dim

    def positions(self, given: Tensor | None, x: Tensor, ctx: Context, ids: Tensor | None = None) -> Tensor:
        """As in every family, but counted over the mask's real tokens; padding is at -1, a row of no position."""
        if given is not None or ctx.padding is None:
            return super().positions(given, x, ctx)
        counted = ctx.padding.long().cumsum(dim=1) * ctx.padding - 1
        if not torch.compiler.is_compiling() and counted.shape[1] > self.config.max_position_embeddings:
            self.check_length(int(counted.max()) + 1)  # a row may be longer, where the rest of it is padding
        return counted.index_select(1, ctx.places(x.device))

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        x = self.project_in(x)
        return x + self.embed_positions(positions).to(x.dtype)

    def finalize(self, x: Tensor) -> Tensor:
        return self.project_out(super().finalize(x))


class OPTForCausalLM(language.ForCausalLM[OPTModel]): ...


class OPTForSequenceClassification(classify.ForLastTokenClassification[OPTModel]): ...


class OPTForQuestionAnswering(span.ForQuestionAnswering[OPTModel]): ...
