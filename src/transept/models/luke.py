"""LUKE (Yamada et al. 2020): RoBERTa that reads entities beside words, with queries of their own for both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.inputs import INTEGERS, check_range, check_tensor
from transept.core.task import TaskModel
from transept.errors import InputError
from transept.heads import classify, language, span
from transept.heads.classify import HeadedTask
from transept.kinds.encoder import encoder_layers
from transept.kinds.text import Options
from transept.layers import Attention, Context, PostNorm
from transept.layers.context import Attended
from transept.models.bert import BERT_BLOCK, BERT_EMBEDDINGS, BertEmbeddings, BertModel
from transept.models.roberta import RobertaConfig, RobertaEmbeddings, RobertaModel
from transept.objectives.classification import Unscored, count_sequences, counted, cross_entropy, sequence_classification
from transept.objectives.terms import LossTerm
from transept.outputs import BackboneOutput, ModelOutput


class LukeConfig(RobertaConfig):
    """Settings of LUKE. Entities are of ``entity_vocab_size`` kinds, with embeddings of ``entity_emb_size``.

    With ``use_entity_aware_attention``, words and entities have queries of their own for words and for entities.
    """

    model_type = "luke"

    vocab_size: int = 50267
    entity_vocab_size: int = 500000
    entity_emb_size: int = 256
    use_entity_aware_attention: bool = True


class EntityOutput(BackboneOutput):
    """States of words, and of entities: ``entity_last_hidden_state`` (B, N, D), ``entity_hidden_states`` for each layer."""

    entity_last_hidden_state: Tensor | None = None
    entity_hidden_states: tuple[Tensor, ...] | None = None


class EntityLogitsOutput(ModelOutput):
    """Logits, and what layers made of words and of entities."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    entity_hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class EntityAnswersOutput(ModelOutput):
    """Start and end logits (B, T), and what layers made of words and of entities."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    entity_hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class MaskedEntitiesOutput(ModelOutput):
    """Logits over words (B, T, V) and entities (B, N, E), and the losses of both apart."""

    loss: Tensor | None = None
    mlm_loss: Tensor | None = None
    mep_loss: Tensor | None = None
    logits: Tensor | None = None
    entity_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    entity_hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    loss_terms: dict[str, LossTerm] | None = None


class EntityAwareAttention(Attention):
    """Attention with four kinds of queries: of words or entities, for words or entities. The context's ``own`` counts words."""

    def make_projections(self, dim: int, queries: int, keys: int, bias: bool) -> None:
        super().make_projections(dim, queries, keys, bias)
        self.w2e_proj, self.e2w_proj, self.e2e_proj = (self.linear(dim, queries, bias) for _ in range(3))

    def gathered(self, x: Tensor, ctx: Context[int | None]) -> Attended:
        if (count := ctx.own) is None:
            return super().gathered(x, ctx)
        words, entities = x[:, :count], x[:, count:]
        # Queries and keys have a half for words and one for entities: a key's other half is zeros.
        halves = ((self.q_proj, self.e2w_proj), (self.w2e_proj, self.e2e_proj))
        q = torch.cat(
            [torch.cat([self.split(one(words)), self.split(other(entities))], dim=2) for one, other in halves], dim=-1
        )
        k, v = self.split(self.k_proj(x)), self.split(self.v_proj(x))
        of_words = (torch.arange(x.shape[1], device=x.device) < count)[:, None]
        k = torch.cat([k.masked_fill(~of_words, 0.0), k.masked_fill(of_words, 0.0)], dim=-1)
        k, v, mask, causal = self.self_keys(q, k, v, ctx)
        out, weights = self.attend(q, k, v, mask, causal, ctx)
        if ctx.attentions is not None and weights is not None:
            ctx.attentions.append(weights)
        return ctx.keep(out.transpose(1, 2).flatten(2)), weights


class LukeEmbeddings(RobertaEmbeddings):
    """RoBERTa's, in BERT's order."""

    def __init__(self, config: Any) -> None:
        BertEmbeddings.__init__(self, config)


