"""XLM (Conneau and Lample 2019): post-norm encoders of texts in several languages, which each token may be told of."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Multiple, PaddingId, Share
from transept.config.model import Config
from transept.core.inputs import check_by_position, check_range
from transept.core.task import TaskModel
from transept.errors import InputError, UnsupportedError, refuse
from transept.heads import classify, language, span
from transept.kinds.text import TextBackbone
from transept.layers import MLP, Attention, Block, Context, Pattern, PostNorm, standard_layers
from transept.layers.context import within
from transept.layers.links import Linked
from transept.layers.mlp import activation
from transept.layers.positions import sinusoids


class XLMConfig(Config):
    """Settings of XLM.

    With ``n_langs`` above 1 and ``use_lang_emb``, languages have embeddings. ``causal`` lets tokens see those before them,
    ``gelu_activation`` chooses GELU or ReLU, ``sinusoidal_embeddings`` sets sines and cosines as first positions.
    ``summary_...`` are the head of sequences and choices, ``start_n_top`` and ``end_n_top`` the search for answers.
    ``unk_index``, ``mask_index``, ``mask_token_id`` and ``lang_id`` are kept and have no effect.
    """

    model_type = "xlm"
    aliases = {
        "hidden_size": "emb_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "n_words": "vocab_size",
        "bos_index": "bos_token_id",
        "eos_index": "eos_token_id",
        "pad_index": "pad_token_id",
        "initializer_range": "init_std",
    }

    vocab_size: int = 30145
    emb_dim: Annotated[int, Multiple("n_heads")] = 2048
    n_layers: Layers = 12
    n_heads: int = 16
    dropout: Share = 0.1
    attention_dropout: Share = 0.1
    gelu_activation: bool = True
    sinusoidal_embeddings: bool = False
    causal: bool = False
    asm: bool = False
    n_langs: Count = 1
    use_lang_emb: bool = True
    max_position_embeddings: int = 512
    embed_init_std: Deviation = 2048**-0.5
    layer_norm_eps: float = 1e-12
    init_std: Deviation = 0.02
    unk_index: int = 3
    mask_index: int = 5
    is_encoder: bool = True
    summary_type: Literal["first", "last", "mean", "cls_index"] = "first"
    summary_use_proj: bool = True
    summary_activation: str | None = None
    summary_proj_to_labels: bool = True
    summary_first_dropout: Share = 0.1
    start_n_top: Count = 5
    end_n_top: Count = 5
    mask_token_id: int | None = 0
    lang_id: int = 0
    pad_token_id: PaddingId | None = 2
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1

    def check_model(self) -> None:
        super().check_model()
        if not self.is_encoder:
            self.fail("is_encoder", "must be true: there is no decoder of this family")
        if self.asm:
            self.fail("asm", "must be false: an adaptive softmax is not supported")


def without_padding(x: Tensor, ctx: Context) -> Tensor:
    """States (B, T, D) with zeros for padding."""
    return x if ctx.padding is None else x * ctx.padding[..., None].to(x.dtype)


class XLMBlock(PostNorm):
    """A post-norm block, after which padding is zeros."""

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        return without_padding(super().whole(x, ctx), ctx)


class XLMModel(TextBackbone):
    """XLM without a head; ``langs`` (B, T) are numbers of languages, ``lengths`` (B) those of texts in the place of a mask."""

    config_class = XLMConfig
    base_model_prefix = "transformer"
    head_dropouts = ("dropout",)
    reads = (
        *("input_ids", "attention_mask", "langs", "token_type_ids", "position_ids", "lengths", "cache", "inputs_embeds"),
        "labels",
    )
    by_position = (*TextBackbone.by_position, "langs")
    names = Names(
        {
            "position_embeddings": "embed_positions",
            "lang_embeddings": "embed_langs",
            "embeddings": "embed_tokens",
            "layer_norm_emb": "embed_norm",
            "attentions.*": (
                "layers.*.self_attn",
                {"q_lin": "q_proj", "k_lin": "k_proj", "v_lin": "v_proj", "out_lin": "o_proj"},
            ),
            "layer_norm1.*": "layers.*.self_attn_norm",
            "ffns.*": ("layers.*.mlp", {"lin1": "up_proj", "lin2": "down_proj"}),
            "layer_norm2.*": "layers.*.mlp_norm",
        },
        ignore=("position_ids",),
    )
    config: XLMConfig

    def __init__(self, config: XLMConfig) -> None:
        super().__init__(config)
        c, dim = config, config.emb_dim
        self.embed_positions = nn.Embedding(c.max_position_embeddings, dim)
        self.embed_langs = nn.Embedding(c.n_langs, dim) if c.n_langs > 1 and c.use_lang_emb else None
        self.embed_tokens = nn.Embedding(c.vocab_size, dim, padding_idx=c.pad_token_id)
        self.embed_norm, self.dropout = nn.LayerNorm(dim, c.layer_norm_eps), nn.Dropout(c.dropout)
        self.layers = standard_layers(
            c,
            partial(self.block_of(c), dropout=c.dropout, layerdrop=getattr(c, "layerdrop", 0.0)),
            partial(Attention, dim, c.n_heads, dropout=c.attention_dropout, pattern=Pattern(causal=c.causal)),
            partial(MLP, dim, 4 * dim, "gelu" if c.gelu_activation else "relu"),
            partial(nn.LayerNorm, dim, c.layer_norm_eps),
        )

    def block_of(self, config: Any) -> type[Block]:
        return XLMBlock

    @property
    def causal(self) -> bool:
        return self.config.causal

    def makes_cache(self, asked: bool | None) -> bool:
        return False

    def deviation(self, module: nn.Module) -> float:
        return self.config.embed_init_std if isinstance(module, nn.Embedding) else super().deviation(module)

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if module is self.embed_positions and self.config.sinusoidal_embeddings:
            table = self.embed_positions.weight
            table[:, 0::2], table[:, 1::2] = sinusoids(torch.arange(len(table), device=table.device), table.shape[1])

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        langs: Tensor | None = None,
        lengths: Any = None,
        cache: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Context]:
        refuse(cache is not None, "this family has no `cache`.", "Pass whole texts.", UnsupportedError)
        if isinstance(lengths, Tensor):
            attention_mask = mask_of(lengths, inputs_embeds if input_ids is None else input_ids, attention_mask)
        else:
            options["lengths"] = lengths
        ctx = self.start(input_ids, inputs_embeds, attention_mask, **options)
        x: Any = self.embed_ids(input_ids) if input_ids is not None else inputs_embeds
        if token_type_ids is not None:
            self.check_types(token_type_ids, x, self.embed_tokens)
        x = x + self.embed_positions(self.positions(position_ids, x, ctx))
        if langs is not None and self.embed_langs is not None:
            check_by_position("langs", langs, x)
            hint = "See `lang2id` of the config."
            check_range("langs", langs, self.config.n_langs, "the model has the languages 0 to", hint)
            x = x + self.embed_langs(langs)
        if token_type_ids is not None:
            x = x + self.embed_tokens(token_type_ids)  # which is how types are told in this family
        return without_padding(self.dropout(self.embed_norm(x)), ctx), ctx


def mask_of(lengths: Tensor, given: Any, mask: Tensor | None) -> Tensor:
    """The padding mask (B, T) of texts of ``lengths`` (B), or the one that there is."""
    if lengths.shape != given.shape[:1]:
        raise InputError(f"`lengths` has the shape {tuple(lengths.shape)}, but there are {len(given)} rows.")
    return within(lengths, given.shape[1]) if mask is None else mask


class _Task(TaskModel[XLMModel]):
    """A task whose texts may come with ``lengths``."""

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        if isinstance(lengths := inputs.get("lengths"), Tensor):
            given = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
            inputs["attention_mask"], inputs["lengths"] = mask_of(lengths, given, inputs.get("attention_mask")), None
        return super().encode(inputs, labels)  # type: ignore[misc]


class XLMWithLMHeadModel(_Task, language.ForMaskedLM[XLMModel]):
    """The token at each position: ``logits`` (B, T, V), ``labels`` (B, T) with -100 for ignored ones, which are not shifted."""

    takes = ("logits_to_keep",)
    names = Names({"pred_layer.proj": "lm_head"}, ties={"lm_head.weight": "backbone.embed_tokens.weight"})

    def step_classes(self) -> dict[str, Any]:
        return {}

    def make_head(self, config: Config) -> nn.Module:
        return nn.Linear(self.backbone.dim, config.vocab_size)

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        states = super().encode({name: value for name, value in inputs.items() if name not in self.takes}, labels)
        keep = inputs.get("logits_to_keep", 0)
        kept = slice(-keep if keep else None, None) if isinstance(keep, int) else keep
        states["last_hidden_state"] = states.last_hidden_state[:, kept]
        return states


class SummaryHead(Linked):
    """A dense layer with dropout before it and an activation behind, and for choices one score of what it gives."""

    def __init__(self, dim: int, c: Any, *, scores: bool) -> None:
        super().__init__()
        size = c.num_labels if c.summary_proj_to_labels and c.num_labels > 0 else dim
        self.dropout, self.act = nn.Dropout(c.summary_first_dropout), activation(c.summary_activation or "linear")
        self.summary: nn.Module = nn.Linear(dim, size) if c.summary_use_proj else nn.Identity()
        self.out_proj: nn.Module = nn.Linear(c.num_labels, 1) if scores else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.act(self.summary(self.dropout(x))))


class XLMForSequenceClassification(_Task, classify.SummaryTask[XLMModel], classify.ForSequenceClassification[XLMModel]):
    names = Names({"sequence_summary.summary": "head.summary"})

    def make_head(self, config: Config) -> nn.Module:
        return SummaryHead(self.backbone.dim, config, scores=False)


class XLMForMultipleChoice(_Task, classify.SummaryTask[XLMModel], classify.ForMultipleChoice[XLMModel]):
    names = Names({"sequence_summary.summary": "head.summary", "logits_proj": "head.out_proj"})

    def make_head(self, config: Config) -> nn.Module:
        return SummaryHead(self.backbone.dim, config, scores=True)


class XLMForTokenClassification(_Task, classify.ForTokenClassification[XLMModel]): ...


class XLMForQuestionAnsweringSimple(_Task, span.ForQuestionAnswering[XLMModel]): ...


class XLMForQuestionAnswering(span.ForBeamQuestionAnswering[XLMModel]):
    names = Names({"qa_outputs": ("", span.ForBeamQuestionAnswering.names.table)})
