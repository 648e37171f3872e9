"""Assisted generation and contrastive search: strategies that read several tokens in one step of the model.

Shapes: R rows, T ids so far, S positions so far, K guesses or candidates, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError, UnsupportedError, refuse
from transept.generation.config import GenerationConfig
from transept.generation.decoding import Choice, Decoding, Step, grown, pick_rows
from transept.generation.prompt import Prompt, model_backbone, vocabulary_size
from transept.layers.context import reaching
from transept.outputs import ModelOutput

Guess = Callable[[Tensor, int], Tensor]  # (ids (1, T), most) -> guesses (1, K), K <= most, perhaps 0


def make_guess(model: Any, prompt: Prompt, settings: GenerationConfig, more: dict[str, Any]) -> Guess:
    """What guesses for a model: a draft model where ``more`` has one, by its own settings, else the text itself."""
    if settings.use_cache is not False:
        _check_cache(model)
    if (assistant := more["assistant_model"]) is None:
        return PromptLookup(settings.prompt_lookup_num_tokens or 1, settings.max_matching_ngram_size or 2)
    what = "`assistant_ensemble_weight` lets a draft model change what is written, which is not here."
    hint = "Leave it out: guesses then count only where the model chooses the same."
    refuse(settings.assistant_ensemble_weight is not None, what, hint, UnsupportedError)
    _check_cache(assistant)
    theirs, ours = more["assistant_tokenizer"], more["tokenizer"]
    foreign = theirs is not None and ours is not None
    own = GenerationConfig()
    own.fill(assistant.generation_config)
    begin = Prompt(prompt.ids, None if foreign else prompt.mask, inputs=_draft_inputs(model, assistant, prompt))
    steady = own.num_assistant_tokens_schedule == "constant"
    draft = Draft(assistant, begin, own.num_assistant_tokens or 1, own.assistant_confidence_threshold or 0.0, steady)
    sizes = vocabulary_size(assistant), vocabulary_size(model)
    what = f"the draft model's vocabulary has {sizes[0]} tokens, but the model's has {sizes[1]}."
    hint = "Pass `tokenizer` and `assistant_tokenizer`, so that guesses are carried over as text."
    refuse(not foreign and sizes[0] != sizes[1], what, hint)
    return ForeignDraft(draft, theirs, ours) if foreign else draft


def _check_cache(model: Any) -> None:
    """Refuse models whose caches cannot take back what was read."""
    kept = [kind for stack in model.stacks for kind in getattr(stack, "keeps", ())]
    what = f"assisted generation takes guesses back, but the states that {type(model).__name__} keeps sum up what was read."
    hint = "Leave `assistant_model` and `prompt_lookup_num_tokens` out, or use a model that keeps keys and values."
    refuse(not all(kind.can_crop for kind in kept), what, hint)


def _draft_inputs(model: Any, assistant: Any, prompt: Prompt) -> dict[str, Any]:
    """What a draft model reads beside the text: the states of its own encoder, or else the model's."""
    name, encodes = f"the draft model {type(assistant).__name__}", model.config.is_encoder_decoder
    if not assistant.config.is_encoder_decoder:
        what = f"{name} has no encoder, but {type(model).__name__} has one."
        refuse(encodes, what, "Pass another encoder–decoder as `assistant_model`.")
        return {}
    hint = "Pass `input_ids` to an encoder–decoder, or a draft model that only decodes."
    refuse(not encodes or prompt.source is None, f"{name} has an encoder, but there are no ids for it to read.", hint)
    given = {"attention_mask": prompt.inputs["attention_mask"]} if "attention_mask" in prompt.inputs else {}
    return given | {"encoder_outputs": assistant.encode_prompt(prompt.source, **given, return_dict=True)}


def write_assisted(decoding: Decoding, choose: Choice, guess: Guess, *, longest: int) -> Iterator[Step]:
    """Guess several tokens, and check them all in one step of the model (Leviathan et al. 2023), until the one row is done.

    What is written is what the model alone would write: a guess counts only where the model chooses the same.
    """
    refuse(decoding.rows > 1, f"assisted generation writes one row, but there are {decoding.rows}.", "Pass prompts one by one.")
    row, end, done = decoding.numbers, decoding.length + longest, torch.zeros(1, dtype=torch.bool)
    while not done:
        start = decoding.length
        guesses = guess(decoding.ids, end - start - 1)
        decoding.append(guesses)
        checked, outputs = decoding.last(guesses.shape[1] + 1), decoding.outputs
        for place, logits in enumerate(checked.unbind(dim=1)):
            scores = decoding.processors(decoding.buffer[:, : start + place], logits)
            token = choose(scores, row)
            right = place < guesses.shape[1] and bool(token == guesses[:, place])
            if not right:
                decoding.crop(start + place)
                decoding.append(token)
            if done := decoding.stopping(decoding.buffer[:, : start + place + 1]):
                decoding.crop(start + place + 1)
            if decoding.extra and outputs is not None:
                decoding.outputs = _part(outputs, place, checked.shape[1])
            yield Step(row, token, done, logits, scores)
            if done or not right:
                break


def _shown(outputs: ModelOutput) -> dict[str, Any]:
    """What the decoder has recorded."""
    names = [name for name in outputs if name.endswith(("hidden_states", "attentions")) and not name.startswith("encoder")]
    return {name: outputs[name] for name in names}


def _part(outputs: ModelOutput, place: int, count: int) -> ModelOutput:
    """What a call for several tokens shows of one of the last ``count``; the first has what stood before it, too."""
    parts: dict[str, Any] = {}
    for name, layers in _shown(outputs).items():
        last = layers[0].shape[-2] - count + place
        parts[name] = tuple(layer[..., last if place else 0 : last + 1, :] for layer in layers)
        if name.endswith("attentions") and not name.startswith("cross"):
            seen = layers[0].shape[-1] - count + place + 1
            parts[name] = tuple(layer[..., :seen] for layer in parts[name])
    return type(outputs)(**parts)


