"""X-MOD (Pfeiffer et al. 2022): XLM-RoBERTa with an adapter for each language in each layer, which its texts go through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.config.fields import Count, derived
from transept.core.inputs import ENCODER, INTEGERS, check_range, check_tensor
from transept.errors import InputError, nearest
from transept.kinds.encoder import encoder_layers
from transept.kinds.text import Options
from transept.layers import Block, Context
from transept.layers.links import Step
from transept.layers.mlp import activation
from transept.models.bert import BERT_BLOCK
from transept.models.roberta import (
    EMBEDDINGS,
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)


class XmodConfig(RobertaConfig):
    """Settings of X-MOD. ``languages`` have adapters of a size that is smaller by ``adapter_reduction_factor``.

    What an adapter reads is normed by a norm of its own (``adapter_layer_norm``) or by the layer's
    (``adapter_reuse_layer_norm``), and what it gives is added to that, or without ``ln_before_adapter`` to what came before
    the norm. ``pre_norm`` puts the layers' norms before their sublayers. ``default_language`` is that of texts whose language
    is not told.
    """

    model_type = "xmod"

    vocab_size: int = 30522
    pre_norm: bool = False
    adapter_reduction_factor: Count = 2
    adapter_layer_norm: bool = False
    adapter_reuse_layer_norm: bool = True
    ln_before_adapter: bool = True
    languages: list[str] = derived(lambda c: ["en_XX"])
    default_language: str | None = None


class Adapter(nn.Module):
    """A small feed-forward layer: (..., D) -> (..., D)."""

    def __init__(self, dim: int, hidden: int, act: str) -> None:
        super().__init__()
        self.dense1, self.act, self.dense2 = nn.Linear(dim, hidden), activation(act), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense2(self.act(self.dense1(x)))


class XmodBlock(Block):
    """BERT's block, with norms behind or before its sublayers, and an adapter behind its feed-forward layer."""

    def __init__(self, *args: Any, settings: XmodConfig, **options: Any) -> None:
        super().__init__(*args, **options)
        c = settings
        self.pre_norm, self.reuses, self.norms_first = c.pre_norm, c.adapter_reuse_layer_norm, c.ln_before_adapter
        self.adapter_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps) if c.adapter_layer_norm else None
        size = c.hidden_size // c.adapter_reduction_factor
        self.adapters = nn.ModuleDict({name: Adapter(c.hidden_size, size, c.hidden_act) for name in c.languages})

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        x = self.attended(x, ctx, self.self_attn, self.self_attn_norm)
        if self.cross_attn is not None and self.cross_attn_norm is not None and ctx.encoder_states is not None:
            x = self.attended(x, ctx, self.cross_attn, self.cross_attn_norm)
        x = x + self.mlp_dropout(self.mlp(self.mlp_norm(x) if self.pre_norm else x, ctx))
        x = self.adapted(x, ctx)
        return x if self.pre_norm else self.mlp_norm(x)

    def attended(self, x: Tensor, ctx: Context, attention: nn.Module, norm: nn.Module) -> Tensor:
        """What attention gathers, added to its input."""
        x = ctx.keep(x) + self.dropout(attention(norm(x) if self.pre_norm else x, ctx)[0])
        return x if self.pre_norm else norm(x)

    def adapted(self, x: Tensor, ctx: Context) -> Tensor:
        """States (B, T, D) through the adapters of their languages."""
        residual = x
        if self.adapter_norm is not None:
            x = self.adapter_norm(x)
        elif self.reuses:
            x = self.mlp_norm(x)
        out, adapters = torch.empty_like(x), [*self.adapters.values()]
        if isinstance(languages := ctx.own, int):
            out = adapters[languages](x)
        else:
            language = self.language_of(x, languages, ctx)
            for number in sorted({*language.flatten().tolist()}):
                here = language == number
                out[here] = adapters[number](x[here])
        return self.mlp_dropout(out) + (x if self.norms_first else residual)

    @staticmethod
    def language_of(x: Tensor, languages: Tensor, ctx: Context) -> Tensor:
        """(B, T): the language of each state, of those of the rows."""
        if ctx.rows is None:
            return languages[:, None].expand(x.shape[:2])
        if x.shape[1] == len(languages):
            return languages[None]
        return languages.repeat_interleave(torch.tensor(ctx.rows.lengths, device=x.device))[None]


