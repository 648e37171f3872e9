"""NLLB with experts (NLLB Team 2022): M2M-100 in which two experts work on each token in some layers."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts, Share
from transept.config.model import Config
from transept.heads.seq2seq import ForSparseGeneration
from transept.kinds.experts import RoutedBackbone, named_experts
from transept.kinds.seq2seq import SparseSeq2SeqBackbone
from transept.layers import MLP
from transept.layers.moe import CapacityMLP, WidenedLinear
from transept.models.bart import BART_BLOCK
from transept.models.m2m_100 import M2M100Config, M2M100Decoder, M2M100Encoder, M2M100Stack
from transept.objectives.classification import load_balance
from transept.objectives.terms import LossTerm


class NllbMoeConfig(M2M100Config):
    """Settings; every ``encoder_sparse_step``-th layer of the encoder has experts, and so in the decoder.

    An expert takes ``expert_capacity`` tokens of a batch at most, or outside of training the share
    ``moe_eval_capacity_token_fraction`` of them where that is positive. Those with the highest probabilities come first with
    ``batch_prioritized_routing``. The weights of a token's two experts sum to one, with
    ``normalize_router_prob_before_dropping`` of those that have no place too. A second expert is drawn by its probability
    (``sampling``), or left out at times (``random``).
    """

    model_type = "nllb-moe"

    router_bias: bool = False
    router_dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    router_ignore_padding_tokens: bool = False
    num_experts: Experts = 128
    expert_capacity: Count = 64
    encoder_sparse_step: int = 4
    decoder_sparse_step: int = 4
    router_z_loss_coef: float = 0.001
    router_aux_loss_coef: float = 0.001
    second_expert_policy: str = "all"
    normalize_router_prob_before_dropping: bool = False
    batch_prioritized_routing: bool = False
    moe_eval_capacity_token_fraction: float = 1.0
    moe_token_dropout: Share = 0.2
    output_router_logits: bool = False


class NllbMoeRouter(nn.Module):
    """Chooses two experts for each real token, as far as these have places."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.classifier = WidenedLinear(c.d_model, c.num_experts, c.router_bias, getattr(torch, c.router_dtype))
        self.capacity, self.fraction = c.expert_capacity, c.moe_eval_capacity_token_fraction
        self.policy, self.prioritized = c.second_expert_policy, c.batch_prioritized_routing
        self.normalizes_first = c.normalize_router_prob_before_dropping

    def forward(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> logits (B * T, E) and weights (B, T, E)."""
        logits: Tensor = self.classifier(x).flatten(0, 1)
        probabilities, count = F.softmax(logits, dim=-1).to(x.dtype), logits.shape[1]
        noise = -torch.empty_like(logits).exponential_().log() if self.policy == "sampling" else 0.0
        first = F.one_hot(probabilities.argmax(dim=1), count)
        second = F.one_hot((logits + noise).masked_fill(first.bool(), -torch.inf).argmax(dim=1), count)
        whole = self.normalized(probabilities, first, second)
        if self.policy == "random":
            likely = (probabilities * second).sum(dim=1, keepdim=True)
            second = second * (2 * likely > torch.rand_like(likely))
        if real is not None:
            first, second = (chosen * real.reshape(-1, 1) for chosen in (first, second))
        tokens = torch.tensor(len(logits), device=x.device) if real is None else real.sum()
        capacity = self.capacity if self.training or self.fraction <= 0 else (self.fraction * tokens).ceil()
        before, taken = self.places(probabilities, first), first.sum(dim=0)
        first, second = first * (before < capacity), second * (self.places(probabilities, second) + taken < capacity)
        one, two = whole if self.normalizes_first else self.normalized(probabilities, first, second)
        return logits, (one * first + two * second).view(*x.shape[:2], count)

    def places(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """(N, E): how many tokens come before each that chose an expert (N, E)."""
        if not self.prioritized:
            return chosen.cumsum(dim=0) - 1
        order = probabilities.amax(dim=1).neg().argsort()
        return (chosen[order].cumsum(dim=0) - 1)[order.argsort()]

    @staticmethod
    def normalized(probabilities: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        one, two = ((probabilities * chosen).sum(dim=1, keepdim=True) for chosen in (first, second))
        total = (one + two).clamp(min=torch.finfo(probabilities.dtype).eps)
        return one / total, two / total


class OutputMasking(nn.Module):
    """Dropout of what experts give; outside of training their share that would be left."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.share) if self.training else x * (1 - self.share)


class NllbMoeStack(RoutedBackbone, M2M100Stack):
    config_class, ragged = NllbMoeConfig, False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for number, block in enumerate(self.layers, 1):
            block.mlp_dropout = nn.Dropout(config.activation_dropout)
            if (step := self.setting("sparse_step")) > 0 and number % step == 0:
                experts = (self.feed_forward() for _ in range(config.num_experts))
                block.mlp = CapacityMLP(NllbMoeRouter(config), experts, OutputMasking(config.moe_token_dropout))

    def feed_forward(self) -> MLP:
        c, options = self.config, {"dropout": self.config.activation_dropout}
        return MLP(c.d_model, self.setting("ffn_dim"), c.activation_function, chunk_size=c.chunk_size_feed_forward, **options)

    @classmethod
    def names_of(cls, config: Config) -> Names:
        renamed = {"encoder_attn": "cross_attention", "encoder_attn_layer_norm": "cross_attention_layer_norm"}
        block: dict[str, Any] = {renamed.get(name, name): part for name, part in BART_BLOCK.items() if "f" not in name[:2]}
        dense = {"fc1": "up_proj", "fc2": "down_proj"}
        experts = named_experts(config.num_experts, dense)
        block |= {"ffn": ("mlp", {**dense, "router": "router", **experts}), "ff_layer_norm": "mlp_norm"}
        return super().names_of(config) | Names({"layers.*": ("layers.*", block)})

    def balance(self, logits: tuple[Tensor, ...], real: Tensor | None) -> dict[str, LossTerm]:
        return {"aux_loss": load_balance(logits, 2, real, self.config.router_aux_loss_coef)}


class NllbMoeEncoder(NllbMoeStack, M2M100Encoder): ...


class NllbMoeDecoder(NllbMoeStack, M2M100Decoder):
    names = M2M100Decoder.names


class NllbMoeModel(SparseSeq2SeqBackbone):
    config_class = NllbMoeConfig
    encoder_class, decoder_class = NllbMoeEncoder, NllbMoeDecoder
    base_model_prefix = "model"


class NllbMoeForConditionalGeneration(ForSparseGeneration[NllbMoeModel]): ...
