"""What a model says of each token: its state, what fits behind a mask (Devlin et al. 2019), or classes and their spans.

Models name classes ``B-X`` for tokens that begin a span of kind X and ``I-X`` for those that go on with it.

Shapes: T tokens, C classes, D hidden size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transept.core.auto import AutoModel, AutoModelForMaskedLM, AutoModelForTokenClassification
from transept.errors import InputError, TranseptWarning
from transept.pipelines.base import Options, TaskPipeline, choice, count, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.media import ImageOptions, ImagePipeline
from transept.pipelines.tasks.classification import label_of, scores
from transept.pipelines.text import TextOptions, TextPipeline, check_text, unexpected, unpadded, windows

STRATEGIES = ("none", "simple", "first", "average", "max")


class FeatureExtractionOptions(TextOptions):
    """Options of ``feature-extraction``; those of :class:`TextOptions` may come in a mapping ``tokenize_kwargs``, too.

    Args:
        return_tensors: answer with a tensor, and not with nested lists.
    """

    return_tensors: bool = False


class ImageFeatureOptions(ImageOptions):
    """Options of ``image-feature-extraction``.

    Args:
        return_tensors: answer with a tensor, and not with nested lists.
        pool: answer with the pooled state (1, D), and not with all states (1, T, D).
    """

    return_tensors: bool = False
    pool: bool = False


class StatesPipeline(TaskPipeline[Any]):
    """A task that answers with states (1, T, D) as nested lists or as a tensor."""

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        states = torch.as_tensor(results[0])[None]
        return states.clone() if options.return_tensors else states.tolist()


class FeatureExtractionPipeline(TextPipeline, StatesPipeline):
    """For a text of T tokens, the last states (1, T, D) as nested lists or as a tensor; special tokens are among them."""

    task, auto, options_class = "feature-extraction", AutoModel, FeatureExtractionOptions
    nested = "tokenize_kwargs"

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        return unpadded(to_numpy(self.run(self.collate(samples), self.model.body).last_hidden_state), samples)


class ImageFeatureExtractionPipeline(ImagePipeline, StatesPipeline):
    """For a picture, its states (1, T, D) or its pooled state (1, D) as nested lists or as a tensor."""

    task, auto, options_class = "image-feature-extraction", AutoModel, ImageFeatureOptions

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        """States (T, D), or the pooled state (D), of each row; an ``InputError`` where the model has no trained pooler."""
        output = self.run(self.collate(samples), self.model.body)
        found = output.pooler_output if options.pool else output.last_hidden_state
        if found is None:
            problem = f"`pool` is true, but this {type(self.model).__name__} has no trained pooler."
            raise InputError(problem, hint="Leave `pool` out.")
        return list(found.cpu())


class FillMaskOptions(TextOptions):
    """Options of ``fill-mask``; those of :class:`TextOptions` may come in a mapping ``tokenizer_kwargs``, too.

    Args:
        top_k: how many tokens to name for each mask, the best first.
        targets: tokens to choose from, in place of the whole vocabulary; scores stay those among all tokens.
    """

    top_k: int = count(5)
    targets: str | Sequence[str] | Tensor | None = None


class FillMaskPipeline(TextPipeline):
    """For a text with a mask, a list of ``{"score", "token", "token_str", "sequence"}``; for several masks, a list a mask.

    As the reference does, a list of one text is answered as that text alone is.
    """

    task, auto, options_class = "fill-mask", AutoModelForMaskedLM, FillMaskOptions
    nested = "tokenizer_kwargs"

    def check_model(self) -> None:
        super().check_model()
        self.mask = self.tokenizer.mask_token_id
        if self.mask is None:
            raise InputError("the tokenizer has no mask token.", hint="Use the tokenizer of a masked language model.")

    def with_options(self, given: Mapping[str, Any]) -> Any:
        """The options, of which targets are their ids from then on."""
        found = super().with_options(given)
        named = found.targets is not None and not isinstance(found.targets, Tensor)
        return replace(found, targets=self.target_ids(found.targets)) if named else found

    def __call__(self, inputs: Any = None, **options: Any) -> Any:
        found = super().__call__(inputs, **options)
        return found[0] if isinstance(inputs, list) and len(inputs) == 1 else found

    def rows(self, encoded: Any, options: Any) -> list[Sample]:
        if self.mask not in encoded.inputs["input_ids"]:
            raise InputError(f"the text has no mask, which is written {self.tokenizer.mask_token!r}.")
        return super().rows(encoded, options)

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[list[tuple[list[float], list[int]]]]:
        """Scores and ids of the best tokens for each mask of each row. Logits are computed for masks alone."""
        batch, head = self.collate(samples), self.model.lm_head
        states = self.run(batch, self.model.body).last_hidden_state[batch["input_ids"] == self.mask]
        chances, targets = torch.softmax(head(states).float(), dim=-1), options.targets
        chances = chances if targets is None else chances[:, targets.to(chances.device)]
        best, places = (found.cpu() for found in chances.topk(min(options.top_k, chances.shape[-1])))
        ids = places if targets is None else targets[places]
        found = iter(zip(to_numpy(best).tolist(), ids.tolist(), strict=True))
        return [[next(found) for _ in range(sample.inputs["input_ids"].count(self.mask))] for sample in samples]

    def target_ids(self, targets: str | Sequence[str]) -> Tensor:
        """Ids of the tokens to choose from; a text that is no token stands for the first of its tokens, with a warning.

        Raises:
            InputError: none of them has an id, or they are no texts.
        """
        wanted = [targets] if isinstance(targets, str) else targets
        if not isinstance(wanted, list | tuple) or not all(isinstance(target, str) for target in wanted):
            raise InputError(f"`targets` must be a token or a list of tokens, but is {str(targets)[:80]!r}.")
        found = list(dict.fromkeys(index for target in wanted for index in self._tokens_of(target)))
        if not found:
            raise InputError(f"none of the targets {str(targets)[:80]} is a token of the vocabulary.")
        return torch.tensor(found)

    def _tokens_of(self, target: str) -> list[int]:
        known = self.tokenizer.convert_tokens_to_ids(target)
        if known is not None and (known != self.tokenizer.unk_token_id or target == self.tokenizer.unk_token):
            return [known]
        ids: list[int] = self.tokenizer.encode_ids([target], add_special_tokens=False)[0][:1]
        instead = f"{self.tokenizer.convert_ids_to_tokens(ids[0])!r} stands for it" if ids else "it is left out"
        warnings.warn(f"the target {target!r} is no token of the vocabulary: {instead}.", TranseptWarning, stacklevel=2)
        return ids

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        ids: list[int] = samples[0].inputs["input_ids"]
        masks = [place for place, token in enumerate(ids) if token == self.mask]
        decode, pad, found = self.tokenizer.decode, self.tokenizer.pad_token_id, []
        for place, best in zip(masks, results[0], strict=True):
            found.append(proposals := list[dict[str, Any]]())
            for score, token in zip(*best, strict=True):
                chosen = [each for each in (*ids[:place], token, *ids[place + 1 :]) if each != pad]
                sequence = decode(chosen, skip_special_tokens=len(masks) == 1)  # other masks stay visible
                proposals.append({"score": score, "token": token, "token_str": decode([token]), "sequence": sequence})
        return found[0] if len(masks) == 1 else found


class TokenClassificationOptions(Options):
    """Options of ``token-classification``.

    Args:
        aggregation_strategy: ``none`` for the class of each token. ``simple`` joins neighbouring tokens of one kind into
            spans. The others first give all tokens of a word one class: that of its ``first`` token, that of its token
            with the highest (``max``) score, or the best of the ``average`` scores.
        ignore_labels: classes that are left out.
        stride: tokens that two windows share, where a text longer than the model takes is read in windows. Without it
            such a text is cut, with a warning.
        is_split_into_words: inputs are lists of words; spans are places in the words joined by ``delimiter``.
        delimiter: what stands between words.
    """

    aggregation_strategy: str = choice(*STRATEGIES)
    ignore_labels: Sequence[str] = ("O",)
    stride: int | None = count(least=0)
    is_split_into_words: bool = False
    delimiter: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.aggregation_strategy == "none":
            problem = "`stride` reads a text in windows, whose shared tokens only a strategy can join."
            raise InputError(problem, hint='Pass aggregation_strategy="simple", or another one.')
        if isinstance(self.ignore_labels, str):
            raise InputError(f"`ignore_labels` must be a list of labels, but is {self.ignore_labels!r}.")


class TokenClassificationPipeline(TextPipeline):
    """For a text, a list of ``{"entity", "score", "index", "word", "start", "end"}``, one a token.

    With a strategy, ``entity_group`` in place of ``entity`` and ``index``, one a span.
    """

    task, auto, options_class = "token-classification", AutoModelForTokenClassification, TokenClassificationOptions

    def __call__(self, inputs: Any = None, **options: Any) -> Any:
        """As of every pipeline; a single list of words is a list of one input, as for the reference."""
        split = options.get("is_split_into_words", self.options.is_split_into_words)
        words = split and isinstance(inputs, list | tuple) and all(isinstance(word, str) for word in inputs)
        return super().__call__([inputs] if words else inputs, **options)

    def read(self, item: Any, options: Any) -> Sequence[Any]:
        if not options.is_split_into_words:
            return super().read(item, options)
        if not isinstance(item, list | tuple):
            raise unexpected("a list of words was", item)
        return [([check_text(word) for word in item], None)]

    def encode(self, texts: Sequence[Any], options: Any) -> Sequence[Sample]:
        return self.tokens([text for text, _ in texts], is_split_into_words=options.is_split_into_words)

    def rows(self, encoded: Any, options: Any) -> list[Sample]:
        found = windows(encoded, 0, self.max_length, options.stride or 0)
        if options.stride is None and len(found) > 1:
            note = f"a text of {len(encoded)} tokens is cut to the {self.max_length} that the model takes."
            warnings.warn(f"{note} Pass stride=... to read it in windows.", TranseptWarning, stacklevel=2)
        return found if options.stride is not None else found[:1]

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[Any]:
        """Logits (T, C) of each row."""
        return unpadded(to_numpy(self.run(self.collate(samples)).logits), samples)

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Any) -> Any:
        text, starts = item, None
        if options.is_split_into_words:
            between = " " if options.delimiter is None else options.delimiter
            text, starts = between.join(item), [0, *accumulate(len(word) + len(between) for word in item)]
        found: list[dict[str, Any]] = []
        for sample, logits in zip(samples, results, strict=True):
            read = self.placed(sample, scores(logits, "softmax"), text, starts)
            entities = self.entities(read, options.aggregation_strategy)
            found += (e for e in entities if e.get("entity", e.get("entity_group")) not in options.ignore_labels)
        return without_overlap(found) if len(samples) > 1 else found

    def placed(
        self, sample: Sample, found: NDArray[np.float32], text: str, starts: Sequence[int] | None
    ) -> list[dict[str, Any]]:
        """The tokens of one window that are not special: as written in the vocabulary, their places, their scores (C), and
        whether each goes on with the word of the one before it.
        """
        prefix = getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None)
        made, row = [], sample.inputs
        tokens = zip(row["input_ids"], row["offset_mapping"], row["sequences"], row["words"], found, strict=True)
        for place, (index, (start, end), sequence, word, values) in enumerate(tokens):
            if sequence is None:
                continue
            if starts is not None and word is not None:
                start, end = start + starts[word], end + starts[word]
            word = self.tokenizer.convert_ids_to_tokens(index)
            # Vocabularies that do not mark where words go on have words where there are spaces.
            goes_on = word.startswith(prefix) if prefix else start > 0 and " " not in text[start - 1 : start + 1]
            if index == self.tokenizer.unk_token_id:
                word, goes_on = text[start:end], False
            token = {"index": place, "word": word, "start": start, "end": end}
            made.append(token | {"scores": values, "goes_on": goes_on})
        return made

    def entities(self, read: Sequence[dict[str, Any]], strategy: str) -> list[dict[str, Any]]:
        if strategy in ("first", "average", "max"):
            read = [self._word(word, strategy) for word in grouped(read, lambda _, token: token["goes_on"])]
        single = []
        for token in read:
            best, places = int(token["scores"].argmax()), {name: token[name] for name in ("index", "word", "start", "end")}
            single.append({"entity": label_of(self.model.config, best), "score": float(token["scores"][best]), **places})
        return single if strategy == "none" else self.spans(single)

    def _word(self, word: Sequence[dict[str, Any]], strategy: str) -> dict[str, Any]:
        """All tokens of a word as one, with the scores that the strategy says."""
        rows = [token["scores"] for token in word]
        found = np.mean(rows, axis=0) if strategy == "average" else max(rows, key=np.max) if strategy == "max" else rows[0]
        text = self.tokenizer.convert_tokens_to_string([token["word"] for token in word])
        return word[0] | {"word": text, "scores": found, "end": word[-1]["end"]}

    def spans(self, entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Join neighbours of one kind; one that begins a span is never joined to those before it."""

        def goes_on(last: dict[str, Any], one: dict[str, Any]) -> bool:
            kinds = {label[2:] if label.startswith(("B-", "I-")) else label for label in (last["entity"], one["entity"])}
            return len(kinds) == 1 and not one["entity"].startswith("B-")

        found = []
        for group in grouped(entities, goes_on):
            word = self.tokenizer.convert_tokens_to_string([entity["word"] for entity in group])
            score = float(np.mean([entity["score"] for entity in group]))
            named = {"entity_group": group[0]["entity"].split("-", 1)[-1], "score": score, "word": word}
            found.append(named | {"start": group[0]["start"], "end": group[-1]["end"]})
        return found


def grouped(items: Sequence[Any], goes_on: Callable[[Any, Any], bool]) -> list[list[Any]]:
    """Neighbours together, where one goes on with the one before it."""
    groups: list[list[Any]] = []
    for item in items:
        if not groups or not goes_on(groups[-1][-1], item):
            groups.append([])
        groups[-1].append(item)
    return groups


def without_overlap(entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of spans that overlap, as those of two windows do, keep the longest, or of two alike the surer one."""
    kept: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        if not kept or entity["start"] >= kept[-1]["end"]:
            kept.append(entity)
        else:
            kept[-1] = max(kept[-1], entity, key=lambda one: (one["end"] - one["start"], one["score"]))
    return kept
