"""XLNet (Yang et al. 2019): a language model that predicts tokens in any order, with the memories of Transformer-XL.

Two streams run through the same layers: states of tokens, and of targets, which know their place but not what stands there.
Shapes: B batch, T positions, M remembered positions, S = M + T keys, G targets, P distances, D hidden size, H heads, E size of
a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Deviation, Layers, Multiple, Share, Signed, derived
from transept.config.model import Config
from transept.core.inputs import check_by_position
from transept.errors import InputError, InputTypeError
from transept.heads import classify, span
from transept.heads.permutation import ForPermutationLM, Memories
from transept.heads.span import ForBeamQuestionAnswering
from transept.kinds.text import PackedOptions, TextBackbone
from transept.layers import MLP, Attention, PostNorm
from transept.layers.context import Attended, Context, Pattern, lower
from transept.layers.links import Linked, tensors
from transept.layers.tensors import check_tensors
from transept.objectives.classification import check_is_tensor
from transept.outputs import MemoryLogitsOutput, MemoryOutput, MemoryQuestionAnsweringOutput


class XLNetConfig(Config):
    """Settings of XLNet; the defaults are those of xlnet-large-cased.

    With ``attn_type="uni"`` a position sees only those before it, and with ``same_length`` each sees as many. ``mem_len``
    positions are remembered, of new ones ``reuse_len`` (all of them where it is 0 or absent). Distances are bounded by
    a positive ``clamp_len``. With ``bi_data`` the second half of a batch is of texts that run backwards.
    """

    model_type = "xlnet"
    aliases = {"n_token": "vocab_size", "hidden_size": "d_model"}
    aliases |= {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    keys_to_ignore_at_inference = ("mems",)

    vocab_size: int = 32000
    d_model: Annotated[int, Multiple("n_head")] = 1024
    n_layer: Layers = 24
    n_head: int = 16
    d_inner: int = 4096
    d_head: int = derived(lambda c: c.d_model // c.n_head)
    ff_activation: str = "gelu"
    attn_type: Literal["bi", "uni"] = "bi"
    initializer_range: Deviation = 0.02
    layer_norm_eps: float = 1e-12
    dropout: Share = 0.1
    mem_len: int | None = 512
    reuse_len: int | None = None
    use_mems_eval: bool = True
    use_mems_train: bool = False
    bi_data: bool = False
    clamp_len: Signed = -1
    same_length: bool = False
    summary_type: Literal["last", "first", "mean", "cls_index"] = "last"
    summary_use_proj: bool = True
    summary_activation: str | None = "tanh"
    summary_last_dropout: Share = 0.1
    start_n_top: int = 5
    end_n_top: int = 5
    pad_token_id: int | None = 5
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def validate(self) -> None:
        super().validate()
        if self.d_head != self.d_model // self.n_head:
            self.fail("d_head", f"must be `d_model` / `n_head` ({self.d_model // self.n_head})")
        if self.d_model % 2:
            self.fail("d_model", "must be even")

    @property
    def max_position_embeddings(self) -> int:
        return -1


@dataclass(eq=False)
class Relative:
    """What the layers of one forward pass share.

    ``positions`` is T, behind which the states of targets stand; ``waves`` (1 or B, P, D) stand for the distances from S down;
    ``apart`` (B, 1, T or 2 T, S) is true where two tokens are of different segments; ``memories`` are (M, B, D), one a layer;
    ``targets`` (B, G, T) says which places the targets are at. Where there are targets, ``full_mask`` (1 or B, 1, T or 2 T, S)
    and ``apart`` have the rows of all places twice: first those of tokens, then those of targets.
    """

    positions: int
    waves: Tensor
    apart: Tensor | None = None
    memories: Sequence[Tensor] = ()
    targets: Tensor | None = None


def relative_waves(distances: Tensor, dim: int) -> Tensor:
    """(..., P) distances -> (..., P, D): sines, then cosines, in float32 as checkpoints were trained."""
    frequencies = 1 / torch.pow(10000, torch.arange(0, dim, 2, device=distances.device).float() / dim)
    angles = distances.float()[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def by_key(scores: Tensor, keys: int) -> Tensor:
    """Scores (..., T, P) by distance, from S down -> (..., T, S) by key: the query i is at M + i."""
    *rows, queries, distances = scores.shape
    # Row i begins i later than the one before it once the first T numbers are dropped and rows are one shorter.
    return scores.flatten(-2)[..., queries:].reshape(*rows, queries, distances - 1)[..., :keys]


class ByHead(Linked):
    """A projection whose weight is (D, H, E): of states to heads, or back where it ``joins`` them."""

    def __init__(self, dim: int, heads: int, size: int, *, joins: bool = False) -> None:
        super().__init__()
        self.weight, self.joins = nn.Parameter(torch.empty(dim, heads, size)), joins

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., H * E), or the other way."""
        weight = self.weight.flatten(1)
        return F.linear(x, weight if self.joins else weight.t())


