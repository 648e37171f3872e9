"""Bamba (IBM, Princeton, CMU and UIUC 2024): Llama in which most layers have a mixer of Mamba-2 in the place of attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import PaddingId
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import FULL, DecoderConfig
from transept.kinds.hybrid import LINEAR, HybridBackbone, StateSpaceSettings, state_space
from transept.layers.recurrent import STATE_SPACE
from transept.models.llama import ATTENTION, LlamaModel
from transept.objectives.classification import IGNORED
from transept.objectives.terms import LossTerm


class BambaConfig(DecoderConfig, StateSpaceSettings):
    """Settings of Bamba; the layers of ``attn_layer_indices`` have attention, in which half of each head turns.

    ``z_loss_coefficient`` times the mean square of the logarithms of the sums over all tokens is added to a loss.
    """

    model_type = "bamba"
    default_share = 0.5

    vocab_size: int = 128000
    intermediate_size: int = 14336
    num_key_value_heads: int = 8
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-5
    num_logits_to_keep: int | None = 1
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    max_position_embeddings: int = 262144
    attn_layer_indices: list[int] | None = None
    z_loss_coefficient: float = 0.0
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def layer_types(self) -> list[str]:
        attends = self.attn_layer_indices or ()
        return [FULL if layer in attends else LINEAR for layer in range(self.num_hidden_layers)]

    layers_block_type = layer_types


HYBRID_BLOCK: Table = {
    "feed_forward": "mlp",
    "input_layernorm": "self_attn_norm",
    "pre_ff_layernorm": "mlp_norm",
    "mamba": ("mixer", STATE_SPACE),
    "self_attn": ("self_attn", ATTENTION),
}


class BambaModel(HybridBackbone, LlamaModel):
    config_class = BambaConfig
    names = LlamaModel.names | Names({"layers.*": ("layers.*", HYBRID_BLOCK), "final_layernorm": "norm"})
    config: BambaConfig

    def mixer(self, layer: int) -> nn.Module:
        return state_space(self.config)


class BambaForCausalLM(ForCausalLM[BambaModel]):
    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        found = super().terms(logits, labels, inputs)
        if weight := self.config.z_loss_coefficient:
            scored = self.targets(labels) != IGNORED
            squares = logits.logsumexp(dim=-1).square() * scored
            found["z"] = LossTerm(squares.sum(), scored.sum(), weight)
        return found

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        found = super().counts(labels, inputs)
        return found | ({"z": (self.targets(labels) != IGNORED).sum()} if self.config.z_loss_coefficient else {})
