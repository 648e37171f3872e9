"""T5 (Raffel et al. 2020): an encoder and a decoder that know positions only by a bias for each distance.

Scores are not scaled, norms do not centre, and nothing has a bias of its own. T5 1.1 (Flan) unties its head and gates its
feed-forward layers, of which the second half overflows in float16 and stays float32.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from torch import Tensor, nn

from transept.checkpoint.gguf import LAYER, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import MAX_SIZE, Deviation, Layers, PaddingId, Range, Share, derived
from transept.config.model import Config
from transept.core.loading import initialize_module
from transept.core.model import Model
from transept.heads.classify import ForTokenClassification
from transept.heads.seq2seq import ForConditionalGeneration, ForQuestionAnswering, ForSequenceClassification
from transept.kinds.seq2seq import SHARED_TABLES, DecoderStack, EncoderStack, Seq2SeqB, Seq2SeqBackbone, Seq2SeqConfig, Stack
from transept.layers import MLP, Attention, Context, GatedMLP, Pattern, PreNorm, RMSNorm, clamp_half, distance_bias
from transept.layers.links import Step
from transept.storage.gguf import GGUF


class DistanceConfig(Seq2SeqConfig):
    """Settings of encoder–decoders of T5's kind."""

    aliases = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: Layers = 6
    num_decoder_layers: Layers = derived(lambda c: c.num_layers)
    num_heads: int = 8
    relative_attention_num_buckets: Annotated[int, Range(4, MAX_SIZE)] = 32
    relative_attention_max_distance: int = 128
    dropout_rate: Share = 0.1
    layer_norm_epsilon: float = 1e-6
    initializer_factor: Deviation = 1.0
    pad_token_id: PaddingId | None = 0
    eos_token_id: int | list[int] | None = 1

    def validate(self) -> None:
        super().validate()
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            self.fail("relative_attention_max_distance", "must be more than half of `relative_attention_num_buckets`")


class T5Config(DistanceConfig):
    """Settings of T5; the defaults are those of t5-small.

    ``feed_forward_proj`` is an activation, or ``gated-`` and one.
    """

    model_type = "t5"
    aliases = {"head_dim": "d_kv"}
    gguf_keys = {
        "feed_forward_length": "d_ff",
        "decoder_block_count": "num_decoder_layers",
        "attention.relative_buckets_count": "relative_attention_num_buckets",
        "decoder_start_token_id": "decoder_start_token_id",
    }

    feed_forward_proj: str = "relu"
    classifier_dropout: Share = 0.0
    scale_decoder_outputs: bool = derived(lambda c: c.tie_word_embeddings)

    @classmethod
    def from_gguf(cls, gguf: GGUF, values: dict[str, Any]) -> dict[str, Any]:
        gated = "enc.blk.0.ffn_gate.weight" in gguf.tensors
        found = {"feed_forward_proj": "gated-gelu" if gated else "relu", "is_encoder_decoder": gguf.architecture == "t5"}
        return values | found

    def in_gguf(self) -> Self:
        """An encoder alone has no output layer."""
        alone = {"tie_word_embeddings": True, "scale_decoder_outputs": True}
        return self if self.is_encoder_decoder else self.with_settings(**alone)

    def validate(self) -> None:
        super().validate()
        gate, _, act = self.feed_forward_proj.rpartition("-")
        if gate not in ("", "gated") or not act:
            self.fail("feed_forward_proj", "must be an activation such as 'relu', or 'gated-' and one")
        self.scale_decoder_outputs = self.scale_decoder_outputs  # weights that are untied later are scaled as before

    @property
    def is_gated_act(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def dense_act_fn(self) -> str:
        """Name of their activation; ``gated-gelu`` has always meant the approximate one."""
        return "gelu_new" if self.feed_forward_proj == "gated-gelu" else self.feed_forward_proj.removeprefix("gated-")


class T5Norm(RMSNorm):
    """The norm of T5, whose output has the type of its weights, since states may be wider."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(self.weight.dtype)


class WideLinear(nn.Linear):
    """A layer whose weights may be wider than its input."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype))


class T5Attention(Attention):
    """Attention that, called by itself, adds the biases by distance where it has their table, as the first layer has."""

    distances: Mapping[str, Any]

    def alone(self, x: Tensor, mask: Tensor | None, given: Mapping[str, Any]) -> Context:
        ctx, table = super().alone(x, mask, given), self._modules.get("relative_attention_bias")
        if ctx.position_bias is None and isinstance(table, nn.Embedding):
            ctx.position_bias = distance_bias(table, ctx, x, **self.distances)
        return ctx


class SelfAttentionStep(Step):
    """Self-attention of normed states, added to them: (B, T, D) -> (B, T, D), with the biases by distance, and the weights."""

    lends = {"dropout": "dropout"}
    follow = ("self_attn",)

    def forward(self, hidden_states: Tensor, attention_mask: Context | Tensor | None = None, **given: Any) -> tuple[Any, ...]:
        block, ctx = self.owner, attention_mask
        if not isinstance(ctx, Context):
            ctx = block.self_attn.alone(hidden_states, ctx, given)
        out, weights = block.self_attn(block.self_attn_norm(hidden_states), ctx)
        return ctx.keep(hidden_states) + block.dropout(out), ctx.position_bias, weights


class CrossAttentionStep(Step):
    """The same to the encoder's states (B, S, D)."""

    lends = {"dropout": "dropout"}
    follow = ("cross_attn",)

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Context | Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        **given: Any,
    ) -> tuple[Any, ...]:
        block, ctx = self.owner, key_value_states
        if not isinstance(ctx, Context):
            given |= {"encoder_hidden_states": ctx, "encoder_attention_mask": attention_mask}
            ctx = block.cross_attn.alone(hidden_states, None, given)
        out, weights = block.cross_attn(block.cross_attn_norm(hidden_states), ctx)
        return hidden_states + block.dropout(out), position_bias, weights