class RelativeAttention(Attention):
    """Attention with scores by content, distance and segment; each has a bias of its own for the queries."""

    is_prepared = True

    heads_apart = False  # their biases are in tensors of all heads

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(dim, heads, bias=False, dropout=dropout)
        self.o_proj = ByHead(dim, heads, self.head_dim, joins=True)
        empty = (nn.Parameter(torch.empty(heads, self.head_dim)) for _ in range(3))
        self.content_bias, self.distance_bias, self.segment_bias = empty
        self.segments = nn.Parameter(torch.empty(2, heads, self.head_dim))

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        made = (ByHead(dim, self.heads, self.head_dim) for _ in range(4))
        self.q_proj, self.k_proj, self.v_proj, self.r_proj = made

    def whole(self, x: Tensor, ctx: Context[Relative]) -> Attended:
        """(B, T + G, D) -> (B, T + G, D) and weights; keys are the memories and the first T states."""
        own, length = ctx.own, ctx.own.positions
        states = x[:, :length]
        if own.memories:
            states = torch.cat([own.memories[ctx.layer].transpose(0, 1).to(x.dtype), states], dim=1)
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(states)), self.split(self.v_proj(states))
        if (targets := own.targets) is not None:  # from targets to their places, and back
            q = torch.cat([q[:, :, :length], targets.mT[:, None] @ q[:, :, length:]], dim=2)
        bias = self.relations(q, k.shape[2], own)
        if ctx.full_mask is not None:
            # Half of the smallest number, since scores are still to be added.
            bias = bias.masked_fill(~ctx.full_mask, torch.finfo(bias.dtype).min / 2)
        out, weights = self.attend(q + self.content_bias[:, None], k, v, bias, False, ctx)
        if ctx.attentions is not None and weights is not None:
            ctx.attentions.append(weights if targets is None else weights.chunk(2, dim=2))  # type: ignore[arg-type]
        if targets is not None:
            out = torch.cat([out[:, :, :length], targets[:, None] @ out[:, :, length:]], dim=2)
        return self.o_proj(out.transpose(1, 2).flatten(2)), weights

    def relations(self, q: Tensor, keys: int, own: Relative) -> Tensor:
        """What distances and segments add to the scores of queries (B, H, T or 2 T, E): (B, H, T or 2 T, S)."""
        by_distance = (q + self.distance_bias[:, None]) @ self.split(self.r_proj(own.waves)).mT
        streams = by_distance.reshape(*q.shape[:2], -1, own.positions, by_distance.shape[-1])
        scores = by_key(streams, keys).flatten(2, 3)
        if own.apart is not None:
            by_segment = (q + self.segment_bias[:, None]) @ self.segments.permute(1, 2, 0)
            scores = scores + torch.where(own.apart, by_segment[..., 1:], by_segment[..., :1])
        return scores / math.sqrt(self.head_dim)


