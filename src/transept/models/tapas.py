"""TAPAS (Herzig et al. 2020): BERT that reads a table behind a question, and answers with cells and what is made of them.

Shapes: B batch, T positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, PaddingId, derived
from transept.core.inputs import ENCODER, INTEGERS, check_range, check_tensor
from transept.errors import InputError
from transept.heads import classify, language
from transept.heads.table import COLUMN, KINDS, ROW, ForTableQuestionAnswering
from transept.kinds.encoder import EncoderConfig, LayersStep, encoder_layers
from transept.kinds.text import Options, TextBackbone
from transept.layers import Context, Pooler
from transept.layers.links import Step
from transept.models.bert import BERT_LAYERS, BertEmbeddings, BertModel


class TapasConfig(EncoderConfig):
    """Settings of TAPAS; the defaults are those of tapas-base.

    ``type_vocab_sizes`` are the sizes of the seven kinds of token types. With ``reset_position_index_per_cell`` positions begin
    again in each cell. With ``use_answer_as_supervision`` the answers are numbers, and how to aggregate cells is learnt from
    them; the settings from ``answer_loss_importance`` to ``answer_loss_cutoff`` are for that. ``select_one_column`` takes all
    cells from one column, and ``allow_empty_column_selection`` allows to take none.
    """

    model_type = "tapas"

    vocab_size: int = 30522
    max_position_embeddings: int = 1024
    type_vocab_sizes: list[int] = derived(lambda c: [3, 256, 256, 2, 256, 256, 10])
    pad_token_id: PaddingId | None = 0
    positive_label_weight: float = 10.0
    num_aggregation_labels: int = 0
    aggregation_loss_weight: float = 1.0
    use_answer_as_supervision: bool | None = None
    answer_loss_importance: float = 1.0
    use_normalized_answer_loss: bool = False
    huber_loss_delta: float | None = None
    temperature: float = 1.0
    aggregation_temperature: float = 1.0
    use_gumbel_for_cells: bool = False
    use_gumbel_for_aggregation: bool = False
    average_approximation_function: Literal["ratio", "first_order", "second_order"] = "ratio"
    cell_selection_preference: float | None = None
    answer_loss_cutoff: float | None = None
    max_num_rows: Count = 64
    max_num_columns: Count = 32
    average_logits_per_cell: bool = False
    select_one_column: bool = True
    allow_empty_column_selection: bool = False
    init_cell_selection_weights_to_zero: bool = False
    reset_position_index_per_cell: bool = True
    disable_per_token_loss: bool = False
    aggregation_labels: dict[int, str] | None = None
    no_aggregation_label_index: int | None = None
    is_decoder: bool = False
    add_cross_attention: bool = False

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().upgrade(values)
        if isinstance(labels := values.get("aggregation_labels"), Mapping):
            values = values | {"aggregation_labels": {int(label): name for label, name in labels.items()}}
        return values

    def validate(self) -> None:
        super().validate()
        if len(self.type_vocab_sizes) != KINDS:
            self.fail("type_vocab_sizes", f"must have the sizes of {KINDS} kinds of token types")
        if self.add_cross_attention and not self.is_decoder:
            self.fail("add_cross_attention", "needs `is_decoder`")


_TYPES = {f"token_type_embeddings_{kind}": f"embed_types_{kind}" for kind in range(KINDS)}
TAPAS_EMBEDDINGS: Table = {
    "word_embeddings": "embed_tokens",
    "position_embeddings": "embed_positions",
    **_TYPES,
    "LayerNorm": "embed_norm",
}


class TapasEmbeddings(BertEmbeddings):
    """BERT's with seven kinds of token types (B, T, 7), and positions that begin again in each cell."""

    def __init__(self, c: Any) -> None:
        super().__init__(c)
        self.sizes, self.resets = tuple(c.type_vocab_sizes), c.reset_position_index_per_cell

    def make_types(self, config: Any, size: int) -> None:
        for name, count in zip(_TYPES, config.type_vocab_sizes, strict=True):
            self.add_module(name, nn.Embedding(count, size))

    def segments(self, types: Tensor | None, words: Tensor) -> Tensor:
        tables: list[Any] = [self._modules[name] for name in _TYPES]
        types = words.new_zeros(1, words.shape[1], KINDS, dtype=torch.long) if types is None else types
        return torch.stack([table(each) for table, each in zip(tables, types.unbind(-1), strict=True)]).sum(dim=0)

    def within_cells(self, types: Tensor) -> Tensor:
        """(B, T): how far each token is behind the first one of its cell, as far as there are positions."""
        cells = types[..., COLUMN] * self.sizes[ROW] + types[..., ROW]
        places = torch.arange(types.shape[1], device=types.device).expand_as(cells)
        first = places.new_zeros(len(cells), self.sizes[COLUMN] * self.sizes[ROW])
        first = first.scatter_reduce(1, cells, places, "amin", include_self=False)
        return (places - first.gather(1, cells)).clamp(max=self.position_embeddings.num_embeddings - 1)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values_length: int = 0,
    ) -> Tensor:
        if position_ids is None and self.resets:
            x: Any = input_ids if inputs_embeds is None else inputs_embeds
            types = x.new_zeros(1, x.shape[1], KINDS, dtype=torch.long) if token_type_ids is None else token_type_ids
            position_ids = self.within_cells(types)
        return super().forward(input_ids, token_type_ids, position_ids, inputs_embeds, past_key_values_length)


