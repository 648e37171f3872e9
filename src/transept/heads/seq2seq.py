"""Tasks of encoder–decoders: writing a sequence, classifying one, and finding answers in it.

Shapes: B batch, T' positions of the encoder, T of the decoder, D hidden size, V vocabulary, C classes.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config import Config
from transept.core.model import TaskModel
from transept.core.seq2seq import Seq2SeqB, Seq2SeqInputs
from transept.core.text import TextB, TextBackbone
from transept.errors import InputError
from transept.generation.generate import Generates
from transept.heads.classify import Classifier
from transept.heads.language import ForCausalLM, kept
from transept.layers import pool
from transept.objectives.classification import cross_entropy, sequence_classification, spans
from transept.objectives.terms import Items
from transept.outputs import Seq2SeqLogitsOutput, Seq2SeqQuestionAnsweringOutput


class Seq2SeqTask(TaskModel[Seq2SeqB]):
    """A task on an encoder–decoder, both halves of which can be asked for."""

    def get_encoder(self) -> TextBackbone:
        """The half that reads, which can be called by itself."""
        return self.model.get_encoder()

    def get_decoder(self) -> TextBackbone:
        """The half that writes."""
        return self.model.get_decoder()

    def vocabulary_layers(self) -> list[nn.Embedding | nn.Linear]:
        """The backbone's tables, and the output layer where there is one and both stacks have one vocabulary."""
        output = self.get_output_embeddings() if "decoder" in self.model.sharing else None
        return [*self.model.vocabulary_layers(), *(() if output is None else (output,))]


class ForConditionalGeneration(Generates, Seq2SeqTask[Seq2SeqB]):
    """A sequence written after another was read (Sutskever et al. 2014)."""

    names = Names({"lm_head": "lm_head"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(self.model.dim, self.model.get_decoder().vocab_size, bias=False)

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.lm_head

    @classmethod
    def head_names_of(cls, config: Config) -> Names:
        """The head is tied to what the decoder's embeddings are, where the config asks for it."""
        names, table = super().head_names_of(config), "decoder.embed_tokens.weight"
        source = cls.backbone_class.names_of(config).tied.get(table, table)
        return names | Names(ties={"lm_head.weight": f"model.{source}"} if config.tie_word_embeddings else {})

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to write these labels: (B, T) -> (B, T)."""
        return self.model.shifted(labels)

    def score(self, hidden: Tensor) -> Tensor:
        """Logits (B, T, V) of states (B, T, D); families that scale or shift them override it."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[Seq2SeqInputs],
    ) -> Seq2SeqLogitsOutput:
        """Predict what follows each position of the decoder.

        Args:
            input_ids: (B, T') for the encoder; or ``inputs_embeds`` (B, T', D), or ``encoder_outputs``.
            attention_mask: (B, T'), 1 for the encoder's real tokens.
            decoder_input_ids: (B, T), only new ones where there is a cache; made from the labels when absent.
            labels: (B, T), what the decoder is to write; -100 is ignored.
            logits_to_keep: compute logits for so many last positions only (0: all), or for those at these indices.
            num_items_in_batch: labelled tokens of the whole batch, where this is a micro-batch.

        Returns:
            ``logits`` (B, T, V), ``past_key_values`` where a cache is used, what the stacks recorded, and ``loss`` where
            there are labels.
        """
        if labels is not None:
            inputs.setdefault("use_cache", False)  # nobody decodes while computing a loss
            if decoder_input_ids is None and inputs.get("decoder_inputs_embeds") is None:
                decoder_input_ids = self.model.shifted(labels)
        states = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, return_dict=True, **inputs
        )
        logits = self.score(kept(states.last_hidden_state, logits_to_keep))
        terms = None if labels is None else {"language": cross_entropy(logits, labels)}
        return self.answer(Seq2SeqLogitsOutput(logits=logits), states, terms, num_items_in_batch, return_dict)


class FinalBias(nn.Module):
    """A constant for each token's logit, which is stored but not trained.

    *Shape:* (..., V) -> (..., V)
    """

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(1, vocab))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def resize(self, vocab: int) -> None:
        """Keep the first ``vocab`` numbers, and add zeros for more."""
        old = self.bias[:, :vocab]
        self.bias = torch.cat([old, old.new_zeros(1, vocab - old.shape[1])], dim=1)

    def forward(self, logits: Tensor) -> Tensor:
        return logits + self.bias