class EntityEmbeddings(nn.Module):
    """The embeddings of entities (B, N), with the mean of those of the positions (B, N, M) of their words: -> (B, N, D)."""

    def __init__(self, c: LukeConfig) -> None:
        super().__init__()
        self.entity_embeddings = nn.Embedding(c.entity_vocab_size, c.entity_emb_size, padding_idx=0)
        if c.entity_emb_size != c.hidden_size:
            self.entity_embedding_dense: nn.Module = nn.Linear(c.entity_emb_size, c.hidden_size, bias=False)
        else:
            self.entity_embedding_dense = nn.Identity()
        self.position_embeddings = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.LayerNorm, self.dropout = nn.LayerNorm(c.hidden_size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)

    def forward(self, entity_ids: Tensor, position_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        x: Tensor = self.entity_embedding_dense(self.entity_embeddings(entity_ids))
        there = (position_ids != -1)[..., None].to(x.dtype)
        places = (self.position_embeddings(position_ids.clamp(min=0)) * there).sum(dim=-2) / there.sum(dim=-2).clamp(min=1e-7)
        types = self.token_type_embeddings
        return self.dropout(self.LayerNorm(x + places + (types.weight[0] if token_type_ids is None else types(token_type_ids))))


LUKE_BLOCK: Table = {
    **{name: own for name, own in BERT_BLOCK.items() if not name.startswith("cross")},
    **{f"attention.self.{name}_query": f"self_attn.{name}_proj" for name in ("w2e", "e2w", "e2e")},
}


class LukeModel(RobertaModel):
    """LUKE without a head.

    ``entity_ids`` (B, N) are entities with the positions of their words, ``entity_position_ids`` (B, N, M), which are -1 where
    an entity has fewer than M; ``entity_attention_mask`` and ``entity_token_type_ids`` are (B, N).
    """

    config_class = LukeConfig
    base_model_prefix, pooling = "luke", "pooler"
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "token_type_ids", "position_ids", "entity_ids", "entity_attention_mask"),
        *("entity_token_type_ids", "entity_position_ids", "inputs_embeds", "labels"),
    )
    embeddings_class = LukeEmbeddings
    names = replace(
        BertModel.names,
        table={
            "embeddings": ("", BERT_EMBEDDINGS),
            "entity_embeddings": "entity_embeddings",
            "encoder.layer.*": ("layers.*", LUKE_BLOCK),
            "pooler": "pooler",
        },
    )
    config: LukeConfig

    def __init__(self, config: LukeConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)
        self.entity_embeddings = EntityEmbeddings(config)

    def step_classes(self) -> dict[str, Any]:
        return {}

    def make_layers(self, config: Any) -> nn.ModuleList:
        attention = EntityAwareAttention if config.use_entity_aware_attention else Attention
        return encoder_layers(config, PostNorm, attention=attention)

    def get_entity_embeddings(self) -> nn.Embedding:
        return self.entity_embeddings.entity_embeddings

    def set_entity_embeddings(self, value: nn.Embedding) -> None:
        self.entity_embeddings.entity_embeddings = value

    def find_padding(self, inputs: dict[str, Any]) -> Any:
        return None if inputs.get("entity_ids") is not None else super().find_padding(inputs)

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        entity_ids: Tensor | None = None,
        entity_attention_mask: Tensor | None = None,
        entity_token_type_ids: Tensor | None = None,
        entity_position_ids: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context[int | None]]:
        x, ctx = super().begin(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **options)
        if entity_ids is None:
            return x, ctx
        if ctx.rows is not None or ctx.texts is not None or ctx.full_mask is not None:
            hint = "Pass one text in each row, with an `attention_mask` (batch, positions)."
            raise InputError("`entity_ids` are for rows of one text, and masks of real tokens.", hint=hint)
        self.check_entities(entity_ids, entity_position_ids, len(x))
        words, entities = x.shape[1], self.entity_embeddings(entity_ids, entity_position_ids, entity_token_type_ids)
        if ctx.padding is not None or entity_attention_mask is not None:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.padding is None else ctx.padding
            there = torch.ones_like(entity_ids) if entity_attention_mask is None else entity_attention_mask
            ctx.padding = torch.cat([real, there.to(x.device) != 0], dim=1)
        ctx.own, ctx.queries = words, words + entities.shape[1]
        ctx.keys = ctx.queries
        return torch.cat([x, entities], dim=1), ctx

    def check_entities(self, ids: Tensor, places: Any, rows: int) -> None:
        """Require entities that there are, with their positions (``InputError``)."""
        check_tensor("entity_ids", ids, INTEGERS, "(batch, entities)")
        check_tensor("entity_position_ids", places, INTEGERS, "(batch, entities, positions)")
        if ids.shape[0] != rows or places.shape[:2] != ids.shape:
            shapes = f"{tuple(ids.shape)} and {tuple(places.shape)}"
            raise InputError(f"`entity_ids` and `entity_position_ids` have the shapes {shapes}, for {rows} rows.")
        hint = "They come from this model's tokenizer."
        check_range("entity_ids", ids, self.config.entity_vocab_size, "the model has the entities 0 to", hint)
        most = self.config.max_position_embeddings
        check_range("entity_position_ids", places.clamp(min=0), most, "the model has the positions 0 to", hint)

    def pooled_places(self, x: Tensor, ctx: Context[int | None]) -> Tensor | None:
        return None if ctx.own is not None else super().pooled_places(x, ctx)

    def end(self, x: Tensor, ctx: Context[int | None]) -> Any:
        pooled = None if self.pooler is None else self.pooler(ctx.to_pool(x))
        if (count := ctx.own) is None:
            return self.recorded(EntityOutput(last_hidden_state=x, pooler_output=pooled), x, ctx)
        output = EntityOutput(last_hidden_state=x[:, :count], pooler_output=pooled, entity_last_hidden_state=x[:, count:])
        if ctx.hidden_states is not None:
            output["entity_hidden_states"] = tuple(states[:, count:] for states in (*ctx.hidden_states, x))
            ctx.hidden_states = [states[:, :count] for states in ctx.hidden_states]
        return self.recorded(output, x[:, :count], ctx)


