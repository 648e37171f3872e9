"""RecurrentGemma (Botev et al. 2024): Griffin's gated linear recurrences (De et al. 2024), and attention through a window.

Shapes: B batch, T positions, C channels, H heads, which channels of gates are grouped by.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, PaddingId, Positive, derived
from transept.config.model import Config
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import SLIDING, DecoderConfig
from transept.kinds.hybrid import LINEAR, HybridBackbone
from transept.layers import Attention, Context, GatedMLP
from transept.layers.caches.layer import States
from transept.layers.links import Linked
from transept.layers.mlp import activation
from transept.layers.norm import CenteredRMSNorm
from transept.layers.recurrent import causal_conv, linear_scan, real_positions
from transept.models.gemma2 import softcap
from transept.models.llama import LlamaModel


class RecurrentGemmaConfig(DecoderConfig):
    """Settings of RecurrentGemma; the defaults are those of its checkpoint with 2 billion parameters.

    ``block_types`` name ``"recurrent"`` layers and those with ``"attention"``, again and again; the latter see
    ``attention_window_size`` positions. Feed-forward layers have half of ``intermediate_size``. Logits are bounded by
    ``logits_soft_cap``. ``w_init_variance_scale`` is for weights before training.
    """

    model_type = "recurrent_gemma"
    default_share = 0.5
    aliases = {"sliding_window": "attention_window_size"}
    unwritten = Config.unwritten | {"max_position_embeddings", "initializer_range"}

    num_hidden_layers: Layers = 26
    vocab_size: int = 256000
    hidden_size: int = 2560
    intermediate_size: int = 7680
    num_attention_heads: int = 10
    lru_width: Count = derived(lambda c: c.hidden_size)
    attention_window_size: Count = 2048
    conv1d_width: Count = 4
    logits_soft_cap: Positive = 30.0
    pad_token_id: PaddingId | None = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = 2
    hidden_activation: str = "gelu_pytorch_tanh"
    block_types: list[str] = derived(lambda c: ["recurrent", "recurrent", "attention"])
    attention_bias: bool = False
    w_init_variance_scale: float = 0.01
    tie_word_embeddings: bool = True

    @property
    def layer_types(self) -> list[str]:
        kinds = [LINEAR if kind == "recurrent" else SLIDING for kind in self.block_types]
        return [kinds[layer % len(kinds)] for layer in range(self.num_hidden_layers)]

    layers_block_type = layer_types

    def window(self, layer: int) -> int | None:
        return self.attention_window_size

    def validate(self) -> None:
        super().validate()
        self.divided("lru_width", "num_attention_heads")
        if not self.block_types:
            self.fail("block_types", "must name at least one kind of layers")


def bounded_root(x: Tensor) -> Tensor:
    """A square root whose gradient is at most 1000."""
    steep = 4 * x < 1e-6
    line = x.detach().sqrt() + 1000 * (x - x.detach())
    return torch.where(steep, line, torch.where(steep, 1.0, x).sqrt())


class GatedRecurrence(nn.Module):
    """A linear recurrence (RG-LRU): what it keeps, and what is added, are gated by the inputs, channel by channel."""

    def __init__(self, c: RecurrentGemmaConfig) -> None:
        super().__init__()
        self.heads, width = c.num_attention_heads, c.lru_width // c.num_attention_heads
        self.recurrent_param = nn.Parameter(torch.empty(c.lru_width))
        self.input_gate_weight, self.input_gate_bias = self.gate(width)
        self.recurrent_gate_weight, self.recurrent_gate_bias = self.gate(width)
        self.deviation = math.sqrt(c.w_init_variance_scale / width)

    def gate(self, width: int) -> tuple[nn.Parameter, nn.Parameter]:
        """Weights and biases of a gate."""
        return nn.Parameter(torch.empty(self.heads, width, width)), nn.Parameter(torch.empty(self.heads, width))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Keep 0.9 to 0.999 of a state from one position to the next where the gate is open."""
        for weight in (self.input_gate_weight, self.recurrent_gate_weight):
            nn.init.normal_(weight, std=self.deviation)
        for bias in (self.input_gate_bias, self.recurrent_gate_bias):
            nn.init.zeros_(bias)
        kept = torch.empty_like(self.recurrent_param).uniform_(0.9**2 + 1e-8, 0.999**2 + 1e-8)
        self.recurrent_param.copy_((kept.log() * -0.5).exp().sub(1).log())

    def forward(self, x: Tensor, first: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, C), and where rows begin (1 or B, T, 1) -> (B, T, C), and the last state (B, C)."""
        grouped = x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
        into = torch.sigmoid(self.opened(grouped, self.input_gate_weight, self.input_gate_bias))
        logs = torch.sigmoid(self.opened(grouped, self.recurrent_gate_weight, self.recurrent_gate_bias))
        logs = -8.0 * logs * F.softplus(self.recurrent_param)
        scale = torch.where(first, 1.0, bounded_root(1 - torch.exp(2 * logs)))
        y, state = linear_scan(x * into * scale.to(x.dtype), torch.where(first, 0.0, logs.exp()), state)
        return y.to(x.dtype), state

    @staticmethod
    def opened(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """(B, H, T, C / H) -> (B, T, C): a gate before its sigmoid."""
        return (x @ weight + bias[:, None]).transpose(1, 2).flatten(2)


class RecurrentMixer(Linked):
    """A convolution and a gated recurrence, beside a branch that multiplies what they give."""

    def __init__(self, c: RecurrentGemmaConfig) -> None:
        super().__init__()
        dim, inner = c.hidden_size, c.lru_width
        self.linear_y, self.linear_x, self.linear_out = nn.Linear(dim, inner), nn.Linear(dim, inner), nn.Linear(inner, dim)
        self.conv_1d = nn.Conv1d(inner, inner, c.conv1d_width, groups=inner)
        self.rg_lru, self.act = GatedRecurrence(c), activation(c.hidden_activation)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D); padding on the left leaves states as they are."""
        real, kept = real_positions(x, ctx), ctx.kept(States)
        first, inner = begins(x, ctx), self.linear_x(x)
        inner = inner if real is None else inner * real
        inner, last = causal_conv(inner.mT, self.conv_1d.weight, self.conv_1d.bias, kept.get("conv") if kept else None)
        inner = inner.mT if real is None else inner.mT * real
        y, state = self.rg_lru(inner, first, kept.get("recurrent") if kept else None)
        if kept is not None:
            kept.keep(x.shape[1], conv=last, recurrent=state)
        return self.linear_out(y * self.act(self.linear_y(x)))