class ForBiasedGeneration(ForConditionalGeneration[Seq2SeqB]):
    """Conditional generation whose logits are shifted by a constant for each token."""

    names = Names({"lm_head": "lm_head", "final_logits_bias": "final_bias.bias"}, fixed=("final_bias.bias",))

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.final_bias = FinalBias(self.lm_head.out_features)

    def score(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.final_bias(super().score(hidden))
        return logits

    def resize_token_embeddings(self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None) -> nn.Embedding:
        """The constants too; see ``Pretrained.resize_token_embeddings``."""
        table = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of)
        self.final_bias.resize(self.lm_head.out_features)
        return table


class ForSequenceClassification(Seq2SeqTask[Seq2SeqB]):
    """One of C classes for each sequence, by the decoder's state at its last EOS (Lewis et al. 2020)."""

    names = Names({"classification_head": "head"})
    omits = ("past_key_values",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = Classifier(self.model.dim, config.num_labels, act="tanh", dropout=config.classifier_dropout)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[Seq2SeqInputs],
    ) -> Seq2SeqLogitsOutput:
        """Classify sequences.

        Args:
            input_ids: (B, T'), each row with an EOS.
            attention_mask: (B, T'), 1 for real tokens.
            decoder_input_ids: (B, T') too; the same ids one position later when absent.
            labels: (B) integers, (B, C) for several labels at once, numbers for regression; see ``problem_type``.
            num_items_in_batch: items of the whole batch, where this is a micro-batch.

        Returns:
            ``logits`` (B, C), what the stacks recorded, and ``loss`` where there are labels.
        """
        if input_ids is None:
            raise InputError(f"{type(self).__name__} needs `input_ids`, to find the EOS that each sequence is classified by.")
        if labels is not None:
            inputs.setdefault("use_cache", False)
        if decoder_input_ids is None and inputs.get("decoder_inputs_embeds") is None:
            decoder_input_ids = self.model.shifted(input_ids)
        states = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, return_dict=True, **inputs
        )
        ends = torch.tensor(self.config.eos_token_id, device=input_ids.device)
        logits = self.head(pool.last_marked(states.last_hidden_state, torch.isin(input_ids, ends)))
        terms = None
        if labels is not None:
            terms = {"classification": sequence_classification(logits, labels, self.config.problem_type)}
        return self.answer(Seq2SeqLogitsOutput(logits=logits), states, terms, num_items_in_batch, return_dict)


class ForQuestionAnswering(Seq2SeqTask[Seq2SeqB]):
    """Start and end logits for each token, from the decoder's states."""

    names = Names({"qa_outputs": "head.out_proj"})
    reads = (
        *("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs"),
        *("start_positions", "end_positions", "inputs_embeds", "decoder_inputs_embeds", "use_cache"),
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = Classifier(self.model.dim, 2)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[Seq2SeqInputs],
    ) -> Seq2SeqQuestionAnsweringOutput:
        """Find answers; positions are (B) token indices, those outside the sequence are ignored.

        The decoder reads the encoder's ids one position later, unless it is given others.

        Returns:
            ``start_logits`` and ``end_logits`` (B, T), what the stacks recorded, and ``loss`` where both positions are
            given.
        """
        answers = start_positions is not None and end_positions is not None
        if answers:
            inputs.setdefault("use_cache", False)
        if decoder_input_ids is None and inputs.get("decoder_inputs_embeds") is None and input_ids is not None:
            decoder_input_ids = self.model.shifted(input_ids)
        states = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, return_dict=True, **inputs
        )
        start, end = self.head(states.last_hidden_state).unbind(-1)
        start, end = start.contiguous(), end.contiguous()
        terms = None
        if start_positions is not None and end_positions is not None:
            terms = spans(start, end, start_positions, end_positions)
        output = Seq2SeqQuestionAnsweringOutput(start_logits=start, end_logits=end)
        return self.answer(output, states, terms, num_items_in_batch, return_dict)


class StackForCausalLM(ForCausalLM[TextB]):
    """The decoder of an encoder–decoder by itself, which predicts the next token.

    Labels are not moved: position t is to predict label t.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = self.model.config = config.with_settings(is_decoder=True, is_encoder_decoder=False)

    def make_head(self, config: Config) -> nn.Module:
        return nn.Linear(self.model.dim, self.model.vocab_size, bias=False)

    def targets(self, labels: Tensor, logits: Tensor) -> Tensor:
        """The labels as they are."""
        return labels
