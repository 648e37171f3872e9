"""Settings of encoders of BERT's kind, and the layers that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from transept.config.fields import Deviation, Layers, Multiple, Share
from transept.config.model import Config
from transept.core.inputs import RecordOptions
from transept.core.model import Backbone
from transept.errors import UnsupportedError, refuse
from transept.layers import MLP, Attention, Block, Context, Pattern, PostNorm, standard_layers
from transept.layers.context import Attended, context_of_call
from transept.layers.links import Linked, Step
from transept.layers.mlp import apply_chunking_to_forward
from transept.outputs import BackboneOutput


class EncoderConfig(Config):
    """What these families have in common; each adds the settings of its own."""

    hidden_size: Annotated[int, Multiple("num_attention_heads")] = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-12


class LinearPooled(Backbone):
    """A backbone whose pooler is one linear layer, with tanh behind it."""

    def pooled_places(self, x: Tensor, ctx: Context) -> Tensor | None:
        return None if self.pooler is None else ctx.firsts(x)

    def end(self, x: Tensor, ctx: Context) -> Any:
        x = self.finalize(x)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(ctx.first(x)))
        return self.recorded(BackboneOutput(last_hidden_state=x, pooler_output=pooled, past_key_values=ctx.cache), x, ctx)


class WeightDropout(nn.Dropout):
    """The dropout of an attention layer's weights, which that layer applies: its share is the layer's."""

    def __init__(self, attention: Attention) -> None:
        nn.Module.__init__(self)
        self.__dict__["attention"] = attention  # which is no part of it
        self.inplace = False

    @property
    def p(self) -> float:
        share: float = self.__dict__["attention"].dropout
        return share

    @p.setter
    def p(self, share: float) -> None:
        self.__dict__["attention"].dropout = share


class GatherStep(Step):
    """What attention gathers, before its output projection: (B, T, D) -> (B, T, D), and its weights."""

    part: ClassVar[str] = "self_attn"
    follow = ("self_attn",)
    lends = {
        "num_attention_heads": "self_attn.heads",
        "attention_head_size": "self_attn.head_dim",
        "all_head_size": "self_attn.o_proj.in_features",
        "scaling": "self_attn.scale",
    }

    def __init__(self, owner: Linked) -> None:
        super().__init__(owner)
        self.dropout = WeightDropout(getattr(owner, self.part))

    def forward(self, hidden_states: Tensor, attention_mask: Context | Tensor | None = None, **given: Any) -> Attended:
        attention: Attention = getattr(self.owner, self.part)
        ctx = attention_mask if isinstance(attention_mask, Context) else attention.alone(hidden_states, attention_mask, given)
        return attention.gathered(hidden_states, ctx)


class AddAttentionStep(Step):
    """The output projection of what was gathered, its sum with the layer's input, and the norm: (B, T, D) -> (B, T, D)."""

    part: ClassVar[str] = "self_attn"
    lends = {"dropout": "dropout"}

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        projected = getattr(self.owner, self.part).o_proj(hidden_states)
        added: Tensor = getattr(self.owner, f"{self.part}_norm")(input_tensor + self.owner.dropout(projected))
        return added