class FeedForwardStep(Step):
    """The feed-forward layer of normed states, added to them: (B, T, D) -> (B, T, D)."""

    lends = {"dropout": "dropout"}
    follow = ("mlp",)

    def forward(self, hidden_states: Tensor, ctx: Context | None = None) -> Tensor:
        block = self.owner
        added: Tensor = hidden_states + block.dropout(block.mlp(block.mlp_norm(hidden_states), ctx))
        return added


class T5Block(PreNorm):
    is_prepared = True  # distances are counted once for all layers

    def step_classes(self) -> Mapping[str, type[Step]]:
        crosses = () if self.cross_attn is None else (CrossAttentionStep,)
        return {f"layer.{place}": kind for place, kind in enumerate((SelfAttentionStep, *crosses, FeedForwardStep))}

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        if self.by_steps:
            attend, *cross, add = (self.step_at(path) for path in self.step_classes())
            for step in (attend, *(cross if ctx.encoder_states is not None else ())):
                x = clamp_half(step(x, ctx)[0])
            return clamp_half(self.add(add, x, ctx))
        x = clamp_half(x + self.dropout(self.self_attn(self.self_attn_norm(x), ctx)[0]))
        if self.cross_attn is not None and self.cross_attn_norm is not None and ctx.encoder_states is not None:
            x = clamp_half(x + self.dropout(self.cross_attn(self.cross_attn_norm(x), ctx)[0]))
        return clamp_half(x + self.dropout(self.mlp(self.mlp_norm(x), ctx)))

    def add(self, step: Any, x: Tensor, ctx: Context) -> Tensor:
        """The last step, where the block goes by steps: (B, T, D) -> (B, T, D)."""
        return step(x)


ATTENTION: Table = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}


def initialize(model: Model, module: nn.Module) -> None:
    """Fill one module's own parameters: normal, with a deviation by its kind and the size of its input.

    Queries are smaller still, since scores are not scaled.
    """
    c = model.config
    std: float = c.initializer_factor
    if isinstance(module, nn.Linear):
        asks = any(module is layer.q_proj for layer in model.modules() if isinstance(layer, Attention))
        std *= module.in_features**-0.5 * (c.d_kv**-0.5 if asks else 1.0)
    elif isinstance(module, nn.Embedding) and module.embedding_dim != c.d_model:
        std *= c.d_model**-0.5
    initialize_module(module, std)
    if isinstance(module, T5Norm):
        nn.init.constant_(module.weight, c.initializer_factor)


