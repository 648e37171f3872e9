"""Tasks over audio: transcription, classes of recordings and of frames, and who speaks.

Shapes: B batch, S samples, T states, L layers, D hidden size, C classes, V vocabulary, E size of speaker embeddings.
"""

from __future__ import annotations

from typing import TypeVar, Unpack

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config import Config
from transept.core.model import TaskModel
from transept.core.waves import AudioBackbone, AudioInputs
from transept.errors import ConfigError, InputError
from transept.heads.classify import Classifier
from transept.layers import pool
from transept.layers.conv import TimeDelay
from transept.objectives.classification import cross_entropy, sequence_classification
from transept.objectives.ctc import ctc
from transept.objectives.margin import additive_margin
from transept.objectives.terms import Items, LossTerm
from transept.outputs import AudioOutput, LogitsOutput, XVectorOutput

A = TypeVar("A", bound=AudioBackbone)


class AudioTask(TaskModel[A]):
    """A task over waveforms."""

    def freeze_feature_encoder(self) -> None:
        """Keep the backbone's convolutions as they are while training."""
        self.model.freeze_feature_encoder()

    def freeze_base_model(self) -> None:
        """Train the head only."""
        self.model.requires_grad_(False)

    omits = ("mask_time_indices",)

    def refuse_adapter(self) -> None:
        """For tasks whose head reads the layers' own states.

        Raises:
            ConfigError: the backbone has an adapter.
        """
        if self.model.adapted:
            raise ConfigError(f"{type(self).__name__} cannot have an adapter.", hint="Set add_adapter=False.")