_ATTENTION = {part: f"{part}_proj.weight" for part in "qkvor"}
_ATTENTION |= {"r_r_bias": "distance_bias", "r_s_bias": "segment_bias", "r_w_bias": "content_bias", "seg_embed": "segments"}
XLNET_BLOCK: Table = {
    "rel_attn": ("self_attn", _ATTENTION),
    "rel_attn.layer_norm": "self_attn_norm",
    "ff": ("", {"layer_norm": "mlp_norm", "layer_1": "mlp.up_proj", "layer_2": "mlp.down_proj"}),
}


class XLNetModel(TextBackbone):
    config_class = XLNetConfig
    base_model_prefix = "transformer"
    keeps, ragged = (Memories,), False
    reads = (
        *("input_ids", "attention_mask", "mems", "perm_mask", "target_mapping", "token_type_ids", "input_mask"),
        *("inputs_embeds", "labels", "use_mems"),
    )
    names = Names({"mask_emb": "mask_embed", "word_embedding": "embed_tokens", "layer.*": ("layers.*", XLNET_BLOCK)})

    @property
    def rows_apart(self) -> bool:
        return False

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model)
        self.mask_embed = nn.Parameter(torch.empty(1, 1, c.d_model))
        self.layers = nn.ModuleList(self.make_block() for _ in range(c.n_layer))
        self.dropout = nn.Dropout(c.dropout)

    def make_block(self) -> PostNorm:
        c, chunk = self.config, self.config.chunk_size_feed_forward
        attention = RelativeAttention(c.d_model, c.n_head, dropout=c.dropout)
        mlp = MLP(c.d_model, c.d_inner, c.ff_activation, chunk_size=chunk, dropout=c.dropout)
        return PostNorm(attention, mlp, partial(nn.LayerNorm, c.d_model, c.layer_norm_eps), dropout=c.dropout)

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if module is self or isinstance(module, RelativeAttention | ByHead):
            for tensor in tensors(module).values():
                nn.init.normal_(tensor, std=self.config.initializer_range)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        mems: Sequence[Tensor] | None = None,
        perm_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        input_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_mems: bool | None = None,
        **options: Unpack[PackedOptions],
    ) -> MemoryOutput:
        """Encode (B, T) ids, or (B, T, D) embeddings, into (B, T, D) states, or those of (B, G, D) targets.

        Args:
            input_ids, inputs_embeds: (B, T), or (B, T, D).
            attention_mask: (B, T), or with memories (B, S), 1 for real tokens.
            mems: (M, B, D) for each layer, from an earlier call.
            perm_mask: (B, T, T), 1 where position i may not look at position j.
            target_mapping: (B, G, T), 1 where target i is at position j.
            token_type_ids: (B, T) numbers of segments, of which only equality counts; memories are of segment 0.
            input_mask: ``attention_mask`` the other way round, 1 for padding.
            use_mems: return memories; by ``use_mems_eval`` or ``use_mems_train`` when absent. ``use_cache`` has no effect.
            options: see :class:`transept.kinds.text.PackedOptions`.
        """
        if options.get("past_key_values") is not None:
            raise InputError("XLNet keeps no keys and values.", hint="Pass what an earlier call returned as `mems`.")
        given: dict[str, Any] = {"input_ids": input_ids, "token_type_ids": token_type_ids, **options}
        given |= {"inputs_embeds": inputs_embeds, "mems": mems, "perm_mask": perm_mask, "target_mapping": target_mapping}
        if not torch.compiler.is_compiling():
            check_tensors(given | {"attention_mask": attention_mask, "input_mask": input_mask}, self)
        given["attention_mask"] = mask = _one_mask(attention_mask, input_mask)
        past = self._past(mems)
        if (packing := self.find_packing(given)) is not None:
            return self.forward_packed(packing, given, self.forward)
        new, remembered = input_ids if inputs_embeds is None else inputs_embeds, None
        if isinstance(mask, Tensor) and isinstance(new, Tensor) and past and mask.shape[1:] == (past + new.shape[1],):
            remembered, mask = mask[:, :past], mask[:, past:]
        ctx = self.start(input_ids, inputs_embeds, mask, **options | {"use_cache": False})
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if mems and mems[0].shape[1] != x.shape[0]:
            raise InputError(f"`mems` are of {mems[0].shape[1]} rows, but the inputs are a batch of {x.shape[0]}.")
        own = ctx.own = Relative(x.shape[1], self._waves(x, past), memories=mems or ())
        if (allowed := self._allowed(ctx, x, past, remembered, perm_mask)) is not None:
            ctx.full_mask = allowed | F.pad(torch.eye(x.shape[1], dtype=torch.bool, device=x.device), (past, 0))
        if token_type_ids is not None:
            check_by_position("token_type_ids", token_type_ids, x)
            own.apart = (token_type_ids[:, :, None] != F.pad(token_type_ids, (past, 0))[:, None, :])[:, None]
        if target_mapping is not None:
            _check_pairs("target_mapping", target_mapping, (x.shape[0], None, x.shape[1]))
            own.targets = target_mapping.to(x.dtype)
            if allowed is not None and ctx.full_mask is not None:
                ctx.full_mask = torch.cat([ctx.full_mask, allowed.expand_as(ctx.full_mask)], dim=2)
            own.apart = None if own.apart is None else torch.cat([own.apart, own.apart], dim=2)
            x = torch.cat([x, self.mask_embed.expand(x.shape[0], target_mapping.shape[1], -1)], dim=1)
        return self._read(self.dropout(x), ctx, use_mems)

    def _past(self, mems: Any) -> int:
        """M, the positions that are remembered."""
        mems = () if mems is None else mems
        if not isinstance(mems, list | tuple) or not all(isinstance(memory, Tensor) for memory in mems):
            raise InputTypeError("`mems` must be a list of tensors.", hint="Pass what an earlier call returned.")
        if not (shapes := [tuple(memory.shape) for memory in mems]):
            return 0
        if len(shapes[0]) != 3 or shapes != [(*shapes[0][:2], self.dim)] * len(self.layers):
            raise InputError(
                f"`mems` has the shapes {shapes[:3]}, but must be (positions, batch, {self.dim}) in {len(self.layers)} layers.",
                hint="Memories belong to one model and one batch.",
            )
        return int(shapes[0][0])

    def _waves(self, x: Tensor, past: int) -> Tensor:
        """(1 or B, P, D): waves for all distances, from that of the last position to the first key down."""
        c, (rows, length) = self.config, x.shape[:2]
        if c.bi_data and rows % 2:
            raise InputError(f"with `bi_data`, half of a batch runs backwards, but it has {rows} rows.")
        distances = torch.arange(past + length, -length if c.attn_type == "bi" else -1, -1, device=x.device)[None]
        if c.clamp_len > 0:
            distances = distances.clamp(-c.clamp_len, c.clamp_len)
        if c.bi_data:
            distances = torch.cat([distances, -distances]).repeat_interleave(rows // 2, dim=0)
        waves = relative_waves(distances, c.d_model).to(x.dtype)
        return self.dropout(waves.expand(rows, -1, -1) if self.training else waves)

    def _allowed(
        self, ctx: Context, x: Tensor, past: int, remembered: Tensor | None, perm_mask: Tensor | None
    ) -> Tensor | None:
        """(1 or B, 1, 1 or T, S) of bool: what each position may look at."""
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions).", hint="Pass `perm_mask` for pairs of positions.")
        rows, length = x.shape[:2]
        padding = ctx.padding
        if past and (padding is not None or remembered is not None):
            parts = [(past, remembered), (length, padding)]
            padding = torch.cat([x.new_ones(rows, n) != 0 if part is None else part != 0 for n, part in parts], dim=1)
        uni = self.config.attn_type == "uni"
        pattern = Pattern(causal=uni, window=past + 1 if uni and self.config.same_length else None)
        allowed = lower(pattern, padding, length, past + length, x.device)
        if perm_mask is None:
            return allowed
        _check_pairs("perm_mask", perm_mask, (rows, length, length))
        seen = F.pad(perm_mask <= 0, (past, 0), value=True)[:, None]
        return seen if allowed is None else allowed & seen

    def _read(self, x: Tensor, ctx: Context[Relative], use_mems: bool | None) -> MemoryOutput:
        """Pass (B, T + G, D) through the layers; what goes into them is what they remember."""
        c, shown, length = self.config, ctx.hidden_states is not None, ctx.own.positions
        if use_mems is None:
            use_mems = c.use_mems_train if self.training else c.use_mems_eval
        ctx.hidden_states = [] if shown or use_mems else None
        x = self.run(x, ctx)
        states, last = ctx.hidden_states or [], x if ctx.own.targets is None else x[:, length:]
        mems = None
        if use_mems:
            old = ctx.own.memories or [state.new_empty((0, *state.shape[::2])) for state in states]
            new = [state[:, :length].transpose(0, 1)[: c.reuse_len or None] for state in states]
            mems = tuple(torch.cat(pair)[-(c.mem_len or 0) :].detach() for pair in zip(old, new, strict=True))
        if shown and ctx.own.targets is not None:
            states = [part for state in (*states, x) for part in state.tensor_split([length], dim=1)][:-1]
        ctx.hidden_states = states if shown else None
        return self.recorded(MemoryOutput(last_hidden_state=self.dropout(last), mems=mems), last, ctx)


