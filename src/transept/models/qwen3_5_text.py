"""Qwen3.5's model of texts (Qwen Team 2026): Qwen3-Next with dense feed-forward layers, and a projection for each part."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transept.checkpoint.gguf import FLAT_CONV, NORMS, PLUS_ONE, STATES, Change, Layout
from transept.checkpoint.names import Names
from transept.config.fields import Layers
from transept.heads.language import ForCausalLM
from transept.kinds.hybrid import HybridBackbone
from transept.models.llama import LlamaForSequenceClassification, LlamaModel
from transept.models.qwen3_next import DELTA_BLOCK, DELTA_PARTS, DeltaConfig, DeltaLayers, DeltaMixer


class Qwen3_5TextConfig(DeltaConfig):
    """Settings of Qwen3.5; the defaults are those of a checkpoint with 9 billion parameters.

    Files that hold a model of pictures, too, are read without it. ``mrope_section`` and ``mrope_interleaved`` in
    ``rope_parameters`` have no effect on texts.
    """

    model_type = "qwen3_5_text"

    vocab_size: int = 248320
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: Layers = 32
    num_attention_heads: int = 16
    num_key_value_heads: int = 4


class SplitDeltaMixer(DeltaMixer):
    """The mixer with a projection for each part."""

    def make_projections(self, dim: int) -> None:
        self.in_proj_qkv = nn.Linear(dim, 2 * self.keys + self.values, bias=False)
        self.in_proj_z = nn.Linear(dim, self.values, bias=False)
        self.in_proj_b, self.in_proj_a = (nn.Linear(dim, self.heads, bias=False) for _ in range(2))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.in_proj_qkv(x), self.in_proj_z(x), self.in_proj_b(x), self.in_proj_a(x)


def _swapped(tensor: Tensor, config: DeltaConfig, axis: int, size: int, *, tiled: bool) -> Tensor:
    """Heads of values by the heads of keys that they belong to, or ``tiled``: the first ones of all, then the second ones."""
    groups, each = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    order = (each, groups, size) if tiled else (groups, each, size)
    return tensor.unflatten(axis, order).transpose(axis, axis + 1).flatten(axis, axis + 2)  # type: ignore[no-untyped-call]


def _tiled(axis: int = 0, *, whole: bool = True, mixed: bool = False, before: Change | None = None) -> Change:
    """The file has heads of values in another order; ``whole`` with all numbers of each, ``mixed`` behind queries and keys.

    ``before`` is what it changes besides.
    """

    def change(tensor: Tensor, config: DeltaConfig, *, tiled: bool) -> Tensor:
        size = config.linear_value_head_dim if whole else 1
        others = 2 * config.linear_num_key_heads * config.linear_key_head_dim if mixed else 0
        first, values = torch.split(tensor, [others, tensor.shape[axis] - others], dim=axis)
        return torch.cat([first, _swapped(values, config, axis, size, tiled=tiled)], dim=axis)

    def read(tensor: Tensor, config: DeltaConfig) -> Tensor:
        return change(tensor if before is None else before.read(tensor, config), config, tiled=True)

    def write(tensor: Tensor, config: DeltaConfig) -> Tensor:
        tensor = change(tensor, config, tiled=False)
        return tensor if before is None else before.write(tensor, config)

    return Change(read, write, by_rows=axis == 0)


DELTA_FILES = Layout(
    {
        **DELTA_PARTS,
        "attn_qkv": "mixer.in_proj_qkv",
        "attn_gate": "mixer.in_proj_z",
        "ssm_beta": "mixer.in_proj_b",
        "ssm_alpha": "mixer.in_proj_a",
    },
    changes={
        **dict.fromkeys(NORMS, PLUS_ONE),
        "attn_qkv.weight": _tiled(mixed=True),
        "attn_gate.weight": _tiled(),
        "ssm_out.weight": _tiled(1),
        **dict.fromkeys(("ssm_beta.weight", "ssm_alpha.weight", "ssm_dt.bias"), _tiled(whole=False)),
        "ssm_a": _tiled(whole=False, before=STATES["ssm_a"]),
        "ssm_conv1d.weight": _tiled(mixed=True, before=FLAT_CONV),
    },
)


class Qwen3_5TextModel(DeltaLayers, HybridBackbone, LlamaModel):
    config_class = Qwen3_5TextConfig
    names = LlamaModel.names | Names(
        {"layers.*": ("layers.*", DELTA_BLOCK)}, legacy={"language_model": ""}, ignore=("mtp", "visual")
    )
    gguf = DELTA_FILES
    mixer_class = SplitDeltaMixer


class Qwen3_5ForCausalLM(ForCausalLM[Qwen3_5TextModel]): ...


class Qwen3_5TextForSequenceClassification(LlamaForSequenceClassification, backbone=Qwen3_5TextModel): ...