def begins(x: Tensor, ctx: Context) -> Tensor:
    """(1 or B, T, 1) of bool: the first position of each row, padding left aside."""
    if ctx.padding is None:
        return (ctx.places(x.device) == 0)[None, :, None]
    first = ctx.padding & (ctx.padding.cumsum(dim=1) == 1)
    return first[:, -x.shape[1] :, None]


PARTS: Table = {
    **{name: f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")},
    **{name: f"mixer.{name}" for name in ("linear_y", "linear_x", "linear_out", "conv_1d", "rg_lru")},
}
GRIFFIN_BLOCK: Table = {
    "temporal_pre_norm": "self_attn_norm",
    "temporal_block": ("", PARTS),
    "channel_pre_norm": "mlp_norm",
    "mlp_block": "mlp",
}


class RecurrentGemmaModel(HybridBackbone, LlamaModel):
    config_class = RecurrentGemmaConfig
    names = LlamaModel.names | Names({"layers.*": ("layers.*", GRIFFIN_BLOCK), "final_norm": "norm"})
    norm_class = CenteredRMSNorm
    reads = ("input_ids", "position_ids", "attention_mask", "inputs_embeds", "labels", "use_cache", "past_key_values")
    config: RecurrentGemmaConfig

    def __init__(self, config: RecurrentGemmaConfig) -> None:
        super().__init__(config)
        # Rounded as in training.
        self.scale = float(torch.tensor(config.hidden_size**0.5, dtype=torch.bfloat16, device="cpu"))

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        return super().embed(x * self.scale, types, positions, ctx)

    def attention(self, layer: int, **more: Any) -> Attention:
        return super().attention(layer, out_bias=True, **more)

    def feed_forward(self, layer: int) -> nn.Module:
        c = self.config
        sizes = (c.hidden_size, c.intermediate_size // 2, c.hidden_activation)
        return GatedMLP(*sizes, bias=True, chunk_size=c.chunk_size_feed_forward)

    def mixer(self, layer: int) -> nn.Module:
        return RecurrentMixer(self.config)


class RecurrentGemmaForCausalLM(ForCausalLM[RecurrentGemmaModel]):
    def score(self, hidden: Tensor) -> Tensor:
        return softcap(super().score(hidden), self.config.logits_soft_cap)