class _Pooled(TaskModel[LukeModel]):
    reads_pooler = True  # it is there in all checkpoints


_WORDS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_ENTITIES = ("entity_ids", "entity_attention_mask", "entity_token_type_ids", "entity_position_ids")


class LukeForMaskedLM(_Pooled, language.ForMaskedLM[LukeModel]):
    """The word or entity behind each mask: ``labels`` (B, T), ``entity_labels`` (B, N) or both, of which -100 is ignored."""

    takes = ("entity_labels",)
    reads = (*_WORDS, *_ENTITIES, "labels", "entity_labels", "inputs_embeds")
    output_class = MaskedEntitiesOutput
    names = Names(
        {
            "lm_head": ("lm_head", {"bias": "bias", "dense": "dense", "layer_norm": "norm", "decoder": "decoder"}),
            "entity_predictions": (
                "entity_head",
                {"bias": "bias", "transform.dense": "dense", "transform.LayerNorm": "norm", "decoder": "decoder"},
            ),
        },
        ties={
            "entity_head.decoder.weight": "backbone.entity_embeddings.entity_embeddings.weight",
            "lm_head.bias": "lm_head.decoder.bias",
        },
    )

    def __init__(self, config: LukeConfig) -> None:
        super().__init__(config)
        c = config
        options: dict[str, Any] = {"act": c.hidden_act, "eps": c.layer_norm_eps}
        self.entity_head = language.BiasedHead(c.hidden_size, c.entity_emb_size, c.entity_vocab_size, **options)

    def make_head(self, config: Config) -> nn.Module:
        dim = self.backbone.dim
        return language.VocabularyHead(dim, dim, config.vocab_size, act="gelu", eps=config.layer_norm_eps, bias=True)

    def vocabulary_layers(self) -> list[nn.Module]:
        return [*super().vocabulary_layers(), self.lm_head]

    def has_labels(self, labels: list[Any], inputs: dict[str, Any]) -> bool:
        return labels[0] is not None or inputs.get("entity_labels") is not None

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        return super().encode({name: value for name, value in inputs.items() if name not in self.takes}, labels)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        output, entities = super().predict(states, inputs), states.entity_last_hidden_state
        output["entity_logits"] = None if entities is None else self.entity_head(entities)
        return output

    def unscored(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        output, entities = super().unscored(states, inputs), states.entity_last_hidden_state
        output["entity_logits"] = None if entities is None else Unscored(self.entity_head, entities)
        return output

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        terms, of_entities = {}, inputs.get("entity_labels")
        if labels[0] is not None:
            output["mlm_loss"] = (term := cross_entropy(output.logits, labels[0])).mean
            terms["masked_lm"] = term
        if of_entities is not None and output.entity_logits is not None:
            output["mep_loss"] = (term := cross_entropy(output.entity_logits, of_entities)).mean
            terms["masked_entities"] = term
        return terms

    def all_counts(self, labels: list[Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
        given = {"masked_lm": labels[0], "masked_entities": inputs.get("entity_labels")}
        return {name: counted(each) for name, each in given.items() if each is not None}


class _EntityTask(_Pooled, HeadedTask[LukeModel]):
    """A task on ``width`` states side by side, for which there must be ``least`` entities.

    ``labels`` are integers, or as many numbers as logits where several classes may fit.
    """

    output_class = EntityLogitsOutput
    width: ClassVar[int] = 1
    least: ClassVar[int] = 1
    head_dropouts = ("hidden_dropout_prob",)

    def make_head(self, config: Config) -> nn.Module:
        dropout = self.backbone.head_dropout(self.head_dropouts)
        return classify.Classifier(self.backbone.dim * self.width, self.classes, bias=self.bias, dropout=dropout)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        entities = states.entity_last_hidden_state
        if entities is None or entities.shape[1] < self.least:
            raise InputError(f"{type(self).__name__} needs `entity_ids`.", hint="The tokenizer gives them for `entity_spans`.")
        return self.output_class(logits=self.head(self.chosen(entities, states, inputs)))

    def chosen(self, entities: Tensor, states: Any, inputs: dict[str, Any]) -> Tensor:
        """What is classified, of the states (B, N, D) of entities: the first ones side by side."""
        return entities[:, : self.width].flatten(1)

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"classification": sequence_classification(logits, labels, self.kind(labels))}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"classification": count_sequences(labels, self.classes, self.kind(labels))}

    def kind(self, labels: Tensor) -> str:
        several = labels.ndim > (2 if self.width == 3 else 1)
        return "multi_label_classification" if several else "single_label_classification"


class LukeForEntityClassification(_EntityTask, HeadedTask[LukeModel]):
    """The class of the first entity: ``logits`` (B, C)."""


class LukeForEntityPairClassification(_EntityTask, HeadedTask[LukeModel]):
    """How the first two entities are related: ``logits`` (B, C)."""

    width, least, bias = 2, 2, False


class LukeForEntitySpanClassification(_EntityTask, HeadedTask[LukeModel]):
    """The class of each entity, between the words at two positions (B, N) each: ``logits`` (B, N, C)."""

    width, least = 3, 0
    takes = ("entity_start_positions", "entity_end_positions")
    reads = (*_WORDS, *_ENTITIES, *takes, "inputs_embeds", "labels")

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        return super().encode({name: value for name, value in inputs.items() if name not in self.takes}, labels)

    def chosen(self, entities: Tensor, states: Any, inputs: dict[str, Any]) -> Tensor:
        words: Tensor = states.last_hidden_state
        for name in self.takes:
            places = check_tensor(name, inputs.get(name), INTEGERS, "(batch, entities)")
            check_range(name, places, words.shape[1], "the text has the positions 0 to", "Count tokens from 0 on.")
        first, last = (words.take_along_dim(inputs[name][..., None], dim=1) for name in self.takes)
        return torch.cat([first, last, entities], dim=-1)


class LukeForSequenceClassification(classify.ForSequenceClassification[LukeModel]):
    output_class = EntityLogitsOutput


class LukeForTokenClassification(classify.ForTokenClassification[LukeModel]):
    output_class = EntityLogitsOutput


class LukeForQuestionAnswering(span.ForQuestionAnswering[LukeModel]):
    output_class = EntityAnswersOutput


class LukeForMultipleChoice(classify.ForMultipleChoice[LukeModel]):
    output_class = EntityLogitsOutput
