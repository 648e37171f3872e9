"""Language modelling: masked and causal, next-sentence prediction, and BERT's pretraining of both.

Shapes: B batch, N choices, T positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.model import O
from transept.core.task import B
from transept.errors import InputError
from transept.generation.generate import Generates
from transept.heads.classify import Classifier, PooledTask
from transept.heads.task import Task
from transept.kinds.text import TextB
from transept.layers.links import Linked, Step
from transept.layers.mlp import activation
from transept.objectives.classification import IGNORED, Unscored, check_is_tensor, counted, cross_entropy
from transept.objectives.terms import Items, LossTerm
from transept.outputs import LogitsOutput, ModelOutput, PreTrainingOutput, SparseLogitsOutput, SparseOutput


class TransformStep(Step):
    """What comes before the decoder of a head over the vocabulary."""

    lends = {"transform_act_fn": "act"}

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.owner.transformed(hidden_states)  # type: ignore[no-any-return]


class PredictionsStep(Step):
    """Logits (B, T, V) for the token at each position; with a pooled state (B, D), also the order's (B, 2)."""

    def forward(self, sequence_output: Tensor, pooled_output: Tensor | None = None) -> Any:
        logits = self.owner.lm_head(sequence_output)
        return logits if pooled_output is None else (logits, self.owner.head(pooled_output))


class OrderStep(Step):
    """Logits of the order of two sentences: (B, D) -> (B, 2)."""

    def forward(self, pooled_output: Tensor) -> Tensor:
        return self.owner.head(pooled_output)  # type: ignore[no-any-return]


class VocabularyHead(Linked):
    """Dense, activation, norm, and a decoder over the vocabulary that is usually tied to the embeddings of size ``inner``."""

    def __init__(self, dim: int, inner: int, vocab: int, *, act: str, eps: float, bias: bool = False) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(dim, inner), nn.LayerNorm(inner, eps)
        self.act, self.decoder = activation(act), nn.Linear(inner, vocab)
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"transform": TransformStep}

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        step = self.step_at("transform")
        logits: Tensor = self.decoder(self.transformed(x) if step is None else step(x))
        return logits

    def transformed(self, x: Tensor) -> Tensor:
        """What the decoder reads, (..., D) -> (..., inner)."""
        return self.norm(self.act(self.dense(x)))  # type: ignore[no-any-return]


