"""Assisted generation: something cheap guesses several tokens, and the model checks them all in one step.

What is written is what the model alone would write (Leviathan et al. 2023): a guess counts only where the model chooses the
same. Guesses come from a smaller model, or from the text itself (prompt lookup; Saxena 2023). One row at a time.

Shapes: T ids so far, K guesses, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, UnsupportedError
from transept.generation.config import GenerationConfig
from transept.generation.decoding import Choice, Decoding, Processors, Step, Stopping
from transept.generation.prompt import Prompt, model_backbone, vocabulary_size
from transept.layers.cache import Cache
from transept.layers.state import StateCache
from transept.outputs import ModelOutput

# (ids (1, T), most) -> guesses (1, K), K <= most, perhaps 0
Guess = Callable[[Tensor, int], Tensor]


def make_guess(model: Any, prompt: Prompt, settings: GenerationConfig, more: dict[str, Any]) -> Guess:
    """What guesses for a model: a draft model where ``more`` has one, by its own settings, else the text itself.

    Raises:
        InputError: a draft model or a cache that does not fit.
    """
    if settings.use_cache is not False:
        _check_cache(model, prompt.cache)
    assistant = more.get("assistant_model")
    if assistant is None:
        return PromptLookup(settings.prompt_lookup_num_tokens or 1, settings.max_matching_ngram_size or 2)
    if settings.assistant_ensemble_weight is not None:
        raise UnsupportedError(
            "`assistant_ensemble_weight` lets a draft model change what is written, which is not here.",
            hint="Leave it out: guesses then count only where the model chooses the same.",
        )
    _check_cache(assistant, None)
    theirs, ours = more.get("assistant_tokenizer"), more.get("tokenizer")
    foreign = theirs is not None and ours is not None
    own = GenerationConfig()
    own.fill(assistant.generation_config)
    begin = Prompt(prompt.ids, None if foreign else prompt.mask, inputs=_draft_inputs(model, assistant, prompt))
    most, confidence = own.num_assistant_tokens or 1, own.assistant_confidence_threshold or 0.0
    draft = Draft(assistant, begin, most, confidence, steady=own.num_assistant_tokens_schedule == "constant")
    if foreign:
        return ForeignDraft(draft, theirs, ours)
    sizes = vocabulary_size(assistant), vocabulary_size(model)
    if sizes[0] != sizes[1]:
        raise InputError(
            f"the draft model's vocabulary has {sizes[0]} tokens, but the model's has {sizes[1]}.",
            hint="Pass `tokenizer` and `assistant_tokenizer`, so that guesses are carried over as text.",
        )
    return draft


def _check_cache(model: Any, cache: Cache | None) -> None:
    """Refuse caches that cannot take back what was read."""
    kind = getattr(model_backbone(model), "cache_class", Cache) if cache is None else type(cache)
    if issubclass(kind, StateCache):
        raise InputError(
            f"assisted generation takes wrong guesses back, but the states that {type(model).__name__} keeps sum up all that "
            "was read.",
            hint="Leave `assistant_model` and `prompt_lookup_num_tokens` out, or use a model that keeps keys and values.",
        )


def _draft_inputs(model: Any, assistant: Any, prompt: Prompt) -> dict[str, Any]:
    """What a draft model reads beside the text: the states of its own encoder, or else the model's."""
    name, encodes = f"the draft model {type(assistant).__name__}", model.config.is_encoder_decoder
    if not assistant.config.is_encoder_decoder:
        if encodes:
            hint = "Pass another encoder–decoder as `assistant_model`."
            raise InputError(f"{name} has no encoder, but {type(model).__name__} has one.", hint=hint)
        return {}
    if not encodes or prompt.source is None:
        hint = "Pass `input_ids` to an encoder–decoder, or a draft model that only decodes."
        raise InputError(f"{name} has an encoder, but there are no ids for it to read.", hint=hint)
    given = {name: prompt.inputs[name] for name in ("attention_mask",) if name in prompt.inputs}
    return given | {"encoder_outputs": assistant.get_encoder()(prompt.source, **given, return_dict=True)}


def write_assisted(
    decoding: Decoding, processors: Processors, stopping: Stopping, choose: Choice, guess: Guess, *, longest: int
) -> Iterator[Step]:
    """Write until the row is done, with as many tokens a step of the model as guesses were right, and one more.

    Raises:
        InputError: several rows.
    """
    if decoding.rows > 1:
        raise InputError(f"assisted generation writes one row, but there are {decoding.rows}.", hint="Pass prompts one by one.")
    row, end, done = decoding.numbers, decoding.length + longest, torch.zeros(1, dtype=torch.bool)
    while not done:
        start = decoding.length
        guesses = guess(decoding.ids, end - start - 1)
        decoding.append(guesses)
        checked, outputs = decoding.last(guesses.shape[1] + 1), decoding.outputs
        for place, logits in enumerate(checked.unbind(dim=1)):
            scores = processors(decoding.buffer[:, : start + place], logits)
            token = choose(scores, row)
            right = place < guesses.shape[1] and bool(token == guesses[:, place])
            if not right:
                decoding.crop(start + place)
                decoding.append(token)
            if done := stopping(decoding.buffer[:, : start + place + 1]):
                decoding.crop(start + place + 1)
            if decoding.extra and outputs is not None:
                decoding.outputs = _part(outputs, place, checked.shape[1])
            yield Step(row, token, done, logits, scores)
            if done or not right:
                break


