"""Qwen3.5's model of texts (Qwen Team 2026): Qwen3-Next with dense feed-forward layers, and a projection for each part."""

from __future__ import annotations

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Layers
from transept.heads.language import ForCausalLM
from transept.kinds.hybrid import HybridBackbone
from transept.models.llama import LlamaForSequenceClassification, LlamaModel
from transept.models.qwen3_next import DELTA_BLOCK, DeltaConfig, DeltaLayers, DeltaMixer


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


class Qwen3_5TextModel(DeltaLayers, HybridBackbone, LlamaModel):
    config_class = Qwen3_5TextConfig
    names = LlamaModel.names | Names(
        {"layers.*": ("layers.*", DELTA_BLOCK)}, legacy={"language_model": ""}, ignore=("mtp", "visual")
    )
    mixer_class = SplitDeltaMixer


class Qwen3_5ForCausalLM(ForCausalLM[Qwen3_5TextModel]): ...


class Qwen3_5TextForSequenceClassification(LlamaForSequenceClassification, backbone=Qwen3_5TextModel): ...