class AttentionStep(Step):
    """Attention, its sum with the layer's input, and the norm: (B, T, D) -> (B, T, D), and its weights."""

    part: ClassVar[str] = "self_attn"
    follow = ("self_attn", "dropout")

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Context | Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        **given: Any,
    ) -> Attended:
        block, ctx = self.owner, attention_mask
        attention: Attention = getattr(block, self.part)
        if not isinstance(ctx, Context):
            given |= {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
            ctx = attention.alone(hidden_states, ctx, given)
        if (gather := self._modules.get("self")) is None:  # a family whose attention is one module
            out, weights = attention(hidden_states, ctx)
            return getattr(block, f"{self.part}_norm")(ctx.keep(hidden_states) + block.dropout(out)), weights
        out, *rest = gather(hidden_states, ctx)
        return self.output(out, ctx.keep(hidden_states)), rest[0] if rest else None


class CrossGatherStep(GatherStep):
    """The same of attention to an encoder's states."""

    part = "cross_attn"
    follow = ("cross_attn",)
    lends = {name: path.replace("self_attn", "cross_attn") for name, path in GatherStep.lends.items()}


class CrossAddAttentionStep(AddAttentionStep):
    """The same of attention to an encoder's states."""

    part = "cross_attn"


class CrossAttentionStep(AttentionStep):
    """The same of attention to an encoder's states."""

    part = "cross_attn"
    follow = ("cross_attn", "dropout")


class WidenStep(Step):
    """The first half of the feed-forward layer: (B, T, D) -> (B, T, hidden)."""

    lends = {"intermediate_act_fn": "mlp.act"}

    def forward(self, hidden_states: Tensor) -> Tensor:
        mlp = self.owner.mlp
        widened: Tensor = mlp.act(mlp.up_proj(hidden_states))
        return widened


class AddWidenedStep(Step):
    """The second half of the feed-forward layer, its sum with the input of the first, and the norm: -> (B, T, D)."""

    lends = {"dropout": "mlp_dropout"}
    follow = ("mlp",)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        block = self.owner
        narrowed = block.mlp.down_proj(block.mlp.dropout(hidden_states))
        added: Tensor = block.mlp_norm(input_tensor + block.mlp_dropout(narrowed))
        return added


_STEPS: dict[str, type[Step]] = {
    "attention": AttentionStep,
    "attention.self": GatherStep,
    "attention.output": AddAttentionStep,
    "crossattention": CrossAttentionStep,
    "crossattention.self": CrossGatherStep,
    "crossattention.output": CrossAddAttentionStep,
    "intermediate": WidenStep,
    "output": AddWidenedStep,
}


class EncoderBlock(PostNorm):
    """A post-norm block whose steps have places in the tree: attention, and both halves of the feed-forward layer."""

    def step_classes(self) -> Mapping[str, type[Step]]:
        return _STEPS

    def whole(self, x: Tensor, ctx: Context) -> Tensor:
        if not self.by_steps:
            return super().whole(x, ctx)
        what = "steps of a layer that processes share cannot have hooks or be replaced."
        refuse(self.is_split, what, "Use the layer, or its projections.", UnsupportedError)
        attend, cross, widen, add = map(self.step_at, ("attention", "crossattention", "intermediate", "output"))
        assert attend is not None and widen is not None and add is not None  # noqa: PT018
        x = attend(x, ctx)[0]
        if cross is not None and ctx.encoder_states is not None:
            x = cross(x, ctx)[0]
        return apply_chunking_to_forward(lambda part: add(widen(part), part), self.mlp.chunk_size, 1, x)  # type: ignore[arg-type]


class LayersStep(Step):
    """The layers of a network, without its embeddings: states (B, T, D) -> ``last_hidden_state`` (B, T, D)."""

    def forward(
        self,
        hidden_states: Tensor | None = None,
        attention_mask: Context | Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        **given: Any,
    ) -> Any:
        x: Any = inputs_embeds if hidden_states is None else hidden_states
        model: Backbone = self.owner
        if isinstance(attention_mask, Context):
            return BackboneOutput(last_hidden_state=model.run(x, attention_mask))
        asked = model.context(**{name: given.pop(name, None) for name in RecordOptions.__annotations__})
        given |= {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        ctx = context_of_call(asked.kernel, None, x, attention_mask, **given)
        for name in ("hidden_states", "attentions", "cross_attentions", "as_tuple"):
            setattr(ctx, name, getattr(asked, name))
        self.prepare(x, ctx)
        x = model.run(x, ctx)
        return model.recorded(BackboneOutput(last_hidden_state=x), x, ctx)

    def prepare(self, x: Tensor, ctx: Context) -> None:
        """Add what the layers read beside a mask, where the step is called by itself."""


class UnmaskedLayersStep(LayersStep):
    """The layers, which are causal only where the caller says so, or a mask does."""

    def forward(  # type: ignore[override]
        self, inputs_embeds: Tensor, attention_mask: Any = None, *, is_causal: bool = False, **given: Any
    ) -> Any:
        if attention_mask is None and not is_causal:
            attention_mask = inputs_embeds.new_ones(1, 1, *[inputs_embeds.shape[1]] * 2, dtype=torch.bool)
        return super().forward(inputs_embeds, attention_mask, **given)


def encoder_layers(
    c: EncoderConfig,
    kind: Callable[..., Block] = EncoderBlock,
    *,
    attention: Callable[..., Attention] = Attention,
    mlp: Callable[..., nn.Module] = MLP,
    qkv_bias: bool = True,
    out_bias: bool = True,
    causal: bool = False,
    cross: bool | int = False,
    count: int | None = None,
) -> nn.ModuleList:
    """All layers, or ``count``; ``cross`` adds attention to an encoder's states, of that size where it is a number."""
    attention = partial(
        attention,
        c.hidden_size,
        c.num_attention_heads,
        dropout=c.attention_probs_dropout_prob,
        bias=qkv_bias,
        out_bias=out_bias,
    )
    return standard_layers(
        c,
        partial(kind, dropout=c.hidden_dropout_prob),
        partial(attention, pattern=Pattern(causal=causal)),
        partial(mlp, c.hidden_size, c.intermediate_size, c.hidden_act),
        partial(nn.LayerNorm, c.hidden_size, c.layer_norm_eps),
        cross=partial(attention, cross=cross) if cross else None,
        count=count,
    )