class T5Stack(Stack):
    config_class: ClassVar[type[DistanceConfig]] = T5Config
    block_class: ClassVar[type[T5Block]] = T5Block
    attention_class: ClassVar[type[T5Attention]] = T5Attention
    shares_bias: ClassVar[bool] = True  # whether all layers add the biases by distance of the first
    names = Names(wide=("mlp.down_proj",))

    def __init__(self, config: DistanceConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model)
        if self.shares_bias:
            self.distance_bias = self.make_bias()
        self.layers = nn.ModuleList(self.make_block() for _ in range(c.num_decoder_layers if self.causal else c.num_layers))
        self.norm, self.dropout = T5Norm(c.d_model, c.layer_norm_epsilon), nn.Dropout(c.dropout_rate)

    def make_block(self) -> T5Block:
        c, drop = self.config, self.config.dropout_rate
        attention = partial(self.attention_class, c.d_model, c.num_heads, head_dim=c.d_kv, bias=False, scale=1.0, dropout=drop)
        cross, norm = attention(cross=True) if self.causal else None, partial(T5Norm, c.d_model, c.layer_norm_epsilon)
        pattern = Pattern(causal=self.causal)
        block = self.block_class(attention(pattern=pattern), self.feed_forward(), norm, cross=cross, dropout=drop)
        block.self_attn.distances = self.distances
        if not self.shares_bias:
            block.self_attn.distance_bias = self.make_bias()
        return block

    def feed_forward(self) -> nn.Module:
        """Make the feed-forward layer of a block."""
        c, form = self.config, GatedMLP if self.config.is_gated_act else MLP
        mlp = form(c.d_model, c.d_ff, c.dense_act_fn, bias=False, chunk_size=c.chunk_size_feed_forward, dropout=c.dropout_rate)
        mlp.down_proj = WideLinear(c.d_ff, c.d_model, bias=False)
        return mlp

    def make_bias(self) -> nn.Embedding:
        return nn.Embedding(self.config.relative_attention_num_buckets, self.config.num_heads)

    @property
    def distances(self) -> dict[str, Any]:
        """How distances are counted."""
        c = self.config
        buckets, furthest = c.relative_attention_num_buckets, c.relative_attention_max_distance
        return {"buckets": buckets, "furthest": furthest, "causal": self.causal}

    @classmethod
    def block_keys(cls, c: Config) -> dict[str, Any]:
        """The names of a block, which numbers its sublayers and calls the feed-forward layer by its form."""
        block: dict[str, Any] = {"layer.0.SelfAttention": ("self_attn", ATTENTION), "layer.0.layer_norm": "self_attn_norm"}
        if issubclass(cls, DecoderStack):
            block |= {"layer.1.EncDecAttention": ("cross_attn", ATTENTION), "layer.1.layer_norm": "cross_attn_norm"}
        up = {"wi_0": "gate_proj", "wi_1": "up_proj"} if c.is_gated_act else {"wi": "up_proj"}
        last = f"layer.{len(block) // 2}"
        return block | {f"{last}.DenseReluDense": ("mlp", up | {"wo": "down_proj"}), f"{last}.layer_norm": "mlp_norm"}

    @classmethod
    def stack_keys(cls, c: Config) -> Table:
        return {
            "embed_tokens": "embed_tokens",
            "block.*": ("layers.*", cls.block_keys(c)),
            "block.0.layer.0.SelfAttention.relative_attention_bias": "distance_bias",
            "final_layer_norm": "norm",
        }

    @classmethod
    def names_of(cls, config: Config) -> Names:
        return super().names_of(config) | Names(cls.stack_keys(config))

    initialize_module = initialize

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if self.shares_bias:
            ctx.position_bias = distance_bias(self.distance_bias, ctx, x, **self.distances)
        return self.dropout(x)

    def finalize(self, x: Tensor) -> Tensor:
        return self.dropout(super().finalize(x))


class T5Encoder(T5Stack, EncoderStack):
    base_model_prefix = "encoder"


class T5Decoder(T5Stack, DecoderStack):
    base_model_prefix = "decoder"