class TapasModel(TextBackbone):
    """TAPAS without a head; ``token_type_ids`` (B, T, 7) are what the tokenizer says of tables."""

    config_class = TapasConfig
    accepts, ragged = Options, False  # one table in each row
    head_dropouts = ("hidden_dropout_prob",)
    pooling = "pooler"
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
        *(*ENCODER, "labels"),
    )
    names = Names(
        {"embeddings": ("", TAPAS_EMBEDDINGS), **BERT_LAYERS},
        legacy=BertModel.names.legacy,
        ignore=BertModel.names.ignore,
    )
    config: TapasConfig

    def __init__(self, config: TapasConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = TapasEmbeddings(config)
        for stored, own in TAPAS_EMBEDDINGS.items():
            self.alias(str(own), f"embeddings.{stored}")
        self.layers = encoder_layers(config, cross=config.add_cross_attention)
        self.pooler = Pooler(config.hidden_size) if add_pooling_layer else None

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"encoder": LayersStep}

    @property
    def max_positions(self) -> int | None:
        return None if self.config.reset_position_index_per_cell else super().max_positions

    def begin(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Unpack[Options],
    ) -> tuple[Tensor, Context]:
        ctx = self.start(input_ids, inputs_embeds, attention_mask, **options)
        x: Any = self.embed_ids(input_ids) if input_ids is not None else inputs_embeds
        if token_type_ids is not None:
            self.check_cells(token_type_ids, x)
        if position_ids is not None or not self.config.reset_position_index_per_cell:
            position_ids = self.positions(position_ids, x, ctx, input_ids)
        return self.embeddings(inputs_embeds=x, token_type_ids=token_type_ids, position_ids=position_ids), ctx

    def check_cells(self, types: Any, x: Tensor) -> None:
        """Require token types (1 or B, T, 7) that the tables have (``InputError``)."""
        check_tensor("token_type_ids", types, INTEGERS, f"(batch, positions, {KINDS})")
        if types.shape[0] not in (1, x.shape[0]) or types.shape[1:] != (x.shape[1], KINDS):
            shapes = f"the shape {tuple(types.shape)}, but the batch needs {(*x.shape[:2], KINDS)}"
            raise InputError(f"`token_type_ids` has {shapes}.", hint="They come with the ids from this model's tokenizer.")
        for kind, size in enumerate(self.config.type_vocab_sizes):
            hint = "Shorten the table (truncation=True in the tokenizer)."
            check_range("token_type_ids", types[..., kind], size, f"of kind {kind} the model has the types 0 to", hint)


class TapasForMaskedLM(language.PredictionsTask[TapasModel], language.ForMaskedLM[TapasModel]): ...


class TapasForSequenceClassification(classify.ForSequenceClassification[TapasModel]): ...


class TapasForQuestionAnswering(ForTableQuestionAnswering[TapasModel]):
    reads = (
        *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "table_mask", "labels"),
        *("aggregation_labels", "float_answer", "numeric_values", "numeric_values_scale"),
    )