def _part(outputs: ModelOutput, place: int, count: int) -> ModelOutput:
    """What a call for several tokens shows of one of the last ``count``; the first has what stood before it, too."""
    parts: dict[str, Any] = {}
    for name, layers in outputs.items():
        if not name.endswith(("hidden_states", "attentions")) or name.startswith("encoder"):
            continue
        read = layers[0].shape[-2]
        first, last = (0 if place == 0 else read - count + place), read - count + place + 1
        parts[name] = tuple(layer[..., first:last, :] for layer in layers)
        if name.endswith("attentions") and not name.startswith("cross"):
            seen = layers[0].shape[-1] - count + place + 1
            parts[name] = tuple(layer[..., :seen] for layer in parts[name])
    return type(outputs)(**parts)


class PromptLookup:
    """Guesses that the text will go on as it did where its last tokens stood before: ``most`` guesses at a time.

    It looks for the ``longest`` number of tokens first, and for fewer where those are not found.
    """

    def __init__(self, most: int, longest: int = 2) -> None:
        self.most, self.longest = most, longest

    def __call__(self, ids: Tensor, most: int) -> Tensor:
        length = ids.shape[1]
        for size in range(min(self.longest, length - 1), 0, -1):
            windows = ids[0].unfold(0, size, 1)[:-1]  # all but the end itself
            places = (windows == ids[0, -size:]).all(dim=1).nonzero()[:, 0]
            if places.numel():
                begin = int(places[0]) + size
                return ids[:, begin : begin + min(self.most, most)]
        return ids[:, :0]


class Draft:
    """Guesses of a smaller model with the same vocabulary.

    Args:
        model: it.
        prompt: what it begins with; only the first call's ids count.
        most: guesses at a time.
        confidence: stop guessing where the model gives its choice less than this chance.
        steady: always guess so many; else two more after a call whose guesses all were right, and one less after others.
    """

    def __init__(self, model: Any, prompt: Prompt, most: int, confidence: float, steady: bool = True) -> None:
        self.model, self.prompt, self.most, self.confidence, self.steady = model, prompt, most, confidence, steady
        self.table: int | None = getattr(model_backbone(model), "max_positions", None)
        self.decoding: Decoding | None = None

    def __call__(self, ids: Tensor, most: int) -> Tensor:
        """Its most likely continuation; what it has read of the text stays read."""
        length = ids.shape[1]
        room = most if self.table is None else min(most, self.table + 1 - length)  # the last guess is not read
        if room < 1 or length == 0:
            return ids[:, :0]
        decoding = self._caught_up(ids)
        for _ in range(min(self.most, room)):
            chances = decoding.logits().softmax(dim=-1)
            best, token = chances.max(dim=-1)
            if bool(best < self.confidence):
                break
            decoding.append(token)
        return decoding.ids[:, length:]

    def _caught_up(self, ids: Tensor) -> Decoding:
        """Its own sequence, made to be the text so far."""
        if (old := self.decoding) is None:
            self.decoding = Decoding(self.model, replace(self.prompt, ids=ids))
            return self.decoding
        shared = min(old.length, ids.shape[1])
        same = int((old.ids[0, :shared] == ids[0, :shared]).long().cumprod(dim=0).sum())
        if not self.steady:
            self.most = self.most + 2 if same == old.length else max(self.most - 1, 1)
        old.crop(min(same, ids.shape[1] - 1))  # something must be left to read
        old.append(ids[:, old.length :])
        return old


class ForeignDraft:
    """Guesses of a draft model with another vocabulary, carried over as text (Timor et al. 2025).

    ``theirs`` and ``ours`` are its tokenizer and the model's; ``window`` is how many tokens of the text it is shown.
    """

    def __init__(self, draft: Draft, theirs: Any, ours: Any, window: int = 256) -> None:
        self.draft, self.theirs, self.ours, self.window = draft, theirs, ours, window

    def __call__(self, ids: Tensor, most: int) -> Tensor:
        """Its guesses in our tokens; none where the text does not come back as it went."""
        if most < 1 or not ids.shape[1]:
            return ids[:, :0]
        shown = ids[0, -self.window :].tolist()
        text = self.ours.decode(shown, clean_up_tokenization_spaces=False)
        prompt = torch.tensor([self.theirs.encode(text)], device=ids.device)
        if not prompt.shape[1]:
            return ids[:, :0]
        guessed = self.draft(prompt, self.draft.most)[0].tolist()
        more = self.theirs.decode(guessed, clean_up_tokenization_spaces=False)
        whole = self.ours.encode(text + more, add_special_tokens=False)
        if whole[: len(shown)] != shown:
            return ids[:, :0]
        return torch.tensor([whole[len(shown) :][:most]], dtype=torch.long, device=ids.device)
