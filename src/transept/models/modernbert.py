"""ModernBERT (Warner et al. 2024): a pre-norm bidirectional encoder with rotary positions and mostly local attention.

Every third layer attends to the whole sequence, the others to a window, with rotary frequencies of their own.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from torch import Tensor, nn

from transept.checkpoint.gguf import Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, Multiple, PaddingId, Share, Signed, derived
from transept.config.model import Config
from transept.config.rotary import RotaryConfig, theta_of
from transept.core.task import TaskModel
from transept.heads import classify, language, span
from transept.kinds.text import TextBackbone
from transept.layers import Attention, Context, FusedAttention, FusedGatedMLP, Pattern, PreNorm
from transept.layers.links import Linked
from transept.layers.mlp import activation
from transept.layers.rotary import rotary_tables
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput
from transept.storage.gguf import GGUF

GLOBAL, LOCAL = "full_attention", "sliding_attention"


class ModernBertBaseConfig(RotaryConfig):
    """What ModernBERT and its decoder have in common; the defaults are those of ModernBERT-base.

    ``layer_types`` names each layer's attention, ``full_attention`` or ``sliding_attention``; when absent, every third layer
    (every ``global_attn_every_n_layers``) is the former. ``local_attention`` is twice how far a layer with a window sees on one
    side. ``rope_parameters`` has one mapping per type of layer.
    """

    default_thetas = {GLOBAL: 160000.0, LOCAL: 10000.0}

    vocab_size: int = 50368
    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    intermediate_size: int = 1152
    num_hidden_layers: Layers = 22
    num_attention_heads: int = 12
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 8192
    initializer_range: Deviation = 0.02
    initializer_cutoff_factor: Deviation | None = 2.0
    norm_eps: float = 1e-5
    norm_bias: bool = False
    pad_token_id: PaddingId | None = 50283
    eos_token_id: int | list[int] | None = 50282
    bos_token_id: int | None = 50281
    cls_token_id: int | None = 50281
    sep_token_id: int | None = 50282
    attention_bias: bool = False
    attention_dropout: Share = 0.0
    layer_types: list[str] = derived(
        lambda c: [LOCAL if i % (c.global_attn_every_n_layers or 3) else GLOBAL for i in range(c.num_hidden_layers)]
    )
    global_attn_every_n_layers: Count | None = None
    local_attention: int = 128
    embedding_dropout: Share = 0.0
    mlp_bias: bool = False
    mlp_dropout: Share = 0.0
    decoder_bias: bool = True
    classifier_dropout: Share = 0.0
    classifier_bias: bool = False
    classifier_activation: str = "gelu"

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """One theta for all does not count: each type of layer has its own."""
        return {name: value for name, value in super().upgrade(values).items() if name != "rope_theta"}

    def validate(self) -> None:
        super().validate()
        if len(self.layer_types) < self.num_hidden_layers or set(self.layer_types) - {GLOBAL, LOCAL}:
            self.fail("layer_types", f"must name {GLOBAL!r} or {LOCAL!r} for each of {self.num_hidden_layers} layers")

    global_rope_theta, local_rope_theta = theta_of(GLOBAL, GLOBAL), theta_of(LOCAL, GLOBAL)

    @property
    def sliding_window(self) -> int:
        """How far a local layer sees on either side."""
        return self.local_attention // 2

    @sliding_window.setter
    def sliding_window(self, value: int) -> None:
        self.local_attention = 2 * value

    def norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.hidden_size, self.norm_eps, bias=self.norm_bias)


class ModernBertConfig(ModernBertBaseConfig):
    """Settings of ModernBERT; ``deterministic_flash_attn`` is kept and has no effect."""

    model_type = "modernbert"

    classifier_pooling: Literal["cls", "mean"] = "cls"
    deterministic_flash_attn: bool = False
    sparse_prediction: bool = False
    sparse_pred_ignore_index: Signed = -100

    gguf_keys = {
        "attention.sliding_window": "local_attention",
        "rope.freq_base": "global_rope_theta",
        "rope.freq_base_swa": "local_rope_theta",
        "hidden_activation": "hidden_activation",
    }

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        every = gguf.settings.get(f"{gguf.architecture}.attention.sliding_window_pattern")
        return values | ({"global_attn_every_n_layers": every} if isinstance(every, int) else {})

    def in_gguf(self) -> Self:
        """A network without a head, whose layers are named one by one."""
        head = {"decoder_bias": True, "sparse_prediction": False, "sparse_pred_ignore_index": -100}
        alone = {"layer_types": self.layer_types[: self.num_hidden_layers], "global_attn_every_n_layers": None}
        return self.with_settings(**alone, **head, tie_word_embeddings=True, deterministic_flash_attn=False)

    def to_gguf(self) -> dict[str, Any]:
        acts = {"hidden_activation": self.hidden_activation} if self.hidden_activation in ("gelu", "silu") else {}
        return acts | {"attention.sliding_window_pattern": [kind == LOCAL for kind in self.layer_types]}


MODERNBERT_BLOCK: Table = {
    "attn_norm": "self_attn_norm",
    "attn": ("self_attn", {"Wqkv": "qkv_proj", "Wo": "o_proj"}),
    "mlp_norm": "mlp_norm",
    "mlp.Wi": "mlp.gate_up_proj",
    "mlp.Wo": "mlp.down_proj",
}


class ModernBertEmbeddings(nn.Module):
    """The embeddings of words, normed: (B, T) ids -> (B, T, D)."""

    def __init__(self, config: ModernBertBaseConfig) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.norm, self.drop = config.norm(), nn.Dropout(config.embedding_dropout)

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None) -> Tensor:
        words: Any = self.tok_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        return self.drop(self.norm(words))


class ModernBertModel(TextBackbone):
    config_class: ClassVar[type[ModernBertBaseConfig]] = ModernBertConfig
    base_model_prefix = "model"
    reads: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "embeddings.tok_embeddings": "embed_tokens",
            "embeddings.norm": "embed_norm",
            "layers.*": ("layers.*", MODERNBERT_BLOCK),
            "final_norm": "norm",
        }
    )
    gguf = Layout({"ffn_up": "mlp.gate_up_proj"}, architecture="modern-bert")
    scales_residual = True
    attention_class: ClassVar[type[Attention]] = FusedAttention
    config: ModernBertBaseConfig

    def __init__(self, config: ModernBertBaseConfig) -> None:
        super().__init__(config)
        c = config
        self.embeddings = ModernBertEmbeddings(c)
        self.alias("embed_tokens", "embeddings.tok_embeddings")
        self.alias("embed_norm", "embeddings.norm")
        self.layers = nn.ModuleList(self.make_block(layer) for layer in range(c.num_hidden_layers))
        self.norm = c.norm()
        self.rotary_emb = rotary_tables(c)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        ctx.rotary = self.rotary_emb.tables(positions, x.dtype)
        return self.embeddings(inputs_embeds=x)

    def make_block(self, layer: int) -> PreNorm:
        """A layer; the very first has no norm before its attention."""
        c, kind = self.config, self.config.layer_types[layer]
        options: dict[str, Any] = {"bias": c.attention_bias, "dropout": c.attention_dropout, "rotary": kind}
        attention = self.attention_class(c.hidden_size, c.num_attention_heads, pattern=self.pattern(kind), **options)
        mlp = partial(FusedGatedMLP, bias=c.mlp_bias, chunk_size=c.chunk_size_feed_forward, dropout=c.mlp_dropout)
        parts = attention, mlp(c.hidden_size, c.intermediate_size, c.hidden_activation)
        made = PreNorm(*parts, c.norm, dropout=c.attention_dropout, mlp_dropout=0.0)
        if layer == 0:
            made.self_attn_norm = nn.Identity()
        return made

    def pattern(self, kind: str) -> Pattern:
        """Which keys a layer of a kind sees: a local one as many positions before as after."""
        return Pattern(window=self.config.sliding_window + 1 if kind == LOCAL else None)

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if isinstance(module, nn.Linear | nn.Embedding):
            self.truncated(module.weight, self.deviation(module))

    @property
    def narrow(self) -> float:
        return self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)

    def truncated(self, weight: Tensor, std: float) -> None:
        """Fill a matrix from a normal distribution, cut off after so many deviations."""
        end = std * (3.0 if self.config.initializer_cutoff_factor is None else self.config.initializer_cutoff_factor)
        nn.init.trunc_normal_(weight, std=std, a=-end, b=end)


class ModernBertHead(Linked):
    """A dense layer, an activation and a norm, which all tasks share with pretraining, and the task's own layer."""

    def __init__(self, c: ModernBertBaseConfig, outputs: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(c.hidden_size, c.hidden_size, c.classifier_bias), c.norm()
        self.act, self.dropout = activation(c.classifier_activation), nn.Dropout(dropout)
        self.out_proj = nn.Linear(c.hidden_size, outputs, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.dropout(self.norm(self.act(self.dense(x)))))


ModernB = TypeVar("ModernB", bound=ModernBertModel)


class ModernBertTask(TaskModel[ModernB]):
    """A task with ModernBERT's head, whose matrices begin as the network's."""

    @classmethod
    def own_names_of(cls, config: Config) -> Names:
        """The last layer may be new above a pretrained dense one."""
        return super().own_names_of(config) | Names(absent=("*.out_proj",))

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        for head in self.children():
            if isinstance(head, ModernBertHead) and module in (head.dense, head.out_proj):
                self.backbone.truncated(module.weight, self.backbone.narrow if module is head.dense else self.last_deviation())

    def last_deviation(self) -> float:
        return 1 / math.sqrt(self.backbone.dim)


class ModernBertForMaskedLM(ModernBertTask[ModernBertModel], language.ForMaskedLM[ModernBertModel]):
    """ModernBERT that fills masks; with ``sparse_prediction``, logits are for labelled tokens only, (tokens, V)."""

    names = Names(
        {"head": "lm_head", "decoder": "lm_head.out_proj"}, ties={"lm_head.out_proj.weight": "backbone.embed_tokens.weight"}
    )

    def make_head(self, config: Config) -> nn.Module:
        return ModernBertHead(self.backbone.config, config.vocab_size, bias=config.decoder_bias)

    def last_deviation(self) -> float:
        return self.backbone.narrow

    def get_output_embeddings(self) -> nn.Linear | None:
        assert isinstance(self.lm_head, ModernBertHead)
        return self.lm_head.out_proj

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        """All states, or those that are labelled."""
        states = super().encode(inputs, labels)
        if labels is not None and self.config.sparse_prediction:
            states["last_hidden_state"] = states.last_hidden_state[labels != self.config.sparse_pred_ignore_index]
        return states

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        if self.config.sparse_prediction:
            labels = labels[labels != self.config.sparse_pred_ignore_index]
        return super().terms(logits, labels, inputs)

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        if self.config.sparse_prediction:
            labels = labels[labels != self.config.sparse_pred_ignore_index]
        return super().counts(labels, inputs)


class _Classifies(ModernBertTask[ModernBertModel], classify.HeadedTask[ModernBertModel]):
    names = Names({"head": "head", "classifier": "head.out_proj"})

    def make_head(self, config: Config) -> nn.Module:
        return ModernBertHead(self.backbone.config, self.classes, dropout=config.classifier_dropout)

    @property
    def how(self) -> str:
        return "mean" if self.config.classifier_pooling == "mean" else "first"


class ModernBertForSequenceClassification(_Classifies, classify.ForSequenceClassification[ModernBertModel]): ...


class ModernBertForTokenClassification(_Classifies, classify.ForTokenClassification[ModernBertModel]): ...


class ModernBertForQuestionAnswering(_Classifies, span.ForQuestionAnswering[ModernBertModel]):
    omits = ("inputs_embeds",)


class ModernBertForMultipleChoice(_Classifies, classify.ForMultipleChoice[ModernBertModel]):
    def pool(self, states: BackboneOutput, ids: Tensor | None, mask: Tensor | None) -> Tensor:
        """The mean, or the first token that is not padding, on whichever side the padding is."""
        hidden = states.last_hidden_state
        if self.how == "mean" or mask is None:
            return super().pool(states, ids, mask)
        return hidden.gather(1, mask.int().argmax(1)[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)
