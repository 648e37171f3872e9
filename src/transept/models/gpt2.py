"""GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions; with ``add_cross_attention`` it reads an encoder too.

Checkpoints keep matrices transposed and query, key and value as one; the table of names undoes both.

Shapes: B batch, N choices, T positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from transept.checkpoint.names import Fused, Names, Table, Transposed
from transept.config import Config
from transept.core.text import CausalBackbone
from transept.errors import InputError
from transept.fields import Deviation, Layers, Multiple, Share
from transept.heads import classify, language, span
from transept.layers import Block, Context, PreNorm, adds_to_stream, pool, standard_block
from transept.layers.activation import activation
from transept.objectives.classification import cross_entropy
from transept.objectives.terms import Items, means
from transept.outputs import DoubleHeadsOutput


class GPT2Config(Config):
    """Settings of GPT-2; the defaults are those of its smallest checkpoint.

    ``scale_attn_weights`` divides scores by the root of the head size, ``scale_attn_by_inverse_layer_idx`` by the layer.
    ``reorder_and_upcast_attn`` has no effect: scores of half precision are always widened.
    """

    model_type = "gpt2"
    aliases = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    aliases |= {"max_position_embeddings": "n_positions"}

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: Annotated[int, Multiple("n_head")] = 768
    n_layer: Layers = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    resid_pdrop: Share = 0.1
    embd_pdrop: Share = 0.1
    attn_pdrop: Share = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: Deviation = 0.02
    summary_type: Literal["cls_index", "first", "last", "mean"] = "cls_index"
    summary_use_proj: bool = True
    summary_activation: str | None = None
    summary_proj_to_labels: bool = True
    summary_first_dropout: Share = 0.1
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    reorder_and_upcast_attn: bool = False
    add_cross_attention: bool = False
    classifier_dropout: Share | None = None
    bos_token_id: int | None = 50256
    eos_token_id: int | list[int] | None = 50256


GPT2_BLOCK: Table = {
    "ln_1": "self_attn_norm",
    "attn.c_attn": Fused(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), transposed=True),
    "attn.c_proj": Transposed("self_attn.o_proj"),
    "ln_cross_attn": "cross_attn_norm",
    "crossattention.q_attn": Transposed("cross_attn.q_proj"),
    "crossattention.c_attn": Fused(("cross_attn.k_proj", "cross_attn.v_proj"), transposed=True),
    "crossattention.c_proj": Transposed("cross_attn.o_proj"),
    "ln_2": "mlp_norm",
    "mlp.c_fc": Transposed("mlp.up_proj"),
    "mlp.c_proj": Transposed("mlp.down_proj"),
}


class GPT2Model(CausalBackbone):
    config_class = GPT2Config
    base_model_prefix = "transformer"
    pooling = "last"
    reads = (
        *("input_ids", "past_key_values", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
        *("encoder_hidden_states", "encoder_attention_mask", "labels", "use_cache"),
    )
    names = Names(
        {"wte": "embed_tokens", "wpe": "embed_positions", "h.*": ("layers.*", GPT2_BLOCK), "ln_f": "norm"},
        ignore=("attn.bias", "attn.masked_bias", "crossattention.bias", "crossattention.masked_bias"),
    )
    config: GPT2Config

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.n_embd)
        self.embed_positions = nn.Embedding(c.n_positions, c.n_embd)
        self.dropout = nn.Dropout(c.embd_pdrop)
        norm = partial(nn.LayerNorm, c.n_embd, c.layer_norm_epsilon)
        self.layers = nn.ModuleList(self.make_block(layer, norm) for layer in range(c.n_layer))
        self.norm = norm()

    def make_block(self, layer: int, norm: partial[nn.LayerNorm]) -> Block:
        c = self.config
        scale = 1 / math.sqrt(c.n_embd // c.n_head) if c.scale_attn_weights else 1.0
        scale = scale / (layer + 1) if c.scale_attn_by_inverse_layer_idx else scale
        inner, attention = 4 * c.n_embd if c.n_inner is None else c.n_inner, {"dropout": c.attn_pdrop, "scale": scale}
        options: Any = {"causal": True, "cross": c.add_cross_attention, "dropout": c.resid_pdrop}
        return standard_block(PreNorm, c, inner, c.activation_function, norm, attention=attention, **options)

    @property
    def head_dropout(self) -> float:
        return 0.1 if self.config.classifier_dropout is None else self.config.classifier_dropout

    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        if isinstance(module, nn.Linear) and adds_to_stream(module, self.layers):
            nn.init.normal_(module.weight, std=self.config.initializer_range / math.sqrt(2 * self.config.n_layer))

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        """Token types are rows of the vocabulary."""
        x = x + self.embed_positions(positions)
        return self.dropout(x if types is None else x + self.segments(types, x, self.embed_tokens))


class GPT2LMHeadModel(language.ForCausalLM[GPT2Model]): ...


class _DoubleHeads(language.LanguageTask[GPT2Model]):
    """The next token of each choice, and the best of N choices, as GPT was trained for question answering.

    The config says which state stands for a choice (``summary_type``: ``cls_index`` is the one at ``mc_token_ids``, else
    ``first``, ``last`` or ``mean``), which activation follows and which share is dropped.
    """

    names = Names({"lm_head": "lm_head", "multiple_choice_head.summary": "head.out_proj"}, ties=language.ForCausalLM.names.ties)
    make_head = language.ForCausalLM.make_head

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        for name in ("summary_use_proj", "summary_proj_to_labels"):
            if not getattr(config, name):
                config.fail(name, f"must be true for {type(self).__name__}, which needs one number per choice")
        self.head = classify.Classifier(self.model.dim, 1, dropout=config.summary_first_dropout)
        self.activate = activation(config.summary_activation or "linear")

    def summary(self, hidden: Tensor, places: Tensor | None) -> Tensor:
        """(B * N, T, D) -> (B * N, D), by ``summary_type``; padding counts as well, as it did in training."""
        if self.config.summary_type != "cls_index" or places is None:
            return pool.summary(hidden, self.config.summary_type)
        if places.numel() != hidden.shape[0]:
            raise InputError(f"`mc_token_ids` has the shape {tuple(places.shape)}, but there are {hidden.shape[0]} choices.")
        return hidden.take_along_dim(places.reshape(-1, 1, 1), dim=1).squeeze(1)

    def forward(
        self,
        *,
        mc_token_ids: Tensor | None = None,
        labels: Tensor | None = None,
        mc_labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> DoubleHeadsOutput:
        """Predict and choose; inputs are (B, N, T).

        Args:
            mc_token_ids: (B, N), the position of each choice's classification token; the last one when absent.
            labels: (B, N, T), the same tokens again: the shift by one happens here; -100 is ignored.
            mc_labels: (B), the index of the right choice.
            num_items_in_batch: items of the whole batch for each term, where this is a micro-batch.
            return_dict, inputs: as for every task.

        Returns:
            ``logits`` (B, N, T, V) and ``mc_logits`` (B, N), with a ``loss`` and an ``mc_loss`` of their own.
        """
        rows, choices = classify.choices_as_rows(inputs)
        if not choices:
            raise InputError(f"{type(self).__name__} needs `input_ids` of (batch, choices, positions).")
        states = self.encode(rows, labels)
        hidden = states.last_hidden_state
        logits, chosen = self.lm_head(hidden), self.activate(self.head(self.summary(hidden, mc_token_ids))).view(choices)
        terms = {}
        if labels is not None:
            terms["causal_lm"] = cross_entropy(logits, language.next_tokens(labels.flatten(0, len(choices) - 1), logits))
        if mc_labels is not None:
            terms["choice"] = cross_entropy(chosen, mc_labels)
        losses = means(terms, num_items_in_batch)
        if states.hidden_states is not None:  # as the reference has them: the last ones by choice, those before in rows
            states.hidden_states = (*states.hidden_states[:-1], hidden.unflatten(0, choices))
        output = DoubleHeadsOutput(logits=logits.unflatten(0, choices), mc_logits=chosen, loss_terms=terms or None)
        output.loss, output.mc_loss = losses.get("causal_lm"), losses.get("choice")
        return self.answer(output, states, None, None, return_dict)


class GPT2DoubleHeadsModel(_DoubleHeads): ...


class GPT2ForSequenceClassification(classify.ForLastTokenClassification[GPT2Model]): ...


class GPT2ForTokenClassification(classify.ForTokenClassification[GPT2Model]): ...


class GPT2ForQuestionAnswering(span.ForQuestionAnswering[GPT2Model]):
    omits = (*span.ForQuestionAnswering.omits, "past_key_values")
