"""One call of ``generate``: how long, by which strategy, with which logits processors, and what it returns.

Shapes: B prompts, R rows (prompts times returned sequences), T ids, N new ids, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from transept.errors import GenerationError, TranseptWarning, refuse
from transept.generation import logits_processors as rules
from transept.generation import logits_warpers as warpers
from transept.generation import penalties
from transept.generation.assisted import make_guess, write_assisted, write_contrastive
from transept.generation.beam_search import BeamSearch
from transept.generation.compiled import compiles, make_cache
from transept.generation.config import GenerationConfig
from transept.generation.decoding import Decoding, Sampler, Step, check_rows, greedy, write
from transept.generation.logits_processors import LogitsProcessor, LogitsProcessorList, NonFiniteError
from transept.generation.logits_warpers import HammingDiversityLogitsProcessor as Diversity
from transept.generation.outputs import DECODER, SEQ2SEQ, Record
from transept.generation.prompt import Prompt, end_tokens, model_backbone, vocabulary_size
from transept.generation.stopping_criteria import build_criteria
from transept.generation.watermark import make_processor
from transept.outputs import ModelOutput

DEFAULT_NEW_TOKENS = 20
_GROUP_BYTES = 2**14  # of what a group of beams keeps


class Run:
    """One call: settings, complete and valid, and the prompt.

    ``seed`` is one number for all rows, or one for each; ``more`` is what the call was given beside settings and inputs: the
    caller's own processors and criteria, a draft model, tokenizers, a negative prompt, allowed prefixes.
    """

    def __init__(self, model: Any, settings: GenerationConfig, prompt: Prompt, seed: Any, more: dict[str, Any]) -> None:
        self.model, self.prompt, self.more, self.settings = model, prompt, more, settings
        self.encodes: bool = model.config.is_encoder_decoder
        self.start = prompt.ids.shape[1]
        self.positions = self.start if prompt.embeds is None else prompt.embeds.shape[1]
        self.mode: str = settings.mode
        if more["assistant_model"] is not None and self.mode != "assisted":
            what = f"`assistant_model` has no part in {self.mode.replace('_', ' ')} search."
            refuse(self.mode not in ("greedy", "sample"), what, "Leave it out, or leave num_beams and penalty_alpha out.")
            self.mode = "assisted"
        # How many of the last ids the model never reads: one, unless all are looked at before they are chosen.
        self.unread = 0 if self.mode == "contrastive" else 1
        self.longest = self._longest()
        self.beams = settings.num_beams or 1
        self.copies = self.beams if self.beams > 1 else settings.num_return_sequences or 1
        self.ends = end_tokens(settings)
        self.filler = settings.pad_token_id if settings.pad_token_id is not None else next(iter(self.ends), 0)
        room, custom, stopping = self.start + self.longest, more["logits_processor"], more["stopping_criteria"]
        # Callables that may keep something of each row.
        self.custom = bool(stopping) or any(not getattr(each, "rows_alone", False) for each in custom or ())
        drawn, hint = seed is not None and self.mode == "beam_sample", "Call torch.manual_seed, or set num_beams=1."
        refuse(drawn, "`seed` has no part in beam sampling.", hint)
        # Before anything is made for each row.
        check_rows(model, prompt.ids, self.copies, (settings.num_beam_groups or 1) * _GROUP_BYTES // self.copies)
        self.sampler, self.record = Sampler(seed, prompt.ids.shape[0] * self.copies, prompt.ids.device), Record(settings)
        self.decoding = self._decoding()
        given = more | {"custom": custom, "model": model, "attention_mask": prompt.mask}
        given["encoder_input_ids"] = prompt.source if self.encodes else prompt.ids
        given |= {"copies": self.copies // (settings.num_beam_groups or 1), "embedded": self.positions - self.start}
        self.decoding.processors = build_processors(settings, self.start, room, **given)
        # Rotary models are only warned of being led too far.
        known = None if self.encodes else getattr(model_backbone(model), "trained_positions", None)
        made = build_criteria(settings, room, tokenizer=more["tokenizer"], max_positions=known, custom=stopping)
        self.decoding.stopping = made
        lacking = self.decoding.rows > 1 and settings.pad_token_id is None and not self.ends
        what = f"{self.decoding.rows} rows that stop one after the other need a token behind their ends."
        refuse(lacking and (stopping or settings.stop_strings), what, "Set `pad_token_id`, or pass prompts one by one.")

    def _longest(self) -> int:
        """N, the new ids of a row at most."""
        s, table = self.settings, None if self.encodes else getattr(model_backbone(self.model), "max_positions", None)
        room = None if table is None else table - self.positions + self.unread
        longest: int = DEFAULT_NEW_TOKENS if room is None else min(DEFAULT_NEW_TOKENS, room)
        longest = longest if s.max_length is None else s.max_length - self.positions
        longest = longest if s.max_new_tokens is None else s.max_new_tokens
        what = f"the model has {table} positions" if s.max_length is None else f"`max_length` is {s.max_length}"
        what = f"the prompt has {self.positions} positions, but {what}: there is no room to write."
        refuse(longest < 1, what, "Set `max_new_tokens`, or shorten the prompt.")
        what = f"a prompt of {self.positions} positions and {longest} new ones are more than the model's {table}."
        hint = f"Set `max_new_tokens` to {max(room or 0, 0)} at most, or shorten the prompt."
        refuse(room is not None and longest > room, what, hint)
        return longest

    def _decoding(self) -> Decoding:
        s, prompt, cached = self.settings, self.prompt, self.settings.use_cache is not False
        what = f"`past_key_values` was passed, and `cache_implementation` is {s.cache_implementation!r}."
        twice = cached and prompt.cache is not None and s.cache_implementation is not None
        refuse(twice, what, "Leave one of them out: the cache that was passed is used as it is.")
        if cached and prompt.cache is None:
            cache = make_cache(s, self.model.config, self.positions + self.longest - self.unread)
            prompt = replace(prompt, cache=cache)
        return Decoding(self.model, prompt, s, self.copies)

    @property
    def shrinks(self) -> bool:
        """Whether rows that are done may leave the batch: nobody looks at them or the cache, and no graph counts on them."""
        independent = not self.settings.do_sample or self.sampler.independent
        unseen = not self.settings.return_dict_in_generate and (self.prompt.cache is None or not self.prompt.kept)
        return independent and unseen and not self.custom and not compiles(self.settings)

    def steps(self) -> Iterator[Step]:
        """Write step by step; for strategies that are certain of each token."""
        s, choose = self.settings, self.sampler if self.settings.do_sample else greedy
        with layer_named(self.decoding, self.prompt):
            if self.mode == "contrastive":
                yield from write_contrastive(self.decoding, alpha=s.penalty_alpha or 0.0, most=s.top_k or 1, filler=self.filler)
            elif self.mode == "assisted":
                guess = make_guess(self.model, self.prompt, s, self.more)
                yield from write_assisted(self.decoding, choose, guess, longest=self.longest)
            else:
                yield from write(self.decoding, choose, filler=self.filler, shrink=self.shrinks)

    def allow_streaming(self) -> None:
        """Refuse strategies that change what they have written (``InputError``)."""
        what = f"with `num_beams={self.beams}`, no token is certain before the end, so that nothing can be streamed."
        refuse(self.beams > 1, what, "Set num_beams=1, or call generate().")

    def result(self, on_step: Callable[[Step], None] | None = None) -> Tensor | ModelOutput:
        """Write to the end, and tell each step where somebody listens: the ids, or the output that the settings ask for."""
        s, more = self.settings, dict[str, Any]()
        if self.beams > 1:
            search = BeamSearch(self.decoding, s, self.longest, self.record)
            with layer_named(self.decoding, self.prompt):
                ids, scores, rows = search.run()
            more = {"sequences_scores": scores if s.output_scores else None, "beam_indices": rows}
        else:
            for step in self.steps():
                if on_step is not None:
                    on_step(step)
                self.record.step(self.decoding.outputs, step.logits, step.scores, step.tokens, step.done)
            ids = self.decoding.sequences(self.filler)
        if not s.return_dict_in_generate:
            return ids
        if self.encodes:
            states = self.prompt.inputs["encoder_outputs"]
            asked = {"attentions": s.output_attentions, "hidden_states": s.output_hidden_states}
            more |= {f"encoder_{name}": states.get(name) for name, wanted in asked.items() if wanted}
        output = (SEQ2SEQ if self.encodes else DECODER)[self.beams > 1]
        return output(sequences=ids, **self.record.result(), **more, past_key_values=self.decoding.cache)


@contextmanager
def layer_named(decoding: Decoding, prompt: Prompt) -> Iterator[None]:
    """Add the name of the first layer whose output is not finite to such errors; the model runs once more to find it."""
    try:
        yield
    except NonFiniteError as error:
        name = _first_layer(decoding, prompt)
        if name is None:
            raise GenerationError(f"{error.message} The model's own are finite: a logits processor makes it.") from error
        raise GenerationError(f"{error.message} The first layer to give such values is {name}.", hint=error.hint) from error


def _first_layer(decoding: Decoding, prompt: Prompt) -> str | None:
    """The first module, inner ones before those they are in, whose output is not finite."""
    wrong, model = list[str](), decoding.model
    names = {module: name or type(module).__name__ for name, module in model.named_modules()}

    def look(module: nn.Module, args: Any, output: Any) -> None:
        parts = [part for part in pytree.tree_leaves(output) if isinstance(part, Tensor) and part.is_floating_point()]
        if module in names and not all(bool(part.isfinite().all()) for part in parts):
            wrong.append(names[module])

    with register_module_forward_hook(look):
        if model.config.is_encoder_decoder and prompt.source is not None:
            model.encode_prompt(prompt.source, prompt.inputs.get("attention_mask"))
        if not wrong:
            decoding.read_again()
    return wrong[0] if wrong else None


# Of each prompt (B, S): what the encoder reads, or a decoder alone; 0 for padding before the prompt; another prompt.
_ROWS = ("encoder_input_ids", "attention_mask", "negative_prompt_ids", "negative_prompt_attention_mask")
_NOTHING = dict.fromkeys(("custom", "model", "prefix_allowed_tokens_fn", *_ROWS)) | {"copies": 1, "embedded": 0}


def build_processors(config: GenerationConfig, prompt_length: int, max_length: int, **given: Any) -> LogitsProcessorList:
    """The logits processors that settings ask for, in the order of the reference, and a check of what comes out.

    Args:
        prompt_length, max_length: ids before the first new token, and those that a row can have in all.
        given: tensors of ``_ROWS``, all of them repeated for the ``copies`` rows per prompt that are treated at once (beams of
            a group, or returned sequences); ``embedded`` positions of the prompt that have no ids, for they are embeddings;
            the ``model``, ``prefix_allowed_tokens_fn``, and the caller's own processors as ``custom``.
    """
    f = SimpleNamespace(**_NOTHING | given, c=config, start=prompt_length, end=max_length)
    f.group = (config.num_beams or 1) // (config.num_beam_groups or 1)
    f.least = (config.min_length or 0) - f.embedded if config.min_new_tokens is None else f.start + config.min_new_tokens
    text = f"At least {f.least} tokens are asked for and at most {f.end}, prompt included: no text can end by itself."
    _warn(f.least > f.end, text)
    for name in [name for name in _ROWS if getattr(f, name) is not None]:
        setattr(f, name, getattr(f, name).repeat_interleave(f.copies, dim=0))
    f.source = f.encoder_input_ids
    made = LogitsProcessorList(_made(_RULES, f)).with_custom(f.custom)
    if config.do_sample:
        made += _made(_SAMPLING, f)
    if config.watermarking_config is not None:
        made.append(make_processor(config.watermarking_config, vocabulary_size(f.model), f.model.device))
    if config.renormalize_logits:
        made.append(warpers.LogitNormalization())
    made.append(rules.FiniteLogitsCheck(f.start, f.group))
    return made


def _warn(wrong: bool, text: str) -> None:
    if wrong:
        warnings.warn(text, TranseptWarning, stacklevel=4)


def _made(table: dict[str, tuple[Any, Callable[[Any, Any], Any]]], f: Any) -> Iterator[LogitsProcessor]:
    """The processors of those settings in a table that have an effect."""
    for name, (neutral, make) in table.items():
        value = f.prefix_allowed_tokens_fn if name == "prefix_allowed_tokens_fn" else getattr(f.c, name)
        if value is None or value == neutral:
            continue
        if name.startswith("encoder_") and not _is_text(f.source):
            _warn(True, f"`{name}` has no effect: there are no input ids to compare with.")
        elif (processor := make(value, f)) is not None:
            lost = f.start == 0 and name in ("repetition_penalty", "no_repeat_ngram_size")
            _warn(lost, f"`{name}` counts new tokens only: a prompt of embeddings has no ids.")
            yield processor


def _is_text(source: Tensor | None) -> bool:
    """Whether the encoder reads ids: what stands for anything else is filled up with negative numbers."""
    return source is not None and source.dim() == 2 and not source.is_floating_point() and not bool((source < 0).any())


def _guided(scale: float, f: Any) -> LogitsProcessor:
    refuse(f.model is None, "`guidance_scale` needs the model, to run another prompt.", "Use guidance_scale=None.")
    other = f.negative_prompt_ids, f.negative_prompt_attention_mask
    return warpers.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, f.model, *other, f.c.use_cache is not False)


def _lasting(eos: Any, f: Any) -> LogitsProcessor | None:
    if f.c.min_new_tokens:
        return rules.MinNewTokensLengthLogitsProcessor(f.start, f.c.min_new_tokens, eos)
    return rules.MinLengthLogitsProcessor(f.least, eos) if f.c.min_new_tokens is None and f.least > 0 else None


def _decaying(decay: list[float], f: Any) -> LogitsProcessor:
    what = "`exponential_decay_length_penalty` needs `eos_token_id`, the token it makes more likely."
    refuse(f.c.eos_token_id is None, what)
    return warpers.ExponentialDecayLengthPenalty((int(decay[0]), decay[1]), f.c.eos_token_id, f.start)


def _beginning(tokens: list[int], f: Any) -> LogitsProcessor:
    after_forced = f.start <= 1 and f.c.forced_bos_token_id is not None
    return rules.SuppressTokensAtBeginLogitsProcessor(tokens, f.start + after_forced)


def _penalty(penalty: float, f: Any) -> LogitsProcessor:
    before = None if f.attention_mask is None else (f.attention_mask != 0).int().argmax(1)
    return warpers.RepetitionPenaltyLogitsProcessor(penalty, before)


def _kept(f: Any) -> dict[str, int]:
    """How many tokens are never cut: with beams one beside every end, so that each beam can go on."""
    ends = len(f.c.eos_token_id) if isinstance(f.c.eos_token_id, list) else 1
    return {"min_tokens_to_keep": ends + 1 if (f.c.num_beams or 1) > 1 else 1}


# Settings in the order of their processors: the value of no effect, beside None, and what makes the processor.
_RULES: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "guidance_scale": (1, _guided),
    "sequence_bias": (None, lambda value, f: rules.SequenceBiasLogitsProcessor(value)),
    "num_beam_groups": (1, lambda value, f: Diversity(f.c.diversity_penalty, f.c.num_beams, value)),
    "encoder_repetition_penalty": (1, lambda value, f: warpers.EncoderRepetitionPenaltyLogitsProcessor(value, f.source)),
    "repetition_penalty": (1, _penalty),
    "presence_penalty": (0, lambda value, f: penalties.PresencePenaltyLogitsProcessor(value, f.start)),
    "frequency_penalty": (0, lambda value, f: penalties.FrequencyPenaltyLogitsProcessor(value, f.start)),
    "no_repeat_ngram_size": (0, lambda value, f: rules.NoRepeatNGramLogitsProcessor(value)),
    "encoder_no_repeat_ngram_size": (0, lambda value, f: rules.EncoderNoRepeatNGramLogitsProcessor(value, f.source)),
    "bad_words_ids": (None, lambda value, f: rules.NoBadWordsLogitsProcessor(value, f.c.eos_token_id)),
    "eos_token_id": (None, _lasting),
    "prefix_allowed_tokens_fn": (None, lambda value, f: rules.PrefixConstrainedLogitsProcessor(value, f.group)),
    "forced_bos_token_id": (None, lambda value, f: rules.ForcedBOSTokenLogitsProcessor(value)),
    "forced_eos_token_id": (None, lambda value, f: rules.ForcedEOSTokenLogitsProcessor(f.end, value)),
    "remove_invalid_values": (False, lambda value, f: rules.InfNanRemoveLogitsProcessor()),
    "exponential_decay_length_penalty": (None, _decaying),
    "suppress_tokens": (None, lambda value, f: rules.SuppressTokensLogitsProcessor(value)),
    "begin_suppress_tokens": (None, _beginning),
}
_SAMPLING: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "temperature": (1, lambda value, f: warpers.TemperatureLogitsWarper(value)),
    "top_h": (None, lambda value, f: warpers.TopHLogitsWarper(value)),
    "top_k": (0, lambda value, f: warpers.TopKLogitsWarper(value, **_kept(f))),
    "top_p": (1, lambda value, f: warpers.TopPLogitsWarper(value, **_kept(f))),
    "min_p": (None, lambda value, f: warpers.MinPLogitsWarper(value, **_kept(f))),
    "typical_p": (1, lambda value, f: warpers.TypicalLogitsWarper(value, **_kept(f))),
    "epsilon_cutoff": (0, lambda value, f: warpers.EpsilonLogitsWarper(value, **_kept(f))),
    "eta_cutoff": (0, lambda value, f: warpers.EtaLogitsWarper(value, **_kept(f))),
}
