"""Falcon-H1 (Falcon-LLM Team 2025): attention and a mixer of Mamba-2 side by side in each layer, with multipliers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import SAVE_PLAIN, Change, Layout, of_matrix
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId, derived, specs
from transept.errors import UnsupportedError
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import DecoderConfig, gated_mlp, grouped_attention
from transept.kinds.hybrid import BOTH, STATE_KEYS, HybridBackbone, StateSpaceSettings, state_space
from transept.layers import Attention, Block, Context, GatedMLP
from transept.layers.block import PreNorm
from transept.layers.moe import wide
from transept.layers.recurrent import STATE_SPACE, GatedGroupNorm, StateSpaceMixer
from transept.models.llama import ATTENTION, LlamaModel
from transept.models.mamba import mixer_files
from transept.models.mamba2 import Mamba2Model
from transept.storage.gguf import GGUF


class FalconH1Config(DecoderConfig, StateSpaceSettings):
    """Settings of Falcon-H1; mixers have ``mamba_d_ssm`` channels, or ``mamba_expand`` times ``hidden_size`` when it is null.

    With ``mamba_rms_norm`` their outputs are normed, before the gate or, without ``mamba_norm_before_gate``, behind it. The
    five ``ssm_multipliers`` are of gates, inputs, what is written to and read of states, and steps; the two
    ``mlp_multipliers`` of gates and outputs.
    """

    model_type = "falcon_h1"

    vocab_size: int = 128000
    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-5
    num_logits_to_keep: int | None = 1
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    max_position_embeddings: int = 8192
    mamba_d_ssm: int | None = 1024
    mamba_norm_before_gate: bool = True
    mamba_rms_norm: bool = False
    projectors_bias: bool = False
    lm_head_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    mlp_multipliers: list[float] = derived(lambda c: [1.0, 1.0])
    key_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    attention_in_multiplier: float = 1.0
    ssm_multipliers: list[float] = derived(lambda c: [1.0] * 5)
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0
    attention_bias: bool = False
    mlp_bias: bool = False

    gguf_keys = STATE_KEYS

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        parts = {"mamba_rms_norm": "ssm_norm.weight", "attention_bias": "attn_q.bias", "mlp_bias": "ffn_gate.bias"}
        found = {name: f"blk.0.{part}" in gguf.tensors for name, part in parts.items()}
        return values | found | {"mamba_norm_before_gate": False, "mamba_d_ssm": gguf.get("falcon-h1.ssm.inner_size", int)}

    def in_gguf(self) -> Self:
        """With all multipliers one, since they are in the weights."""
        ones: dict[str, Any] = {name: 1.0 for name in specs(type(self)) if name.endswith("_multiplier")}
        ones |= {"ssm_multipliers": [1.0] * 5, "mlp_multipliers": [1.0] * 2, "mamba_d_ssm": self.mamba_inner}
        if self.tie_word_embeddings and self.embedding_multiplier != self.lm_head_multiplier:
            what = "GGUF files have `embedding_multiplier` and `lm_head_multiplier` in the weights, which are one tensor here."
            raise UnsupportedError(what, hint=SAVE_PLAIN)
        before = self.mamba_norm_before_gate and self.mamba_rms_norm
        return self.with_settings(mamba_expand=2, mamba_norm_before_gate=before, **ones)

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | {"ssm.inner_size": self.mamba_inner}

    @property
    def layer_types(self) -> list[str]:
        return [BOTH] * self.num_hidden_layers

    layers_block_type = layer_types

    @property
    def mamba_inner(self) -> int:
        return super().mamba_inner if self.mamba_d_ssm is None else self.mamba_d_ssm

    def validate(self) -> None:
        super().validate()
        for name, count in (("ssm_multipliers", 5), ("mlp_multipliers", 2)):
            if len(getattr(self, name)) != count:
                self.fail(name, f"must be {count} numbers")


class GroupNormBeforeGate(GatedGroupNorm):
    """The norm before the gate."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return (wide(self.normed(wide(x), wide(x).dtype)) * F.silu(wide(gate))).to(gate.dtype)


class Gate(nn.Module):
    """A gate without a norm."""

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return x * F.silu(gate)


class ScaledMixer(StateSpaceMixer):
    """A mixer whose inputs, and the parts of what they are projected to, have multipliers."""

    def scale(self, c: FalconH1Config) -> None:
        """Take multipliers, norm and biases of the config."""
        self.scales = [c.ssm_in_multiplier, *c.ssm_multipliers]
        if not c.mamba_rms_norm:
            self.norm: nn.Module = Gate()
        elif c.mamba_norm_before_gate:
            self.norm = GroupNormBeforeGate(self.sizes.inner, self.sizes.groups, c.rms_norm_eps)
        self.out_proj = nn.Linear(self.sizes.inner, c.hidden_size, c.projectors_bias)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        gate, inner, step = super().project(x * self.scales[0])
        shared = self.sizes.groups * self.sizes.state
        parts = torch.split(inner, [self.sizes.inner, shared, shared], dim=-1)
        inner = torch.cat([part * scale for part, scale in zip(parts, self.scales[2:5], strict=True)], dim=-1)
        return gate * self.scales[1], inner, step * self.scales[5]