class PromptLookup:
    """Guesses that the text will go on as it did where its last tokens stood before (Saxena 2023), ``most`` at a time.

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
    """Guesses of a smaller model with the same vocabulary, ``most`` at a time, each with a chance of ``confidence`` or more.

    Unless ``steady``, there are two more after a call whose guesses all were right, and one less after others.
    """

    def __init__(self, model: Any, prompt: Prompt, most: int, confidence: float, steady: bool = True) -> None:
        self.model, self.prompt, self.most, self.confidence, self.steady = model, prompt, most, confidence, steady
        self.table: int | None = getattr(model_backbone(model), "max_positions", None)
        self.decoding: Decoding | None = None

    def __call__(self, ids: Tensor, most: int) -> Tensor:
        length = ids.shape[1]
        room = most if self.table is None else min(most, self.table + 1 - length)  # the last guess is not read
        if room < 1 or length == 0:
            return ids[:, :0]
        decoding = self._caught_up(ids)
        for _ in range(min(self.most, room)):
            best, token = decoding.logits().softmax(dim=-1).max(dim=-1)
            if bool(best < self.confidence):
                break
            decoding.append(token)
        return decoding.ids[:, length:]

    def _caught_up(self, ids: Tensor) -> Decoding:
        """Its own sequence, made to be the text so far."""
        if (old := self.decoding) is None:
            self.decoding = Decoding(self.model, replace(self.prompt, ids=ids), GenerationConfig())
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
        shown = ids[0, -self.window :].tolist()
        text = self.ours.decode(shown, clean_up_tokenization_spaces=False)
        prompt = torch.tensor([self.theirs.encode(text)], dtype=torch.long, device=ids.device)
        guessed = self.draft(prompt, self.draft.most if most > 0 and shown else 0)[0].tolist()
        more = self.theirs.decode(guessed, clean_up_tokenization_spaces=False)
        whole = self.ours.encode(text + more, add_special_tokens=False)
        found = whole[len(shown) :][: max(most, 0)] if whole[: len(shown)] == shown else []
        return torch.tensor([found], dtype=torch.long, device=ids.device)


def write_contrastive(decoding: Decoding, *, alpha: float, most: int, filler: int) -> Iterator[Step]:
    """Contrastive search (Su et al. 2022): of the K most likely tokens, read side by side, take that with the best score.

    It is

        (1 - alpha) * its probability - alpha * the greatest cosine of its last hidden state with those of earlier positions.

    Rows that are done get the filler. The decoding has K = ``most`` rows for each one while it goes on, and R again at the end.
    """
    fresh, real = _watch_states(decoding), decoding.mask
    logits, shown = decoding.logits(), decoding.outputs
    rows = torch.arange(decoding.rows, device=logits.device)
    open_, width = torch.ones_like(rows, dtype=torch.bool), min(most, logits.shape[1])
    states = torch.cat(fresh, dim=1)  # (R, S, D), with room behind
    length = states.shape[1]
    fresh.clear()
    decoding.select(rows.repeat_interleave(width))
    while True:
        scores = decoding.processors(decoding.ids[::width], logits)
        values, candidates = scores.topk(width)
        decoding.append(candidates.flatten())
        after, outputs = decoding.logits(), decoding.outputs
        state = fresh.pop()[:, -1].view(-1, width, states.shape[2])
        cosine = state @ states[:, :length].mT
        cosine = cosine if real is None else cosine.masked_fill(~reaching(real, length)[:, None], -math.inf)
        rank = (1 - alpha) * scores.softmax(dim=-1).gather(1, candidates) - alpha * cosine.amax(dim=-1)
        best = rank.masked_fill(values == -math.inf, -math.inf).argmax(dim=1)
        chosen, states = rows * width + best, grown(states, length + 1)
        tokens = torch.where(open_, candidates.gather(1, best[:, None])[:, 0], filler)
        states[:, length] = state[rows, best]
        length += 1
        decoding.reorder(chosen.repeat_interleave(width))
        decoding.buffer[:, decoding.length - 1] = tokens.repeat_interleave(width)
        open_ = open_ & ~decoding.stopping(decoding.ids[::width])
        decoding.outputs = shown  # what the token was chosen by, and not what read it
        if over := not open_.any():
            _leave(decoding, rows * width)
        yield Step(rows, tokens, ~open_, logits, scores)
        if over:
            return
        assert outputs is not None  # the model has just run
        shown = type(outputs)(**{name: pick_rows(value, chosen) for name, value in _shown(outputs).items()})
        logits = after[chosen]


def _watch_states(decoding: Decoding) -> list[Tensor]:
    """A list that gets the last hidden states (R, S, D) of each call of the model, scaled to length 1."""
    what = f"contrastive search compares with the states of all positions, but those of {decoding.read} are only cached."
    refuse(decoding.read, what, "Pass the whole prompt without `past_key_values`.")
    found, name = list[Tensor](), f"{decoding.prefix}hidden_states"
    decoding.watch = lambda outputs: found.append(F.normalize(outputs.get(name)[-1].float(), dim=-1))
    decoding.extra = decoding.extra | {"output_hidden_states": True}
    return found


def _leave(decoding: Decoding, rows: Tensor) -> None:
    """Go back to one row each, and to a cache without the last token, as other strategies leave it."""
    decoding.select(rows)
    try:
        if decoding.cache is not None:
            decoding.cache.crop(decoding.positions - 1)
    except InputError:  # a state that has read the last token; nobody can go on from it
        decoding.cache = None