class ForCTC(AudioTask[A]):
    """Transcription by connectionist temporal classification (Graves et al. 2006).

    Its config has ``vocab_size``, ``pad_token_id`` (the blank), ``ctc_loss_reduction`` and ``ctc_zero_infinity``.
    """

    names = Names({"lm_head": "lm_head"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.vocab_size is None:
            raise ConfigError(f"{type(self).__name__} needs `vocab_size`.", hint="Pass vocab_size=len(tokenizer).")
        self.dropout = nn.Dropout(self.model.head_dropout)
        self.lm_head = nn.Linear(self.model.dim, config.vocab_size)

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.lm_head

    def forward(
        self,
        input_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[AudioInputs],
    ) -> LogitsOutput:
        """Transcribe.

        Args:
            input_values: (B, S).
            attention_mask: (B, S), 1 for real samples, which come first in each row.
            labels: (B, number of labels); -100 and the blank are ignored.
            num_items_in_batch: rows of the whole batch (``ctc_loss_reduction="mean"``) or 1 (``"sum"``), where this is a
                micro-batch.

        Returns:
            ``logits`` (B, T, V), and ``loss`` where there are labels.
        """
        states = self.model(input_values, attention_mask, return_dict=True, **inputs)
        logits = self.lm_head(self.dropout(states.last_hidden_state))
        terms = None
        if labels is not None and input_values is not None:
            terms = {"ctc": self.loss(logits, labels, input_values, attention_mask)}
        return self.answer(LogitsOutput(logits=logits), states, terms, num_items_in_batch, return_dict)

    def loss(self, logits: Tensor, labels: Tensor, values: Tensor, mask: Tensor | None) -> LossTerm:
        """The loss of (B, T, V) logits, made of (B, S) samples."""
        c, (rows, samples) = self.config, values.shape
        full = torch.full((rows,), samples, device=logits.device)
        frames = self.model.state_lengths(full if mask is None else (mask != 0).sum(dim=1).to(logits.device))
        reduction, zero = c.ctc_loss_reduction, c.ctc_zero_infinity
        return ctc(logits, labels, frames, blank=c.pad_token_id, reduction=reduction, zero_infinity=zero)


class LayerMix(nn.Module):
    """A weighted mean of all layers' states, with learned weights (Peters et al. 2018).

    Args:
        layers: L, with that of the first layer's input.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All alike."""
        nn.init.constant_(self.weight, 1 / len(self.weight))

    def forward(self, states: tuple[Tensor, ...]) -> Tensor:
        """L times (B, T, D) -> (B, T, D)."""
        shares = self.weight.softmax(dim=0).unbind()
        return torch.stack([share * state for share, state in zip(shares, states, strict=True)]).sum(dim=0)


class MixedTask(AudioTask[A]):
    """A task over the last layer's states or, with ``use_weighted_layer_sum``, over a mean of all layers'."""

    names = Names({"layer_weights": "mix.weight"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.mix = LayerMix(len(self.model.layers) + 1) if config.use_weighted_layer_sum else None
        if self.mix is not None:
            self.refuse_adapter()

    def states(self, values: Tensor | None, mask: Tensor | None, inputs: AudioInputs) -> tuple[AudioOutput, Tensor]:
        """The backbone's output, with what the caller wants to see of it, and the states (B, T, D) for the head."""
        if self.mix is None:
            output: AudioOutput = self.model(values, mask, return_dict=True, **inputs)
            return output, output.last_hidden_state
        output = self.model(values, mask, return_dict=True, **{**inputs, "output_hidden_states": True})
        assert output.hidden_states is not None
        mixed = self.mix(output.hidden_states)
        shown = inputs.get("output_hidden_states")
        if not (self.config.output_hidden_states if shown is None else shown):
            output.hidden_states = None
        return output, mixed


class ProjectedClassifier(nn.Module):
    """Two linear layers: into a smaller space, and into classes.

    Args:
        dim: D.
        inner: size between the layers.
        classes: C.
    """

    def __init__(self, dim: int, inner: int, classes: int) -> None:
        super().__init__()
        self.projector, self.out_proj = nn.Linear(dim, inner), nn.Linear(inner, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., C)."""
        logits: Tensor = self.out_proj(self.projector(x))
        return logits


class ForAudioClassification(MixedTask[A]):
    """One of C classes, several of them, or C numbers for each recording; its config has ``classifier_proj_size``."""

    names = Names({**MixedTask.names.table, "projector": "head.projector", "classifier": "head.out_proj"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.refuse_adapter()
        self.head = ProjectedClassifier(self.model.dim, config.classifier_proj_size, config.num_labels)

    def forward(
        self,
        input_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[AudioInputs],
    ) -> LogitsOutput:
        """Classify recordings by the mean of their states.

        Args:
            input_values: (B, S).
            attention_mask: (B, S), 1 for real samples, which come first in each row.
            labels: (B) integers, (B, C) for several labels at once, numbers for regression; see ``problem_type``.
            num_items_in_batch: items of the whole batch, where this is a micro-batch.

        Returns:
            ``logits`` (B, C), and ``loss`` where there are labels.
        """
        output, hidden = self.states(input_values, attention_mask, inputs)
        real = None if attention_mask is None else self.model.state_mask(attention_mask, hidden.shape[1])
        logits = self.head(pool.mean(hidden, real))
        terms = None
        if labels is not None:
            terms = {"classification": sequence_classification(logits, labels, self.config.problem_type)}
        return self.answer(LogitsOutput(logits=logits), output, terms, num_items_in_batch, return_dict)


class ForAudioFrameClassification(MixedTask[A]):
    """One of C classes for each frame."""

    names = Names({**MixedTask.names.table, "classifier": "head.out_proj"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.refuse_adapter()
        self.head = Classifier(self.model.dim, config.num_labels)

    def forward(
        self,
        input_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[AudioInputs],
    ) -> LogitsOutput:
        """Classify frames.

        Args:
            input_values: (B, S).
            attention_mask: (B, S), 1 for real samples, which come first in each row.
            labels: (B, T, C), of which the largest tells the class, or (B, T) integers with -100 for ignored frames.
            num_items_in_batch: labelled frames of the whole batch, where this is a micro-batch.

        Returns:
            ``logits`` (B, T, C), and ``loss`` where there are labels.
        """
        output, hidden = self.states(input_values, attention_mask, inputs)
        logits = self.head(hidden)
        terms = None
        if labels is not None:
            chosen = labels.argmax(dim=-1) if labels.ndim == 3 else labels
            terms = {"classification": cross_entropy(logits, chosen)}
        return self.answer(LogitsOutput(logits=logits), output, terms, num_items_in_batch, return_dict)


class XVectorHead(nn.Module):
    """Time-delay layers, statistics over time, and two linear layers (Snyder et al. 2018).

    Args:
        dim: D.
        channels: of the time-delay layers; the first is the size they begin with.
        kernels, dilations: of the time-delay layers.
        size: E.
    """

    def __init__(self, dim: int, channels: list[int], kernels: list[int], dilations: list[int], size: int) -> None:
        super().__init__()
        self.projector = nn.Linear(dim, channels[0])
        pairs = zip((channels[0], *channels[:-1]), channels, strict=True)
        self.tdnn = nn.ModuleList(TimeDelay(*each) for each in zip(pairs, kernels, dilations, strict=True))
        self.embedding, self.classifier = nn.Linear(2 * channels[-1], size), nn.Linear(size, size)
        # What a layer takes off the number of positions. The reference forgets dilation where it counts real ones, so
        # that a few padded ones take part in the statistics; the models were trained with that.
        self.lost = sum(kernel - 1 for kernel in kernels)
        self.needed = 1 + sum((kernel - 1) * dilation for kernel, dilation in zip(kernels, dilations, strict=True))

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, D), of which the first ``lengths`` (B) are real, -> embeddings and logits (B, E).

        Raises:
            InputError: fewer positions than one output of the time-delay layers needs.
        """
        if x.shape[1] < self.needed:
            raise InputError(
                f"the recordings have {x.shape[1]} frames, but speaker embeddings need at least {self.needed}.",
                hint="Pad them with zeros, or leave them out.",
            )
        x = self.projector(x).transpose(1, 2)
        for layer in self.tdnn:
            x = layer(x)
        if lengths is not None:
            lengths = (lengths - self.lost).clamp(min=1, max=x.shape[2])
        embeddings = self.embedding(pool.mean_and_deviation(x, lengths))
        return embeddings, self.classifier(embeddings)


class MarginObjective(nn.Module):
    """A direction for each class, for the additive-margin softmax.

    Args:
        size: E.
        classes: C.
    """

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """From the standard normal distribution."""
        nn.init.normal_(self.weight)

    def forward(self, embeddings: Tensor, labels: Tensor) -> LossTerm:
        """(B, E) and (B) -> the loss."""
        return additive_margin(embeddings, self.weight, labels)


class ForXVector(MixedTask[A]):
    """Embeddings of speakers (x-vectors, Snyder et al. 2018).

    Its config has ``tdnn_dim``, ``tdnn_kernel``, ``tdnn_dilation`` and ``xvector_output_dim``.
    """

    names = Names(
        {
            **MixedTask.names.table,
            "projector": "head.projector",
            "tdnn": "head.tdnn",
            # Not the whole path, since a backbone without its prefix may have `feature_extractor.conv_layers`.
            "feature_extractor.weight": "head.embedding.weight",
            "feature_extractor.bias": "head.embedding.bias",
            "classifier": "head.classifier",
            "objective": "objective",
        }
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        c = config
        self.head = XVectorHead(self.model.dim, c.tdnn_dim, c.tdnn_kernel, c.tdnn_dilation, c.xvector_output_dim)
        self.objective = MarginObjective(c.xvector_output_dim, c.num_labels)

    def forward(
        self,
        input_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Items | None = None,
        return_dict: bool | None = None,
        **inputs: Unpack[AudioInputs],
    ) -> XVectorOutput:
        """Embed speakers.

        Args:
            input_values: (B, S).
            attention_mask: (B, S), 1 for real samples, which come first in each row.
            labels: (B), which speaker it is.
            num_items_in_batch: rows of the whole batch, where this is a micro-batch.

        Returns:
            ``embeddings`` and ``logits`` (B, E), and ``loss`` where there are labels.
        """
        output, hidden = self.states(input_values, attention_mask, inputs)
        lengths = None if attention_mask is None else self.model.state_lengths((attention_mask != 0).sum(dim=1))
        embeddings, logits = self.head(hidden, lengths)
        terms = None if labels is None else {"speaker": self.objective(logits, labels)}
        return self.answer(XVectorOutput(logits=logits, embeddings=embeddings), output, terms, num_items_in_batch, return_dict)