class BiasedHead(VocabularyHead):
    """The same, whose decoder has no bias of its own."""

    def __init__(self, dim: int, inner: int, vocab: int, *, act: str, eps: float) -> None:
        super().__init__(dim, inner, vocab, act=act, eps=eps, bias=True)
        self.decoder = nn.Linear(inner, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.decoder(self.transformed(x)) + self.bias
        return logits


class WritingTask(Generates, Task[B]):
    """A task with ``logits`` (B, T, V) for the token that each position is to predict, which writes text with them.

    ``labels`` are (B, T), of which -100 is ignored. ``logits_to_keep`` asks for logits of so many last positions only (0: all),
    or of those at these indices.
    """

    takes = ("logits_to_keep",)
    output_class: ClassVar[type[ModelOutput]] = LogitsOutput
    lm_head: nn.Module
    # What multiplies few states by a head faster than that does, (head, hidden) -> logits, or ``None`` where it cannot.
    head_step: Callable[[nn.Module, Tensor], Tensor | None] | None = None

    def score(self, hidden: Tensor) -> Tensor:
        """Logits (B, T, V) of states (B, T, D); families that scale, shift or bound them override it."""
        found = None if self.head_step is None else self.head_step(self.lm_head, hidden)
        return self.lm_head(hidden) if found is None else found

    def reads_cache(self, labels: Tensor | None) -> bool:
        """Nobody decodes while computing a loss."""
        return labels is None

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        return super().encode({name: value for name, value in inputs.items() if name not in self.takes}, labels)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        return self.output_class(logits=self.score(self.kept(states, inputs)))

    def unscored(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        return self.output_class(logits=Unscored(self.score, self.kept(states, inputs)))

    def kept(self, states: Any, inputs: dict[str, Any]) -> Tensor:
        """The states (B, T, D) that logits are asked for."""
        hidden, keep = states.last_hidden_state, inputs.get("logits_to_keep", 0)
        if not isinstance(keep, int):
            return hidden[:, keep]  # type: ignore[no-any-return]
        return hidden[:, -keep:] if keep > 0 else hidden  # type: ignore[no-any-return]


class LanguageTask(Task[TextB]):
    """A task with logits over the vocabulary."""

    output_class: ClassVar[type[ModelOutput]] = LogitsOutput

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lm_head = self.make_head(config)

    def make_head(self, config: Config) -> nn.Module:
        """(..., D) -> (..., V)."""
        raise NotImplementedError

    def get_output_embeddings(self) -> nn.Linear | None:
        return getattr(self.lm_head, "decoder", self.lm_head)  # type: ignore[arg-type]  # plain or packed


class VocabularyTask(LanguageTask[TextB]):
    """A task with BERT's head over the vocabulary; ``act`` is its activation, or the setting that names it.

    ``tied_bias`` is where the bias of a decoder that is tied to the embeddings is stored, if that is apart from the decoder.
    """

    act: ClassVar[str] = "hidden_act"
    tied_bias: ClassVar[bool] = False
    names = Names(ties={"lm_head.decoder.weight": "backbone.embed_tokens.weight"})

    def make_head(self, config: Config) -> nn.Module:
        act, eps = getattr(config, self.act, self.act), getattr(self.backbone.embed_norm, "eps", None) or config.layer_norm_eps
        return VocabularyHead(
            self.backbone.dim, self.backbone.embed_dim, config.vocab_size, act=act, eps=eps, bias=self.tied_bias
        )

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"cls": PredictionsStep}

    def score(self, hidden: Tensor) -> Tensor:
        """Logits (B, T, V) of states (B, T, D)."""
        step = self.step_at("cls")
        return self.lm_head(hidden) if step is None else step(hidden)  # type: ignore[no-any-return]

    def vocabulary_layers(self) -> list[nn.Module]:
        return [*super().vocabulary_layers(), *([self.lm_head] if self.tied_bias else [])]

    @classmethod
    def own_names_of(cls, config: Config) -> Names:
        own = {"lm_head.decoder.bias": "lm_head.bias"} if cls.tied_bias and config.tie_word_embeddings else {}
        return super().own_names_of(config) | Names(ties=own)


class PredictionsTask(VocabularyTask[TextB]):
    """The same, stored as ``cls.predictions``, where a decoder that is tied to the embeddings has its bias apart."""

    tied_bias = True
    names = VocabularyTask.names | Names(
        {
            "cls.predictions": (
                "lm_head",
                {"bias": "bias", "transform.dense": "dense", "transform.LayerNorm": "norm", "decoder": "decoder"},
            )
        }
    )


class ForMaskedLM(VocabularyTask[TextB]):
    """The token behind each mask (Devlin et al. 2019): ``logits`` (B, T, V), ``labels`` (B, T) with -100 elsewhere."""

    omits: ClassVar[tuple[str, ...]] = ("past_key_values", "use_cache")

    @property
    def rows_apart(self) -> bool:
        return True

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        return self.output_class(logits=self.score(states.last_hidden_state))

    def unscored(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        return self.output_class(logits=Unscored(self.score, states.last_hidden_state))

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"masked_lm": cross_entropy(logits, labels)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"masked_lm": counted(labels)}


class ForCausalLM(WritingTask[TextB], LanguageTask[TextB]):
    """The next token. ``labels`` (B, T) are the tokens that are read; the shift by one happens here."""

    names = Names({"lm_head": "lm_head"}, ties={"lm_head.weight": "backbone.embed_tokens.weight"})
    omits = ()
    bias: ClassVar[bool] = False  # whether the head has one

    @property
    def rows_apart(self) -> bool:
        return True

    def make_head(self, config: Config) -> nn.Module:
        return nn.Linear(self.backbone.dim, self.backbone.vocab_size, self.bias)

    def targets(self, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        """The token that each position is to predict, (B, T): the next one. Where logits are given, the shapes are checked."""
        return next_tokens(labels, logits)

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"causal_lm": cross_entropy(logits, self.targets(labels, logits))}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"causal_lm": counted(self.targets(labels))}


