"""Switch Transformers (Fedus et al. 2022): T5 in which every other layer has experts, one of which works on each token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts, Layers, derived
from transept.config.model import Config
from transept.core.model import Model
from transept.heads.seq2seq import ForSparseGeneration
from transept.kinds.experts import RoutedBackbone, named_experts
from transept.kinds.seq2seq import SHARED_TABLES, SparseSeq2SeqBackbone
from transept.layers import Context
from transept.layers.moe import CapacityMLP, WidenedLinear
from transept.models.t5 import (
    DistanceConfig,
    ScaledGeneration,
    T5Block,
    T5Decoder,
    T5Encoder,
    T5EncoderModel,
    T5Model,
    T5Stack,
    initialize,
)
from transept.objectives.classification import load_balance, router_z
from transept.objectives.terms import LossTerm


class SwitchTransformersConfig(DistanceConfig):
    """Settings of Switch Transformers; the defaults are those of switch-base-8.

    ``num_sparse_encoder_layers`` and ``num_sparse_decoder_layers`` say how many layers have experts, each of which takes
    ``expert_capacity`` tokens of a row at most; in training routers read tokens that are multiplied by noise which is
    ``router_jitter_noise`` from one at most.
    """

    model_type = "switch_transformers"

    d_model: int = 768
    expert_capacity: Count = 64
    num_layers: Layers = 12
    num_sparse_encoder_layers: int = 3
    num_decoder_layers: Layers = derived(lambda c: 12)
    num_sparse_decoder_layers: int = 3
    num_heads: int = 12
    num_experts: Experts = 8
    router_bias: bool = False
    router_jitter_noise: float = 0.01
    router_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    router_ignore_padding_tokens: bool = False
    router_z_loss_coef: float = 0.001
    router_aux_loss_coef: float = 0.001
    dense_act_fn: str = "relu"
    add_router_probs: bool = False
    is_gated_act = output_router_logits = False

    encoder_sparse_step = property(lambda c: c.num_layers // (c.num_sparse_encoder_layers or 1))
    decoder_sparse_step = property(lambda c: c.num_decoder_layers // (c.num_sparse_decoder_layers or 1))
    scale_decoder_outputs = property(lambda c: c.tie_word_embeddings)


class SwitchRouter(nn.Module):
    """Chooses the most probable expert of each token, and none where that has enough tokens of the row already."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.classifier = WidenedLinear(c.d_model, c.num_experts, c.router_bias, getattr(torch, c.router_dtype))
        self.capacity, self.jitter = c.expert_capacity, c.router_jitter_noise

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> logits and weights (B, T, E); padding takes no place of a real token."""
        if self.training and self.jitter > 0:
            x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        logits = self.classifier(x)
        probabilities = F.softmax(logits, dim=-1).to(x.dtype)
        chosen = F.one_hot(probabilities.argmax(dim=-1), logits.shape[-1])
        counted = chosen if real is None else chosen * real[..., None]
        return logits, probabilities * chosen * (counted.cumsum(dim=1) <= self.capacity)


class SwitchTransformersBlock(T5Block):
    def add(self, step: Any, x: Tensor, ctx: Context) -> Tensor:
        return step(x, ctx)


def start(model: Model, module: nn.Module) -> None:
    """Fill one module's own parameters as T5 does, and those of routers by larger ones."""
    initialize(model, module)
    if isinstance(module, WidenedLinear):
        nn.init.normal_(module.weight, std=model.config.initializer_factor)


class SwitchTransformersStack(RoutedBackbone, T5Stack):
    config_class = SwitchTransformersConfig
    block_class, ragged = SwitchTransformersBlock, False
    initialize_module = start

    def __init__(self, config: SwitchTransformersConfig) -> None:
        super().__init__(config)
        step = config.decoder_sparse_step if self.causal else config.encoder_sparse_step
        for number, block in enumerate(self.layers):
            if step == 1 or (step > 0 and number % step == 1):
                experts = (self.feed_forward() for _ in range(config.num_experts))
                block.mlp = CapacityMLP(SwitchRouter(config), experts)

    @classmethod
    def block_keys(cls, c: Config) -> dict[str, Any]:
        dense = {"wi": "up_proj", "wo": "down_proj"}
        mlp = "mlp", {**dense, "router": "router", **named_experts(c.num_experts, dense)}
        block = super().block_keys(c).items()
        return {name.replace("DenseReluDense", "mlp"): mlp if "Dense" in name else part for name, part in block}

    def balance(self, logits: tuple[Tensor, ...], real: Tensor | None) -> dict[str, LossTerm]:
        c, count = self.config, len(logits[0])
        rows = ([layer[row] for layer in logits] for row in range(count))
        kept = [None] * count if real is None else list(real)
        even = torch.stack([load_balance(row, 1, own, 1.0).sum for row, own in zip(rows, kept, strict=True)]).mean()
        balance = LossTerm(even, torch.ones_like(even), weight=c.router_aux_loss_coef, additive=False)
        return {"z_loss": router_z(logits, real, c.router_z_loss_coef), "aux_loss": balance}


class SwitchTransformersEncoder(SwitchTransformersStack, T5Encoder): ...


class SwitchTransformersDecoder(SwitchTransformersStack, T5Decoder): ...


class SwitchTransformersModel(SparseSeq2SeqBackbone, T5Model):
    config_class = SwitchTransformersConfig
    encoder_class, decoder_class = SwitchTransformersEncoder, SwitchTransformersDecoder
    base_model_prefix = "switch_transformers"
    initialize_module = start

    @classmethod
    def names_of(cls, config: Config) -> Names:
        return replace(super().names_of(config), ties=SHARED_TABLES if config.tie_word_embeddings else {})


class SwitchTransformersEncoderModel(SwitchTransformersEncoder, T5EncoderModel):
    @classmethod
    def names_of(cls, config: Config) -> Names:
        names = super().names_of(config)
        return names if config.tie_word_embeddings else replace(names, ties={}, legacy={})


class SwitchTransformersForConditionalGeneration(
    ForSparseGeneration[SwitchTransformersModel], ScaledGeneration[SwitchTransformersModel]
):
    base_model_prefix = ""
