"""Tasks over audio: transcription, in many languages by one model too, classes of recordings and of frames, and who speaks.

Shapes: B batch, S samples, T states, L layers, D hidden size, C classes, V vocabulary, E size of speaker embeddings.
A mask (B, S) has 1 for real samples, which come first in each row.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.checkpoint.store import TensorStore
from transept.config.model import Config
from transept.errors import CheckpointError, ConfigError, InputError, nearest
from transept.heads.classify import Classifier
from transept.heads.task import Task
from transept.kinds.audio import AudioBackbone, SoundBackbone
from transept.layers import pool
from transept.layers.conv import TimeDelay
from transept.layers.links import Linked
from transept.objectives.classification import additive_margin, counted, cross_entropy
from transept.objectives.ctc import ctc
from transept.objectives.terms import LossTerm
from transept.outputs import AudioOutput, LogitsOutput, ModelOutput, XVectorOutput
from transept.storage.source import OPTIONS, Source, take_source_options

A = TypeVar("A", bound=AudioBackbone)
Sound = TypeVar("Sound", bound=SoundBackbone)
# What backbones call their layers for languages where they tell which weights may be new.
_LAYERS = "backbone.layers.*.adapter*"
ADAPTER_FILE = "adapter.{}.safetensors"  # the weights of a language
_LANGUAGE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class AudioTask(Task[Sound]):
    """A task over sound."""

    omits = ("mask_time_indices",)
    output_class: ClassVar[type[ModelOutput]] = LogitsOutput

    def freeze_feature_encoder(self) -> None:
        """Keep the backbone's convolutions as they are while training."""
        self.backbone.freeze_feature_encoder()

    def freeze_base_model(self) -> None:
        """Train the head only."""
        self.backbone.requires_grad_(False)

    def refuse_adapter(self) -> None:
        """Refuse an adapter (``ConfigError``), for heads that read the layers' own states."""
        if self.backbone.adapted:
            raise ConfigError(f"{type(self).__name__} cannot have an adapter.", hint="Set add_adapter=False.")


