"""MVP (Tang et al. 2022): BART trained on many tasks, which may read prompts of keys and values in each layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count
from transept.config.model import Config
from transept.core.model import Model
from transept.errors import InputError, refuse
from transept.heads.seq2seq import ForBiasedGeneration, ForQuestionAnswering, ForSequenceClassification, StackForCausalLM
from transept.layers import Attention, Context
from transept.layers.context import Attended
from transept.models.bart import BartConfig, BartDecoder, BartEncoder, BartModel, BartStack


class MvpConfig(BartConfig):
    """Settings of MVP. With ``use_prompt`` layers read ``prompt_length`` more keys and values, which two linear layers make."""

    model_type = "mvp"

    vocab_size: int = 50267
    num_labels: int = 2
    forced_eos_token_id: int | list[int] | None = None
    use_prompt: bool = False
    prompt_length: Count = 100
    prompt_mid_dim: Count = 800


class MvpPrompt(nn.Module):
    """Keys and values that all positions see, for each of some layers: (layers, 2, 1, H, P, E)."""

    def __init__(self, c: Config, layers: int, heads: int) -> None:
        super().__init__()
        self.layers, self.heads, self.dropout = layers, heads, nn.Dropout(c.dropout)
        self.prompt_embedding = nn.Embedding(c.prompt_length, c.d_model)
        steps = nn.Linear(c.d_model, c.prompt_mid_dim), nn.GELU(), nn.Linear(c.prompt_mid_dim, layers * 2 * c.d_model)
        self.prompt_trans = nn.Sequential(*steps)

    def forward(self) -> Tensor:
        made = self.dropout(self.prompt_trans(self.prompt_embedding.weight))
        return made.view(len(made), self.layers, 2, 1, self.heads, -1).permute(1, 2, 3, 4, 0, 5)


class PromptedAttention(Attention):
    """Attention also to a prompt (layers, 2, 1, H, P, E), where the context's ``own`` has one."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        if ctx.own is None:
            return super().attend(q, k, v, mask, causal, ctx)
        prompt_k, prompt_v = (each.expand(len(k), -1, -1, -1) for each in ctx.own[self.cross][ctx.layer])
        if mask is None and causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
        if mask is not None:
            seen = mask.new_zeros(()) if mask.is_floating_point() else mask.new_ones(())
            mask = torch.cat([seen.expand(*mask.shape[:3], prompt_k.shape[2]), mask], dim=3)
        return super().attend(q, torch.cat([prompt_k, k], dim=2), torch.cat([prompt_v, v], dim=2), mask, False, ctx)


class MvpStack(BartStack):
    config_class = MvpConfig
    attention_class = cross_class = PromptedAttention
    names = BartStack.names | Names({"self_attn_prompt": "self_attn_prompt", "cross_attn_prompt": "cross_attn_prompt"})

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.use_prompt:
            sizes = len(self.layers), self.setting("attention_heads")
            self.self_attn_prompt = MvpPrompt(config, *sizes)
            if self.causal:
                self.cross_attn_prompt = MvpPrompt(config, *sizes)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if self.config.use_prompt:
            ctx.own = [self.self_attn_prompt(), self.cross_attn_prompt() if self.causal else None]
        return super().embed(x, types, positions, ctx)


def tune_prompts(model: Model) -> None:
    """Train the prompts alone, and no head (``InputError``: there are no prompts)."""
    refuse(not model.config.use_prompt, "there are no prompts to be tuned.", "Set `use_prompt` in the config.", InputError)
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, MvpPrompt):
            module.requires_grad_(True)


class MvpEncoder(MvpStack, BartEncoder): ...


class MvpDecoder(MvpStack, BartDecoder):
    names = BartDecoder.names | MvpStack.names


class MvpModel(BartModel):
    config_class = MvpConfig
    encoder_class, decoder_class = MvpEncoder, MvpDecoder
    set_lightweight_tuning = tune_prompts


class MvpForConditionalGeneration(ForBiasedGeneration[MvpModel]):
    set_lightweight_tuning = tune_prompts


class MvpForSequenceClassification(ForSequenceClassification[MvpModel]):
    set_lightweight_tuning = tune_prompts


class MvpForQuestionAnswering(ForQuestionAnswering[MvpModel]):
    set_lightweight_tuning = tune_prompts


class MvpForCausalLM(StackForCausalLM[MvpDecoder]):
    set_lightweight_tuning = tune_prompts