class ScaledAttention(Attention):
    """Attention whose keys have a multiplier."""

    key_scale: float = 1.0

    def placed(self, q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        return super().placed(q, k * self.key_scale, ctx)


class ScaledMLP(GatedMLP):
    """A gated MLP with multipliers of gates and outputs."""

    scales: tuple[float, float] = (1.0, 1.0)

    def whole(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x) * self.scales[0]) * self.up_proj(x)) * self.scales[1]


class FalconH1Block(PreNorm):
    """A pre-norm block in which a mixer stands beside attention."""

    def __init__(self, attention: Attention, mlp: nn.Module, norm: Any, *, mixer: nn.Module, scales: tuple[float, ...]) -> None:
        super().__init__(attention, mlp, norm)
        self.mixer, self.scales = mixer, scales

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        given, (into, out, mixed) = self.self_attn_norm(x), self.scales
        x = x + self.mixer(given, ctx) * mixed + self.self_attn(given * into, ctx)[0] * out
        return x + self.mlp(self.mlp_norm(x), ctx)


FALCON_BLOCK: Table = {
    "feed_forward": "mlp",
    "mamba": ("mixer", STATE_SPACE),
    "self_attn": ("self_attn", ATTENTION),
    "input_layernorm": "self_attn_norm",
    "pre_ff_layernorm": "mlp_norm",
}


def _times(scale: Callable[[FalconH1Config], Any]) -> Change:
    """The file has rows times what a function of the config gives."""

    def write(tensor: Tensor, c: FalconH1Config) -> Tensor:
        return tensor * torch.as_tensor(scale(c), dtype=tensor.dtype).to(tensor.device)

    return Change(lambda tensor, config: tensor, write)


def _projected(c: FalconH1Config) -> Tensor:
    """The multipliers (rows, 1) of a mixer's projection, whose parts have one each."""
    sizes, shared = c.state_sizes, c.mamba_n_groups * c.mamba_d_state
    counts = torch.tensor([sizes.inner, sizes.inner, shared, shared, c.mamba_n_heads])
    return torch.tensor(c.ssm_multipliers).repeat_interleave(counts)[:, None] * c.ssm_in_multiplier


class FalconH1Model(HybridBackbone, LlamaModel):
    config_class = FalconH1Config
    names = LlamaModel.names | Names({"layers.*": ("layers.*", FALCON_BLOCK), "final_layernorm": "norm"})
    gguf = Layout(
        mixer_files(Mamba2Model.gguf) | {"ffn_norm": "mlp_norm.weight"},  # a name without an ending
        changes={
            **Mamba2Model.gguf.changes,
            "token_embd.weight": _times(lambda c: c.embedding_multiplier),
            "output.weight": _times(lambda c: c.lm_head_multiplier),
            **dict.fromkeys(("attn_q.weight", "attn_v.weight"), _times(lambda c: c.attention_in_multiplier)),
            "attn_k.weight": _times(lambda c: c.attention_in_multiplier * c.key_multiplier),
            "attn_k.bias": _times(lambda c: c.key_multiplier),
            **of_matrix("attn_output", _times(lambda c: c.attention_out_multiplier)),
            **of_matrix("ffn_gate", _times(lambda c: c.mlp_multipliers[0])),
            **of_matrix("ffn_down", _times(lambda c: c.mlp_multipliers[1])),
            **of_matrix("ssm_out", _times(lambda c: c.ssm_out_multiplier)),
            "ssm_in.weight": _times(_projected),
        },
    )
    config: FalconH1Config

    def embed_ids(self, ids: Tensor) -> Tensor:
        return super().embed_ids(ids) * self.config.embedding_multiplier

    def block(self, layer: int, **more: Any) -> Block:
        c = self.config
        attention: Any = grouped_attention(c, layer, kind=ScaledAttention, bias=c.attention_bias)
        attention.key_scale = c.key_multiplier
        mlp: Any = gated_mlp(c, c.hidden_act, ScaledMLP)
        mlp.scales = (c.mlp_multipliers[0], c.mlp_multipliers[1])
        mixer: Any = state_space(c, ScaledMixer)
        mixer.scale(c)
        scales = (c.attention_in_multiplier, c.attention_out_multiplier, c.ssm_out_multiplier)
        return FalconH1Block(attention, mlp, self.make_norm, mixer=mixer, scales=scales)


class FalconH1ForCausalLM(ForCausalLM[FalconH1Model]):
    def score(self, hidden: Tensor) -> Tensor:
        return super().score(hidden) * self.config.lm_head_multiplier