class ForCTC(AudioTask[A]):
    """Transcription by connectionist temporal classification (Graves et al. 2006): ``logits`` (B, T, V).

    ``labels`` are (B, number of labels), of which -100 and the blank are ignored. The config has ``vocab_size``,
    ``pad_token_id`` (the blank), ``ctc_loss_reduction`` and ``ctc_zero_infinity``. ``num_items_in_batch`` counts rows; sums are
    divided by nothing.
    """

    names = Names({"lm_head": "lm_head"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.vocab_size is None:
            raise ConfigError(f"{type(self).__name__} needs `vocab_size`.", hint="Pass vocab_size=len(tokenizer).")
        self.dropout = nn.Dropout(self.backbone.head_dropout())
        self.lm_head = nn.Linear(self.backbone.dim, config.vocab_size)

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.lm_head

    def predict(self, states: AudioOutput, inputs: dict[str, Any]) -> ModelOutput:
        return LogitsOutput(logits=self.lm_head(self.dropout(states.last_hidden_state)))

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        c, mask, (rows, samples) = self.config, inputs.get("attention_mask"), inputs["input_values"].shape
        full = torch.full((rows,), samples, device=logits.device)
        frames = self.backbone.state_lengths(full if mask is None else (mask != 0).sum(dim=1).to(logits.device))
        options = {"reduction": c.ctc_loss_reduction, "zero_infinity": c.ctc_zero_infinity}
        return {"ctc": ctc(logits, labels, frames, blank=c.pad_token_id, **options)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"ctc": torch.tensor(len(labels), device=labels.device)}


class ForMultilingualCTC(ForCTC[A]):
    """Transcription whose head, and small layers inside the backbone, can be exchanged for those of another language.

    A checkpoint holds one language; beside it, ``adapter.<language>.safetensors`` holds those weights for each.
    ``from_pretrained`` loads ``target_lang`` where that is given.
    """

    def __init__(self, config: Config, target_lang: str | None = None) -> None:
        super().__init__(config)
        self.target_lang = target_lang
        self.source: Source | None = None
        if target_lang is not None:
            self._check_language(target_lang)

    def loaded(self, source: Source) -> None:
        super().loaded(source)
        self.source = source
        if self.target_lang is not None:
            self.load_adapter(self.target_lang)
        self.source = replace(source, token=None, force_download=False)  # a copy of the model is no place for a token

    def load_adapter(self, target_lang: str, force_load: bool = True, **options: Any) -> None:
        """Exchange the weights of the language, the head's among them; the vocabulary may change its size.

        The tokenizer's part is ``tokenizer.set_target_lang(target_lang)``.

        Args:
            target_lang: such as ``"fra"`` or ``"azj-script_latin"``.
            force_load: load also what was loaded last.
            options: where to look, in place of how the model was loaded (see :class:`transept.storage.source.Source`).

        Raises:
            InputError: a model without such layers or not from a checkpoint, or no name of a language.
            FileError: there is no file for the language.
            CheckpointError: its weights and the model do not fit; lists every name.
        """
        self._check_language(target_lang)
        if target_lang == self.target_lang and not force_load:
            return
        if self.source is None:
            what = "the model was not loaded from a checkpoint, beside which the files of languages are."
            raise InputError(what, hint="Use from_pretrained.")
        hub = take_source_options(options)
        for name in options:
            raise InputError(f"load_adapter has no option {name!r}.", hint=nearest(name, OPTIONS))
        store = TensorStore([_file(replace(self.source, **hub), target_lang)])
        names = self._matched(store)
        rows = store["lm_head.weight"].shape[0]
        if rows != self.lm_head.out_features:
            head = nn.Linear(self.lm_head.in_features, rows, device=self.device, dtype=self.dtype)
            self.lm_head = head.train(self.training)
            self.config.vocab_size = rows
        self.load_state_dict({name: store[stored] for stored, name in names.items()}, strict=False)
        self.target_lang = target_lang

    def init_adapter_layers(self) -> None:
        """Initialise the weights of the language anew."""
        self.initialize(self._adapted())

    def _get_adapters(self) -> dict[str, nn.Parameter]:
        """The weights of the language by name, as a program of the reference asks for them to save them."""
        names = set(self._adapted())
        return {name: parameter for name, parameter in self.named_parameters() if name in names}

    def _adapted(self) -> list[str]:
        names = self.checkpoint_names()
        return [name for name in self.state_dict() if names.group(name) in ("lm_head", _LAYERS)]

    def _check_language(self, target_lang: object) -> None:
        names = self.checkpoint_names()
        if all(names.group(name) != _LAYERS for name in self.state_dict()):
            what = f"`target_lang` is {target_lang!r:.80}, but the model has no layers for languages."
            raise InputError(what, hint="Its config sets `adapter_attn_dim` where there are some.")
        if not isinstance(target_lang, str) or not _LANGUAGE.fullmatch(target_lang):
            raise InputError(f"`target_lang` must be the name of a language such as 'fra', but is {target_lang!r:.80}.")

    def _matched(self, store: TensorStore) -> dict[str, str]:
        """The names of a language's weights, stored -> ours, which must fit but for the head's number of rows."""
        own, keys = self.state_dict(), self.checkpoint_names().keys
        names = {keys.recipe(name).stored: name for name in self._adapted()}
        missing, unexpected, head = names.keys() - store.keys(), store.keys() - names.keys(), store.get("lm_head.weight")
        mismatched = []
        for stored in sorted(names.keys() - missing):
            like = own[names[stored]]
            rows = like if head is None or not names[stored].startswith("lm_head.") else head
            if store[stored].shape != rows.shape[:1] + like.shape[1:]:
                mismatched.append(stored)
        wrong = {"missing": sorted(missing), "unexpected": sorted(unexpected), "mismatched": mismatched}
        if any(wrong.values()):
            said = "; ".join(f"{kind}: {', '.join(some)}" for kind, some in wrong.items() if some)
            what = f"does not hold the weights of a language for this {type(self).__name__} ({said})."
            raise CheckpointError(what, path=store.files[0], **wrong)
        return names


def _file(source: Source, target_lang: str) -> Path:
    name = ADAPTER_FILE.format(target_lang)
    if (path := source.find(name)) is not None:
        return path
    names = [] if source.directory is None else [path.name for path in source.directory.glob(ADAPTER_FILE.format("*"))]
    hint = nearest(target_lang, (name.split(".")[1] for name in names)) if names else None
    raise source.missing(name, hint=hint)


class MixedTask(AudioTask[Sound]):
    """A task over the last layer's states or, with ``use_weighted_layer_sum``, a learned mean of all (Peters et al. 2018)."""

    names = Names({"layer_weights": "mix"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.mix = nn.Parameter(torch.empty(len(self.backbone.layers) + 1)) if config.use_weighted_layer_sum else None
        if self.mix is not None:
            self.refuse_adapter()

    def reset_parameters(self) -> None:
        if self.mix is not None:
            nn.init.constant_(self.mix, 1 / len(self.mix))

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        more = {} if self.mix is None else {"output_hidden_states": True}
        return self.mixed(super().encode(inputs | more, labels), inputs)

    def mixed(self, output: Any, inputs: dict[str, Any]) -> Any:
        """A backbone's output whose last states are the mean of all, where there is one."""
        if self.mix is None:
            return output
        if output.hidden_states is None:
            raise InputError("a mean of all layers needs their states.", hint="Encode with output_hidden_states=True.")
        shares = self.mix.softmax(dim=0).unbind()
        mixed = [share * state for share, state in zip(shares, output.hidden_states, strict=True)]
        output["last_hidden_state"] = torch.stack(mixed).sum(dim=0)
        shown = inputs.get("output_hidden_states")
        if not (self.config.output_hidden_states if shown is None else shown):
            output["hidden_states"] = None
        return output


class ProjectedClassifier(Linked):
    """Two linear layers, (..., D) -> (..., C)."""

    def __init__(self, dim: int, inner: int, classes: int) -> None:
        super().__init__()
        self.projector, self.out_proj = nn.Linear(dim, inner), nn.Linear(inner, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out_proj(self.projector(x))
        return logits


class ForAudioClassification(MixedTask[Sound]):
    """One of C classes, several of them, or C numbers for each recording, by the mean of its states: ``logits`` (B, C).

    ``labels`` are (B) integers, (B, C) for several labels at once, or numbers for regression; see ``problem_type``. The config
    has ``classifier_proj_size``, the size between the two layers of the head.
    """

    names = Names({**MixedTask.names.table, "projector": "head.projector", "classifier": "head.out_proj"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.refuse_adapter()
        size = config.classifier_proj_size
        self.head = ProjectedClassifier(self.backbone.dim, size, config.num_labels)

    def predict(self, states: AudioOutput, inputs: dict[str, Any]) -> ModelOutput:
        hidden, mask = states.last_hidden_state, inputs.get("attention_mask")
        real = None if mask is None else self.backbone.state_mask(mask, hidden.shape[1])
        return LogitsOutput(logits=self.head(pool.mean(hidden, real)))


class ForAudioFrameClassification(MixedTask[A]):
    """One of C classes for each frame: ``logits`` (B, T, C).

    ``labels`` are (B, T, C), of which the largest tells the class, or (B, T) integers with -100 for ignored frames.
    """

    names = Names({**MixedTask.names.table, "classifier": "head.out_proj"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.refuse_adapter()
        self.head = Classifier(self.backbone.dim, config.num_labels)

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"classification": cross_entropy(logits, labels.argmax(dim=-1) if labels.ndim == 3 else labels)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"classification": counted(labels.argmax(dim=-1) if labels.ndim == 3 else labels)}


class XVectorHead(Linked):
    """Time-delay layers, the first of which begins with its own size, statistics over time, and two linear layers."""

    def __init__(self, dim: int, channels: list[int], kernels: list[int], dilations: list[int], size: int) -> None:
        super().__init__()
        self.projector = nn.Linear(dim, channels[0])
        pairs = zip((channels[0], *channels[:-1]), channels, strict=True)
        self.tdnn = nn.ModuleList(TimeDelay(*each) for each in zip(pairs, kernels, dilations, strict=True))
        self.embedding, self.classifier = nn.Linear(2 * channels[-1], size), nn.Linear(size, size)
        # The reference forgets dilation where it counts real positions, and the models were trained with that.
        self.lost = sum(kernel - 1 for kernel in kernels)
        self.needed = 1 + sum((kernel - 1) * dilation for kernel, dilation in zip(kernels, dilations, strict=True))

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, D), of which the first ``lengths`` (B) are real, -> embeddings and logits (B, E)."""
        if x.shape[1] < self.needed:
            short = f"the recordings have {x.shape[1]} frames, but speaker embeddings need at least {self.needed}."
            raise InputError(short, hint="Pad them with zeros, or leave them out.")
        x = self.projector(x).transpose(1, 2)
        for layer in self.tdnn:
            x = layer(x)
        if lengths is not None:
            lengths = (lengths - self.lost).clamp(min=1, max=x.shape[2])
        embeddings = self.embedding(pool.mean_and_deviation(x, lengths))
        return embeddings, self.classifier(embeddings)


class ForXVector(MixedTask[A]):
    """Who speaks: ``embeddings`` of speakers and ``logits`` (B, E) (x-vectors, Snyder et al. 2018); ``labels`` (B).

    Its config has ``tdnn_dim``, ``tdnn_kernel``, ``tdnn_dilation`` and ``xvector_output_dim``.
    """

    names = Names(
        {
            **MixedTask.names.table,
            "projector": "head.projector",
            "tdnn": "head.tdnn",
            "feature_extractor": "head.embedding",
            "classifier": "head.classifier",
            "objective.weight": "speakers",
        }
    )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        c = config
        self.head = XVectorHead(self.backbone.dim, c.tdnn_dim, c.tdnn_kernel, c.tdnn_dilation, c.xvector_output_dim)
        self.speakers = nn.Parameter(torch.empty(c.xvector_output_dim, c.num_labels))  # a direction for each

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.speakers)

    def predict(self, states: AudioOutput, inputs: dict[str, Any]) -> ModelOutput:
        mask = inputs.get("attention_mask")
        lengths = None if mask is None else self.backbone.state_lengths((mask != 0).sum(dim=1))
        embeddings, logits = self.head(states.last_hidden_state, lengths)
        return XVectorOutput(logits=logits, embeddings=embeddings)

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"speaker": additive_margin(logits, self.speakers, labels)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"speaker": counted(labels)}