def _one_mask(attention_mask: Tensor | None, input_mask: Tensor | None) -> Tensor | None:
    if input_mask is None:
        return attention_mask
    if attention_mask is not None:
        raise InputError("pass either `attention_mask` (1 for real tokens) or `input_mask` (1 for padding), one of the two.")
    check_is_tensor(input_mask, "input_mask")
    return input_mask == 0


def _check_pairs(name: str, given: Any, shape: tuple[int | None, ...]) -> None:
    """Refuse what is no tensor of that shape, of which ``None`` is any number."""
    check_is_tensor(given, name)
    if len(given.shape) != len(shape) or any(want not in (None, size) for size, want in zip(given.shape, shape, strict=True)):
        wanted = ", ".join("targets" if size is None else str(size) for size in shape)
        raise InputError(f"`{name}` has the shape {tuple(given.shape)}, but must be ({wanted}).")


class XLNetLMHeadModel(ForPermutationLM[XLNetModel]):
    names = Names({"lm_loss": "lm_head"}, ties=ForPermutationLM.names.ties)
    output_class = MemoryLogitsOutput


class XLNetForSequenceClassification(classify.SummaryTask[XLNetModel], classify.ForSequenceClassification[XLNetModel]):
    names = Names({"sequence_summary.summary": "head.dense", "logits_proj": "head.out_proj"})
    output_class = MemoryLogitsOutput


class XLNetForMultipleChoice(classify.SummaryTask[XLNetModel], classify.ForMultipleChoice[XLNetModel]):
    reads = (
        *("input_ids", "token_type_ids", "input_mask", "attention_mask", "mems", "perm_mask", "target_mapping"),
        *("inputs_embeds", "labels", "use_mems"),
    )
    names = Names({"sequence_summary.summary": "head.dense", "logits_proj": "head.out_proj"})
    output_class = MemoryLogitsOutput


class XLNetForTokenClassification(classify.ForTokenClassification[XLNetModel]):
    output_class = MemoryLogitsOutput


class XLNetForQuestionAnsweringSimple(span.ForQuestionAnswering[XLNetModel]):
    output_class = MemoryQuestionAnsweringOutput


class XLNetForQuestionAnswering(ForBeamQuestionAnswering[XLNetModel]): ...
