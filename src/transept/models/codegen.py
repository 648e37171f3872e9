"""CodeGen (Nijkamp et al. 2022): GPT-J whose queries, values and keys are one product, in four parts with heads of each."""

from __future__ import annotations

from torch import Tensor

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.heads import language
from transept.layers import FusedAttention
from transept.layers.rotary import rotate_interleaved
from transept.models.gptj import GPTJ_BLOCK, GPTJConfig, GPTJModel

PARTS = 4  # as many machines as the model was trained on side by side


class CodeGenConfig(GPTJConfig):
    """Settings of CodeGen; the defaults are those of its sizes around 6 billion parameters. ``n_ctx`` has no effect."""

    model_type = "codegen"

    n_ctx: int = 2048

    def validate(self) -> None:
        super().validate()
        if self.n_head % PARTS:
            self.fail("n_head", f"must be a multiple of {PARTS}: weights are stored in {PARTS} parts with heads of each")


class CodeGenAttention(FusedAttention):
    heads_apart = False
    rotate = staticmethod(rotate_interleaved)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = self.qkv_proj(x).unflatten(-1, (PARTS, 3, -1, self.head_dim))  # (B, T, 4, 3, H / 4, E)
        q, v, k = parts.permute(3, 0, 2, 4, 1, 5).flatten(2, 3).unbind(0)
        return q, k, v


CODEGEN_BLOCK: Table = {**GPTJ_BLOCK, "attn": ("self_attn", {"qkv_proj": "qkv_proj", "out_proj": "o_proj"})}


class CodeGenModel(GPTJModel):
    config_class = CodeGenConfig
    names = GPTJModel.names | Names({"h.*": ("layers.*", CODEGEN_BLOCK)})
    attention_class = CodeGenAttention


class CodeGenForCausalLM(language.ForCausalLM[CodeGenModel]):
    bias = True