_CROSS = {f"cross_attn_{name}": f"cross_attn.{name}_proj" for name in "qkvo"} | {"cross_attn_norm": "cross_attn_norm"}


def stack_files(bias: str, *, ours: str = "", causal: bool = False) -> dict[str, Any]:
    """What GGUF files call the parts of a stack, whose biases by distance are at ``bias``, below ``ours``."""
    stored = "dec" if causal else "enc"
    layer = {name.replace("attn_output", "attn_o"): part for name, part in LAYER.items()} | (_CROSS if causal else {})
    table: dict[str, Any] = {f"{stored}.blk.*": (f"{ours}layers.*", layer), f"{stored}.output_norm": f"{ours}norm"}
    return table | {"blk.*": None, "output_norm": None, f"{stored}.blk.{'*' if '*' in bias else 0}.attn_rel_b": ours + bias}


def encoder_files(bias: str) -> Layout:
    """The same of an encoder alone."""
    return Layout(whole=stack_files(bias) | {"token_embd": "shared"}, architecture="t5encoder")


def both_files(bias: str) -> Layout:
    """The same of an encoder and a decoder."""
    encoder, decoder = (stack_files(bias, ours=f"{name}.", causal=name == "decoder") for name in ("encoder", "decoder"))
    return Layout(whole=encoder | decoder)


class T5Model(Seq2SeqBackbone):
    config_class: ClassVar[type[DistanceConfig]] = T5Config
    encoder_class: ClassVar[type[Stack]] = T5Encoder
    decoder_class: ClassVar[type[Stack]] = T5Decoder
    base_model_prefix = "transformer"
    names = Seq2SeqBackbone.names | Names(ignore=("layer.1.EncDecAttention.relative_attention_bias",))
    gguf = both_files("distance_bias")
    question_layout = "question: {} context: {}"

    @classmethod
    def names_of(cls, config: Config) -> Names:
        """The stacks always share their embeddings; the config's setting is about the head."""
        return super().names_of(config) | Names(ties=SHARED_TABLES)

    initialize_module = initialize


class T5EncoderModel(T5Encoder):
    """The encoder of T5 as a model by itself; it reads the checkpoints of whole models too."""

    base_model_prefix = "transformer"
    gguf = encoder_files("distance_bias")
    head_dropouts = ("classifier_dropout",)
    reads = ("input_ids", "attention_mask", "inputs_embeds", "labels")
    names = Names(
        ties={"embed_tokens.weight": "shared.weight"},
        legacy={"encoder.embed_tokens": "shared"},
        ignore=("shared", "encoder.embed_tokens", "decoder", "lm_head", "classification_head", "qa_outputs"),
    )

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.config = config.with_settings(is_encoder_decoder=False, use_cache=False)
        self.shared = copy.deepcopy(self.embed_tokens)  # the same weights, once they are tied

    @classmethod
    def names_of(cls, config: Config) -> Names:
        names = super().names_of(config)
        return replace(names, table={"shared": "shared", "encoder": ("", cls.stack_keys(config))}, ties=cls.names.ties)

    def replace_embedding_table(self, table: nn.Module) -> None:
        self.shared = self.embed_tokens = table  # type: ignore[assignment]

    def vocabulary_layers(self) -> list[nn.Module]:
        return [self.shared, *super().vocabulary_layers()]


class ScaledGeneration(ForConditionalGeneration[Seq2SeqB]):
    """Conditional generation whose states are scaled before a head that is tied."""

    def score(self, hidden: Tensor) -> Tensor:
        return super().score(hidden * self.backbone.dim**-0.5 if self.config.scale_decoder_outputs else hidden)

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if module is self.lm_head:
            nn.init.normal_(self.lm_head.weight, std=self.config.initializer_factor)


class T5ForConditionalGeneration(ScaledGeneration[T5Model]):
    base_model_prefix = ""


class T5ForSequenceClassification(ForSequenceClassification[T5Model]): ...


class T5ForTokenClassification(ForTokenClassification[T5EncoderModel]): ...


class T5ForQuestionAnswering(ForQuestionAnswering[T5Model]):
    base_model_prefix = ""
