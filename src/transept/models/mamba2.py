"""Mamba-2 (Dao and Gu 2024): Mamba whose heads have one decay each, so that prompts are read by products of matrices."""

from __future__ import annotations

from typing import Any

from torch import nn

from transept.checkpoint.gguf import Change, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Layers, PaddingId
from transept.kinds.hybrid import LimitedSteps, spread_steps
from transept.layers.recurrent import STATE_SPACE, StateSizes, StateSpaceMixer
from transept.models.mamba import MambaForCausalLM, MambaModel, StateSpaceConfig
from transept.storage.gguf import GGUF


class Mamba2Config(StateSpaceConfig, LimitedSteps):
    """Settings of Mamba-2; the defaults are those of Mamba-Codestral with 7 billion parameters.

    The ``num_heads`` of ``head_dim`` channels stand in ``n_groups`` that share what is written to and read of states, and have
    ``expand`` times ``hidden_size`` channels together. Step sizes are within ``time_step_limit``. ``chunk_size`` has no effect:
    it chooses between equal computations; ``time_step_rank`` has none.
    """

    model_type = "mamba2"

    num_heads: Count = 128
    head_dim: Count = 64
    vocab_size: int = 32768
    hidden_size: int = 4096
    state_size: Count = 128
    num_hidden_layers: Layers = 64
    pad_token_id: PaddingId | None = 1
    eos_token_id: int | list[int] | None = 2
    n_groups: Count = 8
    chunk_size: Count = 256
    tie_word_embeddings: bool = False

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        heads, groups, inner = (
            gguf.get(f"mamba2.ssm.{key}", int, 0) for key in ("time_step_rank", "group_count", "inner_size")
        )
        size = values.get("hidden_size")
        if not heads or not groups or not inner or not isinstance(size, int) or size < 1:
            return values
        values.pop("time_step_rank", None)  # where files say how many heads there are
        return values | {"num_heads": heads, "n_groups": groups, "head_dim": inner // heads, "expand": inner // size}

    def to_gguf(self) -> dict[str, Any]:
        inner = self.num_heads * self.head_dim
        own = {"ssm.time_step_rank": self.num_heads, "ssm.group_count": self.n_groups, "ssm.inner_size": inner}
        return super().to_gguf() | own

    def validate(self) -> None:
        super().validate()
        if self.num_heads * self.head_dim != self.expand * self.hidden_size:
            self.fail("num_heads", f"times `head_dim` must be {self.expand * self.hidden_size}, `expand` times `hidden_size`")
        self.divided("num_heads", "n_groups")


MIXER: Table = {"mixer": ("mixer", STATE_SPACE)}


def _groups(config: Any) -> int:
    groups: int = getattr(config, "n_groups", None) or config.mamba_n_groups
    return groups


# Files have an axis more for what each head has one of, and for the groups of norms.
_BY_HEADS = {
    "ssm_a": Change(lambda tensor, config: (-tensor.flatten()).log(), lambda tensor, config: -tensor.exp()[:, None]),
    "ssm_d": Change(lambda tensor, config: tensor.flatten(), lambda tensor, config: tensor[:, None]),
    "ssm_norm.weight": Change(
        lambda tensor, config: tensor.flatten(),
        lambda tensor, config: tensor.view(_groups(config), -1),
    ),
}


class Mamba2Model(MambaModel):
    config_class = Mamba2Config
    names = MambaModel.names | Names({"layers.*": ("layers.*", {"norm": "mixer_norm", **MIXER})})
    gguf = Layout(
        {**MambaModel.gguf.layer, "ssm_dt": None, "ssm_x": None, "ssm_dt.bias": "mixer.dt_bias", "ssm_norm": "mixer.norm"},
        changes={**MambaModel.gguf.changes, **_BY_HEADS},
    )

    def mixer(self, layer: int) -> nn.Module:
        c = self.config
        sizes = StateSizes(c.num_heads, c.head_dim, c.n_groups, c.state_size, c.conv_kernel)
        options = {"eps": c.layer_norm_epsilon, "bias": c.use_bias, "conv_bias": c.use_conv_bias, "limit": c.time_step_limit}
        return StateSpaceMixer(c.hidden_size, sizes, c.hidden_act, **options)

    def initialize_steps(self, part: Any, mixer: Any) -> None:
        if part is mixer:
            spread_steps(mixer.dt_bias, self.config)


class Mamba2ForCausalLM(MambaForCausalLM, backbone=Mamba2Model):
    reads = ("input_ids", "inputs_embeds", "cache_params", "labels", "use_cache", "attention_mask")
