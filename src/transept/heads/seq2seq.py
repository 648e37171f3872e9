"""Tasks of encoder–decoders: writing a sequence, classifying one, and finding answers in it.

Shapes: B batch, T' positions of the encoder, T of the decoder, D hidden size, V vocabulary, C classes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.model import O
from transept.errors import InputError
from transept.heads.classify import HeadedTask
from transept.heads.language import ForCausalLM, WritingTask
from transept.heads.span import SpanTask
from transept.heads.task import Task
from transept.kinds.seq2seq import Seq2SeqB
from transept.kinds.text import TextB
from transept.layers import pool
from transept.objectives.classification import counted, cross_entropy
from transept.objectives.terms import Items, LossTerm
from transept.outputs import ModelOutput, Seq2SeqLogitsOutput, Seq2SeqQuestionAnsweringOutput


class Seq2SeqTask(Task[Seq2SeqB]):
    """A task on an encoder–decoder.

    Inputs for the encoder are (B, T'); ``decoder_input_ids`` (B, T) follow from what the decoder is to write when absent.
    """

    output_class: ClassVar[type[ModelOutput]] = Seq2SeqLogitsOutput

    def vocabulary_layers(self) -> list[nn.Module]:
        """The backbone's tables, and the output layer where there is one and both stacks have one vocabulary."""
        output = self.get_output_embeddings() if "decoder" in self.backbone.token_parts else None
        return [*self.backbone.vocabulary_layers(), *(() if output is None else (output,))]

    def decoder_targets(self, inputs: dict[str, Any], labels: Tensor | None) -> Tensor | None:
        """What the decoder is to write, (B, T): what the encoder reads, unless a task overrides it."""
        return inputs.get("input_ids")

    def reads_cache(self, labels: Tensor | None) -> bool:
        return labels is None

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        if inputs.get("decoder_input_ids") is None and inputs.get("decoder_inputs_embeds") is None:
            ids = self.decoder_targets(inputs, labels)
            inputs["decoder_input_ids"] = None if ids is None else self.backbone.shifted(ids)
        return super().encode(inputs, labels)


class ForConditionalGeneration(WritingTask[Seq2SeqB], Seq2SeqTask[Seq2SeqB]):
    """A sequence written after another was read (Sutskever et al. 2014); ``labels`` (B, T) are what is to be written."""

    names = Names({"lm_head": "lm_head"})
    output_class = Seq2SeqLogitsOutput

    @property
    def rows_apart(self) -> bool:
        return True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lm_head: nn.Linear = nn.Linear(self.backbone.dim, self.backbone.decoder.vocab_size, bias=False)

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.lm_head

    @classmethod
    def own_names_of(cls, config: Config) -> Names:
        """The head is tied to what the decoder's embeddings are, where the config asks for it; a class may state its ties."""
        names, table = super().own_names_of(config), "decoder.embed_tokens.weight"
        source = cls.backbone_class.names_of(config).tied.get(table, table)
        ties = cls.names.ties or {"lm_head.weight": f"backbone.{source}"}
        return names | Names(ties=ties if config.tie_word_embeddings else {})

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to write these labels: (B, T) -> (B, T)."""
        return self.backbone.shifted(labels)

    _shift_right = prepare_decoder_input_ids_from_labels

    def decoder_targets(self, inputs: dict[str, Any], labels: Tensor | None) -> Tensor | None:
        return labels

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"language": cross_entropy(logits, labels)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"language": counted(labels)}


class SparseSeq2SeqLogitsOutput(Seq2SeqLogitsOutput):
    """Logits, and of each stack what a loss says about the choice of experts, before it is weighted into the loss."""

    encoder_z_loss: Tensor | None = None
    decoder_z_loss: Tensor | None = None
    encoder_aux_loss: Tensor | None = None
    decoder_aux_loss: Tensor | None = None
    decoder_router_logits: tuple[Tensor, ...] | None = None
    encoder_router_logits: tuple[Tensor, ...] | None = None


class ForSparseGeneration(ForConditionalGeneration[Seq2SeqB]):
    """Conditional generation by a model whose tokens choose experts.

    With ``output_router_logits`` the routers' logits are given, and what a loss says about them for real tokens; the loss,
    where there is one, has that as further terms.
    """

    output_class = SparseSeq2SeqLogitsOutput

    @property
    def rows_apart(self) -> bool:
        return not self.config.output_router_logits  # whose balance is that of a batch

    def answer(
        self, output: O, states: ModelOutput, terms: dict[str, LossTerm] | None, items: Items | None, return_dict: bool | None
    ) -> O:
        if more := getattr(states, "loss_terms", None):
            for name, term in more.items():
                output[name] = term.mean
            terms = None if terms is None else terms | more
        return super().answer(output, states, terms, items, return_dict)


class ForBiasedGeneration(ForConditionalGeneration[Seq2SeqB]):
    """Conditional generation whose logits are shifted by a constant for each token, which is stored but not trained."""

    names = Names({"lm_head": "lm_head", "final_logits_bias": "final_bias"}, fixed=("final_bias",))
    final_bias: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.register_buffer("final_bias", torch.zeros(1, self.lm_head.out_features))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.final_bias)

    def score(self, hidden: Tensor) -> Tensor:
        return super().score(hidden) + self.final_bias

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Embedding:
        table = super().resize_token_embeddings(*args, **options)
        self.resize_bias()
        return table

    def resize_bias(self) -> None:
        """Keep a number for each token of the head, with zeros for new ones."""
        self.final_bias = F.pad(self.final_bias, (0, self.lm_head.out_features - self.final_bias.shape[1]))


class ForSequenceClassification(Seq2SeqTask[Seq2SeqB], HeadedTask[Seq2SeqB]):
    """One of C classes for each sequence, by the decoder's state at its last EOS (Lewis et al. 2020): ``logits`` (B, C).

    ``labels`` are (B) integers, (B, C) for several labels at once, or numbers for regression; see ``problem_type``.
    """

    names = Names({"classification_head": "head"})
    omits = ("past_key_values",)
    act, head_dropouts = "tanh", ("classifier_dropout",)

    @property
    def rows_apart(self) -> bool:
        return True

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        if inputs.get("input_ids") is None:
            raise InputError(f"{type(self).__name__} needs `input_ids`, to find the EOS that each sequence is classified by.")
        return super().encode(inputs, labels)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        ids = inputs["input_ids"]
        ended = torch.isin(ids, torch.tensor(self.config.eos_token_id, device=ids.device))
        return self.output_class(logits=self.head(pool.last_marked(states.last_hidden_state, ended)))


class ForQuestionAnswering(Seq2SeqTask[Seq2SeqB], SpanTask[Seq2SeqB]):
    """Start and end logits for each token, from the decoder's states."""

    output_class = Seq2SeqQuestionAnsweringOutput
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs"),
        *("start_positions", "end_positions", "inputs_embeds", "decoder_inputs_embeds", "use_cache"),
    )

    def length(self, inputs: dict[str, Any]) -> int:
        names = ("decoder_input_ids", "decoder_inputs_embeds", "input_ids")
        return next(int(inputs[name].shape[1]) for name in names if inputs.get(name) is not None)


class StackForCausalLM(ForCausalLM[TextB]):
    """The decoder of an encoder–decoder by itself; labels are not moved: position t is to predict label t."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = self.backbone.config = config.with_settings(is_decoder=True, is_encoder_decoder=False)

    def targets(self, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        return labels
