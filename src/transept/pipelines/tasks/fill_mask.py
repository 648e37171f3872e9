"""Texts with masks to the tokens that fit behind them (Devlin et al. 2019)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from transept.core.auto import AutoModelForMaskedLM
from transept.errors import InputError, TranseptWarning
from transept.pipelines.base import count, to_numpy
from transept.pipelines.batching import Sample
from transept.pipelines.text import TextOptions, TextPipeline


class FillMaskOptions(TextOptions):
    """Options of ``fill-mask``; those of :class:`TextOptions` may come in a mapping ``tokenizer_kwargs``, too.

    Args:
        top_k: how many tokens to name for each mask, the best first.
        targets: tokens to choose from, in place of the whole vocabulary; scores stay those among all tokens.
    """

    top_k: int = count(5)
    targets: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = [self.targets] if isinstance(self.targets, str) else self.targets
        listed = isinstance(wanted, list | tuple) and wanted and all(isinstance(target, str) for target in wanted)
        if wanted is not None and not listed:
            raise InputError(f"`targets` must be a token or a list of tokens, but is {str(self.targets)[:80]!r}.")


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
        self._targets: tuple[Any, Tensor | None] = (None, None)

    def check_options(self, options: Any) -> None:
        self.target_ids(options.targets)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        found = super().__call__(inputs, **options)
        return found[0] if isinstance(inputs, list) and len(inputs) == 1 else found

    def rows(self, encoded: Any, options: Any) -> list[Sample]:
        if self.mask not in encoded.inputs["input_ids"]:
            raise InputError(f"the text has no mask, which is written {self.tokenizer.mask_token!r}.")
        return super().rows(encoded, options)

    def forward(self, samples: Sequence[Sample], options: Any) -> Sequence[list[tuple[list[float], list[int]]]]:
        """Scores and ids of the best tokens for each mask of each row. Logits are computed for masks alone."""
        batch, head = self.collate(samples), self.model.lm_head
        states = self.run(batch, self.model.backbone).last_hidden_state[batch["input_ids"] == self.mask]
        scores = torch.softmax(head(states).float(), dim=-1)
        targets = self.target_ids(options.targets)
        if targets is not None:
            scores = scores[:, targets.to(scores.device)]
        best, places = scores.topk(min(options.top_k, scores.shape[-1]))
        ids = places if targets is None else targets.to(places.device)[places]
        found = iter(zip(to_numpy(best).tolist(), ids.tolist(), strict=True))
        return [[next(found) for _ in range(sample.inputs["input_ids"].count(self.mask))] for sample in samples]

    def target_ids(self, targets: str | Sequence[str] | None) -> Tensor | None:
        """Ids of the tokens to choose from; a text that is no token stands for the first of its tokens, with a warning.

        Raises:
            InputError: none of them has an id.
        """
        if targets is None:
            return None
        wanted = (targets,) if isinstance(targets, str) else tuple(targets)
        known, ids = self._targets  # read once: another thread may ask for others
        if known == wanted:
            return ids
        vocabulary = self.tokenizer.get_vocab()
        firsts = [[vocabulary[target]] if target in vocabulary else self._first_token(target) for target in wanted]
        found = list(dict.fromkeys(index for tokens in firsts for index in tokens))
        if not found:
            raise InputError(f"none of the targets {str(targets)[:80]} is a token of the vocabulary.")
        ids = torch.tensor(found)
        self._targets = (wanted, ids)
        return ids

    def _first_token(self, target: str) -> list[int]:
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
