"""Phi-3.5-MoE (Abdin et al. 2024): Mixtral with layer norms, whose router draws experts in training (Liu et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import SAVE_PLAIN, Layout
from transept.checkpoint.names import Names
from transept.config.fields import Count, Experts
from transept.config.model import Config
from transept.errors import UnsupportedError
from transept.heads.language import ForSparseCausalLM
from transept.kinds.experts import BalancedConfig, sparse_mlp
from transept.layers.moe import Router, wide
from transept.layers.rotary import Rotary, RotaryTables, rotary_tables
from transept.models.llama import LLAMA_BLOCK, LlamaForSequenceClassification, LlamaModel
from transept.models.mixtral import MixtralModel, experts_files
from transept.storage.gguf import GGUF


class PhimoeConfig(BalancedConfig):
    """Settings of Phi-3.5-MoE; the defaults are those of its checkpoint.

    Rotary parameters of another type than ``default`` have a ``short_mscale`` and a ``long_mscale``, by which queries and keys
    are multiplied, and which of them depends on the length. Experts whose logits fall behind the best one's by more than twice
    the share ``router_jitter_noise`` have no part in its weight. With ``input_jitter_noise`` tokens are multiplied by noise
    that is so far from one at most, in training. There are always two experts for a token.
    """

    model_type = "phimoe"
    aliases = {"num_experts": "num_local_experts"}
    default_theta = 1e6

    vocab_size: int = 32064
    intermediate_size: int = 6400
    num_key_value_heads: int = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    sliding_window: Count | None = None
    num_local_experts: Experts = 16
    num_experts_per_tok: int = 2
    router_jitter_noise: float = 0.01
    input_jitter_noise: float = 0.0
    attention_bias: bool = False
    lm_head_bias: bool = False

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        found = {"attention_bias": "blk.0.attn_q.bias" in gguf.tensors, "lm_head_bias": "output.bias" in gguf.tensors}
        if isinstance(rope := values.get("rope_scaling"), dict):
            factor = rope.pop("attention_factor", 1.0)
            values = values | {"rope_scaling": rope | {"short_mscale": factor, "long_mscale": factor}}
        return values | found

    def to_gguf(self) -> dict[str, Any]:
        rope, own = self.rope_parameters or {}, super().to_gguf()
        if rope.get("short_mscale") != rope.get("long_mscale"):
            what = "GGUF files have one number for `short_mscale` and `long_mscale` in `rope_parameters`."
            raise UnsupportedError(what, hint=SAVE_PLAIN)
        return own | ({"rope.scaling.attn_factor": rope["short_mscale"]} if "short_mscale" in rope else {})

    def window(self, layer: int) -> int | None:
        return self.sliding_window


class ScaledRotary(Rotary):
    """Tables that are multiplied by ``short_mscale``, or by ``long_mscale`` beyond the original length."""

    def __init__(self, size: int, rope: Mapping[str, Any]) -> None:
        super().__init__(size, rope)
        self.scales: tuple[float, float] | None = None
        if rope.get("rope_type", "default") != "default":
            number = self.frequencies.number
            self.scales, self.most = (number("short_mscale"), number("long_mscale")), number("original_max_position_embeddings")
            self.frequencies.scale = 1.0

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.scales is None:
            return super().forward(positions, dtype)
        cos, sin = super().forward(positions, torch.float32)
        short, long = (torch.full((), scale, device=cos.device) for scale in self.scales)
        scale = torch.where(positions.max() + 1 > self.most, long, short)
        return (cos * scale).to(dtype), (sin * scale).to(dtype)


class SparseMixer(Router):
    """Chooses two experts, one after the other; each weight is a softmax over those left that are not far behind the best.

    In training they are drawn by these probabilities, and a weight counts a third at times where it is not the largest, while
    its gradient stays (Heun's third order method).
    """

    def __init__(self, *sizes: int, noise: float) -> None:
        super().__init__(*sizes)
        self.noise = noise

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = wide(logits)
        first, chosen = self.choose_one(logits, logits)
        second, other = self.choose_one(logits, logits.scatter(-1, chosen, -torch.inf))
        return torch.cat([first, second], dim=-1), torch.cat([chosen, other], dim=-1)

    def choose_one(self, logits: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, E), and those of the experts that are left -> a weight (N, 1) and an expert (N, 1)."""
        with torch.no_grad():
            best, chosen = left.max(dim=-1, keepdim=True)
            far = (best - logits) / logits.abs().clamp(min=best) > 2 * self.noise
        near = left.masked_fill(far, -torch.inf)
        if self.training:
            chosen = (near - torch.empty_like(near).exponential_().log()).argmax(dim=-1, keepdim=True)
        shares = torch.softmax(near, dim=-1)
        weight = shares.gather(-1, chosen)
        if self.training:
            whole = (chosen == shares.argmax(dim=-1, keepdim=True)) | (torch.rand_like(weight) > 0.75)
            weight = weight - torch.where(whole, 0.0, 0.6667 * weight).detach()
        return weight, chosen


class PhimoeModel(MixtralModel):
    config_class = PhimoeConfig
    names = LlamaModel.names | Names(
        {"layers.*": ("layers.*", {**LLAMA_BLOCK, "mlp": ("mlp", {"router": "router", "experts": "experts"})})},
        files={"layers.*.block_sparse_moe": ("layers.*.mlp", {**experts_files("w1", "w3", "w2"), "gate": "router"})},
        legacy={
            "layers.*.mlp.router": "layers.*.block_sparse_moe.gate",
            "layers.*.mlp.experts": "layers.*.block_sparse_moe.experts",
        },
    )
    gguf = Layout()
    config: PhimoeConfig

    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(self.config.hidden_size, self.config.rms_norm_eps)

    def make_rotary(self) -> RotaryTables:
        return rotary_tables(self.config, ScaledRotary)

    def experts(self) -> nn.Module:
        router = partial(SparseMixer, noise=self.config.router_jitter_noise)
        return sparse_mlp(self.config, self.config.intermediate_size, router, jitter=self.config.input_jitter_noise)


class PhimoeForCausalLM(ForSparseCausalLM[PhimoeModel]):
    def make_head(self, config: Config) -> nn.Module:
        return nn.Linear(self.backbone.dim, self.backbone.vocab_size, config.lm_head_bias)


class PhimoeForSequenceClassification(LlamaForSequenceClassification, backbone=PhimoeModel): ...