XMOD_BLOCK: Table = {
    **{name: own for name, own in BERT_BLOCK.items() if name != "output.LayerNorm"},
    "output": (
        "",
        {
            "LayerNorm": "mlp_norm",
            "adapter_layer_norm": "adapter_norm",
            "adapter_modules": "adapters",
        },
    ),
}


class XmodModel(RobertaModel):
    """X-MOD without a head; ``lang_ids`` (B) are the numbers of the languages of texts, by their order in the config."""

    config_class = XmodConfig
    base_model_prefix = "roberta"
    reads = (
        *("input_ids", "lang_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
        *(*ENCODER, "labels", "past_key_values", "use_cache"),
    )
    names = replace(
        RobertaModel.names,
        table={
            "embeddings": ("", EMBEDDINGS),
            "encoder.layer.*": ("layers.*", XMOD_BLOCK),
            "encoder.LayerNorm": "norm",
            "pooler": "pooler",
        },
    )
    config: XmodConfig

    def __init__(self, config: XmodConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        c = config
        self.layers = encoder_layers(c, partial(XmodBlock, settings=c), causal=c.is_decoder, cross=c.add_cross_attention)
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps) if c.pre_norm else None

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {}

    def set_default_language(self, language: str) -> None:
        """Let texts whose language is not told be of this one (``InputError`` where there is no such adapter)."""
        if language not in self.config.languages:
            raise InputError(f"there is no adapter for {language!r}.", hint=nearest(language, self.config.languages))
        self.config.default_language = language

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        lang_ids: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context]:
        x, ctx = super().begin(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **options)
        ctx.own = self.language(lang_ids, len(x) if ctx.rows is None else len(ctx.rows.lengths))
        return x, ctx

    def language(self, given: Tensor | None, rows: int) -> int | Tensor:
        """The number of the language of all rows, or (B) those of each."""
        names = self.config.languages
        if given is None:
            if self.config.default_language not in names:
                hint = "Pass `lang_ids`, or call model.set_default_language('en_XX')."
                raise InputError("the language of the texts is not known.", hint=hint)
            return names.index(self.config.default_language)
        check_tensor("lang_ids", given, INTEGERS, "(batch)")
        if len(given) != rows:
            raise InputError(f"`lang_ids` tells the languages of {len(given)} texts, but there are {rows}.")
        check_range("lang_ids", given, len(names), "the model has the languages 0 to", "See `config.languages`.")
        return given


class _Languages:
    """What tasks do with languages."""

    backbone: Any

    def set_default_language(self, language: str) -> None:
        """Let texts whose language is not told be of this one."""
        self.backbone.set_default_language(language)

    def freeze_embeddings_and_language_adapters(self) -> None:
        """Leave embeddings and adapters out of training, as is usual before a task is learnt in one language."""
        self.backbone.embeddings.requires_grad_(False)
        for layer in self.backbone.layers:
            for part in (layer.adapters, layer.adapter_norm):
                if part is not None:
                    part.requires_grad_(False)


class XmodForMaskedLM(_Languages, RobertaForMaskedLM, backbone=XmodModel): ...


class XmodForCausalLM(_Languages, RobertaForCausalLM, backbone=XmodModel): ...


class XmodForSequenceClassification(_Languages, RobertaForSequenceClassification, backbone=XmodModel): ...


class XmodForTokenClassification(_Languages, RobertaForTokenClassification, backbone=XmodModel): ...


class XmodForQuestionAnswering(_Languages, RobertaForQuestionAnswering, backbone=XmodModel): ...


class XmodForMultipleChoice(_Languages, RobertaForMultipleChoice, backbone=XmodModel):
    reads = ("input_ids", "lang_ids", "token_type_ids", "attention_mask", "labels", "position_ids", "inputs_embeds")
