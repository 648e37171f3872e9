"""Language modelling: masked and causal, next-sentence prediction, and BERT's pretraining of both.

Shapes: B batch, T positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config import Config
from transept.core.model import TaskModel
from transept.core.text import TextB, TextInputs
from transept.errors import InputError
from transept.generation.generate import Generates
from transept.heads.classify import Classifier
from transept.layers.activation import activation
from transept.objectives.classification import IGNORED, check_tensor, cross_entropy
from transept.objectives.terms import Items
from transept.outputs import LogitsOutput, PreTrainingOutput


class VocabularyHead(nn.Module):
    """Dense, activation, norm, and a decoder over the vocabulary that is usually tied to the embeddings.

    Args:
        dim: D.
        inner: size after the dense layer, that of the embeddings.
        vocab: V.
        act: name of the activation.
        eps: of the norm.
    """

    def __init__(self, dim: int, inner: int, vocab: int, *, act: str, eps: float) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(dim, inner), nn.LayerNorm(inner, eps)
        self.act, self.decoder = activation(act), nn.Linear(inner, vocab)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        logits: Tensor = self.decoder(self.norm(self.act(self.dense(x))))
        return logits


class LanguageTask(TaskModel[TextB]):
    """A task with logits over the vocabulary; ``act`` is the head's activation, the config's where ``None``."""

    act: ClassVar[str | None] = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lm_head = self.make_head(config)

    def make_head(self, config: Config) -> nn.Module:
        """(..., D) -> (..., V)."""
        act, inner = self.act or config.hidden_act, self.model.embed_dim
        return VocabularyHead(self.model.dim, inner, config.vocab_size, act=act, eps=config.layer_norm_eps)

    def get_output_embeddings(self) -> nn.Linear | None:
        return getattr(self.lm_head, "decoder", self.lm_head)  # type: ignore[arg-type]  # plain or packed


class ForMaskedLM(LanguageTask[TextB]):
    """The token behind each mask (Devlin et al. 2019)."""

    omits: ClassVar[tuple[str, ...]] = ("past_key_values", "use_cache")
    names = Names(ties={"lm_head.decoder.weight": "model.embed_tokens.weight"})

    def predicted(self, hidden: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The states to predict tokens from, and their labels: all (B, T, D) and (B, T), unless a family picks some."""
        return hidden, labels

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> LogitsOutput:
        """Predict tokens; ``labels`` (B, T) with -100 where nothing is to be predicted, ``logits`` (B, T, V)."""
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        hidden, labels = self.predicted(states.last_hidden_state, labels)
        logits = self.lm_head(hidden)
        terms = None if labels is None else {"masked_lm": cross_entropy(logits, labels)}
        return self.answer(LogitsOutput(logits=logits), states, terms, num_items_in_batch, return_dict)


class ForCausalLM(Generates, LanguageTask[TextB]):
    """The next token."""

    names = Names({"lm_head": "lm_head"}, ties={"lm_head.weight": "model.embed_tokens.weight"})
    output_class: ClassVar[type[LogitsOutput]] = LogitsOutput
    omits = ()

    def make_head(self, config: Config) -> nn.Module:
        """(..., D) -> (..., V)."""
        return nn.Linear(self.model.dim, config.vocab_size, bias=False)

    def score(self, hidden: Tensor) -> Tensor:
        """Logits (B, T, V) of states (B, T, D); families that scale or bound them override it."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> LogitsOutput:
        """Predict what follows each position.

        Args:
            input_ids: (B, T), or ``inputs_embeds`` (B, T, D).
            attention_mask: (B, S), 1 for real tokens, over cached and new positions.
            labels: (B, T), the same tokens again: the shift by one happens here; -100 is ignored.
            logits_to_keep: compute logits for so many last positions only (0: all), or for those at these indices.
            num_items_in_batch: labelled tokens of the whole batch, where this is a micro-batch.

        Returns:
            ``logits`` (B, T, V), ``past_key_values`` where a cache is used, and ``loss`` where there are labels.
        """
        if labels is not None:
            inputs.setdefault("use_cache", False)  # nobody decodes while computing a loss
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        logits = self.score(kept(states.last_hidden_state, logits_to_keep))
        terms = None if labels is None else {"causal_lm": cross_entropy(logits, self.targets(labels, logits))}
        return self.answer(self.output_class(logits=logits), states, terms, num_items_in_batch, return_dict)

    def targets(self, labels: Tensor, logits: Tensor) -> Tensor:
        """The token that each position is to predict, (B, T): the next one."""
        return next_tokens(labels, logits)


def kept(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """The states (B, T, D) that logits are asked for: so many last ones (0: all), or those at these indices."""
    if isinstance(logits_to_keep, int):
        return hidden[:, -logits_to_keep:] if logits_to_keep > 0 else hidden
    return hidden[:, logits_to_keep]


def next_tokens(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels moved one to the left: position t gets token t + 1, and the last one nothing.

    Raises:
        InputError: labels of another shape than the logits.
    """
    check_tensor(labels)
    if labels.shape != logits.shape[:2]:
        raise InputError(
            f"`labels` has the shape {tuple(labels.shape)}, but the logits are for {tuple(logits.shape[:2])}.",
            hint="With `logits_to_keep`, no loss can be computed." if labels.shape[0] == logits.shape[0] else None,
        )
    return F.pad(labels, (0, 1), value=IGNORED)[:, 1:]


class ForNextSentencePrediction(TaskModel[TextB]):
    """Whether the second sentence follows the first (Devlin et al. 2019)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = Classifier(self.model.dim, 2)

    @property
    def reads_pooler(self) -> bool:
        return True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> LogitsOutput:
        """Classify pairs; ``labels`` (B): 0 where the second sentence follows, 1 where not; ``logits`` (B, 2)."""
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        logits = self.head(states.pooler_output)
        terms = None if labels is None else {"next_sentence": cross_entropy(logits, labels.reshape(-1))}
        return self.answer(LogitsOutput(logits=logits), states, terms, num_items_in_batch, return_dict)


class ForPreTraining(LanguageTask[TextB]):
    """Masked tokens and next sentences at once (Devlin et al. 2019)."""

    names = Names(ties={"lm_head.decoder.weight": "model.embed_tokens.weight"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = Classifier(self.model.dim, 2)

    @property
    def reads_pooler(self) -> bool:
        return True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[TextInputs],
    ) -> PreTrainingOutput:
        """Predict tokens (``labels`` (B, T), -100 ignored) and order (``next_sentence_label`` (B)).

        The loss is the sum of both means and is given where both labels are.
        """
        states = self.model(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **inputs)
        logits, order = self.lm_head(states.last_hidden_state), self.head(states.pooler_output)
        terms = None
        if labels is not None and next_sentence_label is not None:
            terms = {
                "masked_lm": cross_entropy(logits, labels),
                "next_sentence": cross_entropy(order, next_sentence_label.reshape(-1)),
            }
        output = PreTrainingOutput(prediction_logits=logits, seq_relationship_logits=order)
        return self.answer(output, states, terms, num_items_in_batch, return_dict)