def next_tokens(labels: Tensor, logits: Tensor | None = None) -> Tensor:
    """Labels moved one to the left: position t gets token t + 1, and the last one nothing.

    Raises:
        InputError: labels of another shape than the logits.
    """
    check_is_tensor(labels)
    if logits is not None and labels.shape != logits.shape[:2]:
        hint = "With `logits_to_keep`, no loss can be computed." if labels.shape[0] == logits.shape[0] else None
        shapes = tuple(labels.shape), tuple(logits.shape[:2])
        raise InputError(f"`labels` has the shape {shapes[0]}, but the logits are for {shapes[1]}.", hint=hint)
    return F.pad(labels, (0, 1), value=IGNORED)[..., 1:]


class ForSparseCausalLM(ForCausalLM[TextB]):
    """The next token, by a model whose tokens choose experts.

    With ``output_router_logits`` the routers' logits are given, ``aux_loss`` tells how even the choices of real tokens were,
    and the loss, where there is one, has it as a further term.
    """

    output_class = SparseLogitsOutput

    @property
    def rows_apart(self) -> bool:
        return not self.config.output_router_logits  # whose balance is that of a batch

    def answer(
        self, output: O, states: ModelOutput, terms: dict[str, LossTerm] | None, items: Items | None, return_dict: bool | None
    ) -> O:
        if isinstance(states, SparseOutput) and states.loss_terms is not None:
            output["aux_loss"] = sum(term.mean for term in states.loss_terms.values())
            terms = None if terms is None else terms | states.loss_terms
        return super().answer(output, states, terms, items, return_dict)


class ForNextSentencePrediction(PooledTask[TextB]):
    """Whether the second sentence follows the first (Devlin et al. 2019): ``labels`` (B) are 0 where it does."""

    pooling = "pooler"
    classes, head_dropouts = 2, ()

    def step_classes(self) -> Mapping[str, type[Step]]:
        return {"cls": OrderStep}

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        step = self.step_at("cls")
        return super().predict(states, inputs) if step is None else self.output_class(logits=step(states.pooler_output))

    @property
    def rows_apart(self) -> bool:
        return True

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"next_sentence": cross_entropy(logits, labels.reshape(-1))}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"next_sentence": counted(labels)}


class ForPreTraining(VocabularyTask[TextB]):
    """Masked tokens and next sentences at once (Devlin et al. 2019).

    ``labels`` are (B, T) with -100 for ignored tokens, ``next_sentence_label`` (B). The loss is the sum of both means.
    ``order`` is what the logits of two sentences are called.
    """

    labels = ("labels", "next_sentence_label")
    reads_pooler = True
    output_class: ClassVar[type[ModelOutput]] = PreTrainingOutput
    order: ClassVar[str] = "seq_relationship_logits"

    @property
    def rows_apart(self) -> bool:
        return True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.head = self.make_order_head(config)

    def make_order_head(self, config: Config) -> nn.Module:
        """(B, D) -> (B, 2)."""
        return Classifier(self.backbone.dim, 2)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        step = self.step_at("cls")
        if step is not None:
            logits, order = step(states.last_hidden_state, states.pooler_output)
        else:
            logits, order = self.lm_head(states.last_hidden_state), self.head(states.pooler_output)
        return self.output_class(prediction_logits=logits, **{self.order: order})

    def unscored(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        if self.by_steps:
            return self.predict(states, inputs)
        logits: Any = Unscored(self.lm_head, states.last_hidden_state)
        return self.output_class(prediction_logits=logits, **{self.order: self.head(states.pooler_output)})

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        order = cross_entropy(output[self.order], labels[1].reshape(-1))
        return {"masked_lm": cross_entropy(output.prediction_logits, labels[0]), "next_sentence": order}

    def all_counts(self, labels: list[Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"masked_lm": counted(labels[0]), "next_sentence": counted(labels[1])}
