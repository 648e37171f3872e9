"""One call of ``generate``: how long, by which strategy, with which processors, and what it returns.

Shapes: B prompts, R rows (prompts times returned sequences), T ids, N new ids, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError
from transept.generation.assisted import make_guess, write_assisted
from transept.generation.beam_search import BeamSearch
from transept.generation.build import build_criteria, build_processors, make_cache
from transept.generation.compiled import compiled_step, compiles
from transept.generation.config import GenerationConfig, Mode
from transept.generation.contrastive import write_contrastive
from transept.generation.decoding import Choice, Decoding, Sampler, Step, greedy, write
from transept.generation.logits_processors import LogitsProcessorList
from transept.generation.nonfinite import layer_named
from transept.generation.outputs import OUTPUTS, Record
from transept.generation.prompt import Prompt, end_tokens, model_backbone
from transept.generation.stopping_criteria import StoppingCriteriaList
from transept.layers.cache import Cache
from transept.outputs import ModelOutput

DEFAULT_NEW_TOKENS = 20


def generation_mode(settings: GenerationConfig, assistant_model: Any = None) -> Mode:
    """The strategy that settings ask for, with a draft model where there is one.

    Raises:
        InputError: a draft model has no part in it.
    """
    mode = settings.mode
    if assistant_model is None or mode == "assisted":
        return mode
    if mode not in ("greedy", "sample"):
        raise InputError(
            f"`assistant_model` has no part in {mode.replace('_', ' ')} search.",
            hint="Leave it out, or leave num_beams and penalty_alpha out.",
        )
    return "assisted"


class Run:
    """One call.

    Args:
        model: the model.
        settings: complete and valid.
        prompt: what to go on from.
        processors, stopping: the caller's own, beside those that the settings ask for.
        seed: one number for all rows, or one for each; PyTorch's own generator when ``None``.
        more: what some processors and criteria need: the tokenizer, a negative prompt, allowed prefixes.

    Raises:
        InputError: lengths, seeds or combinations that cannot be.
    """

    def __init__(
        self,
        model: Any,
        settings: GenerationConfig,
        prompt: Prompt,
        processors: Sequence[Any],
        stopping: Sequence[Any],
        seed: int | Sequence[int] | None,
        more: dict[str, Any],
    ) -> None:
        self.model, self.prompt, self.more, self.settings = model, prompt, more, settings
        self.start = prompt.ids.shape[1]
        self.positions = self.start if prompt.embeds is None else prompt.embeds.shape[1]
        self.mode = generation_mode(settings, more.get("assistant_model"))
        # How many of the last ids the model never reads: one, unless all are looked at before they are chosen.
        self.unread = 0 if self.mode == "contrastive" else 1
        self.longest = self._longest()
        self.beams, self.groups = settings.num_beams or 1, settings.num_beam_groups or 1
        self.copies = self.beams if self.beams > 1 else settings.num_return_sequences or 1
        self.ends = end_tokens(settings)
        self.filler = settings.pad_token_id if settings.pad_token_id is not None else next(iter(self.ends), 0)
        self.custom = bool(processors or stopping)  # callables that may keep something of each row
        self.processors = self._processors(processors)
        self.stopping = self._criteria(stopping)
        self.sampler = self._sampler(seed)
        self.record = self._record()
        self.decoding = self._decoding()
        if self.decoding.rows > 1 and settings.pad_token_id is None and not self.ends and (stopping or settings.stop_strings):
            raise InputError(
                f"{self.decoding.rows} rows that stop one after the other need a token behind their ends.",
                hint="Set `pad_token_id`, or pass prompts one by one.",
            )

    def _processors(self, custom: Sequence[Any]) -> LogitsProcessorList:
        names = ("prefix_allowed_tokens_fn", "negative_prompt_ids", "negative_prompt_attention_mask")
        return build_processors(
            self.settings,
            self.start,
            self.start + self.longest,
            copies=self.copies // self.groups,
            embedded=self.positions - self.start,
            encoder_input_ids=self.prompt.source if self.model.config.is_encoder_decoder else self.prompt.ids,
            attention_mask=self.prompt.mask,
            custom=custom,
            model=self.model,
            **{name: self.more.get(name) for name in names},
        )

    def _criteria(self, custom: Sequence[Any]) -> StoppingCriteriaList:
        """Those that the settings ask for and the caller's own; rotary models are only warned of being led too far."""
        known = None
        if not self.model.config.is_encoder_decoder:
            known = getattr(model_backbone(self.model), "trained_positions", None)
        room, tokenizer = self.start + self.longest, self.more.get("tokenizer")
        return build_criteria(self.settings, room, tokenizer=tokenizer, max_positions=known, custom=custom)

    def _longest(self) -> int:
        """N, the new ids of a row at most."""
        s = self.settings
        table: int | None = getattr(model_backbone(self.model), "max_positions", None)
        table = None if self.model.config.is_encoder_decoder else table
        if s.max_new_tokens is not None:
            longest: int = s.max_new_tokens
        elif s.max_length is not None:
            longest = s.max_length - self.positions
        else:
            longest = DEFAULT_NEW_TOKENS if table is None else min(DEFAULT_NEW_TOKENS, table - self.positions + self.unread)
        if longest < 1:
            what = f"the model has {table} positions" if s.max_length is None else f"`max_length` is {s.max_length}"
            raise InputError(
                f"the prompt has {self.positions} positions, but {what}: there is no room to write.",
                hint="Set `max_new_tokens`, or shorten the prompt.",
            )
        if table is not None and self.positions + longest - self.unread > table:
            raise InputError(
                f"a prompt of {self.positions} positions and {longest} new ones are more than the model's {table}.",
                hint=f"Set `max_new_tokens` to {max(table - self.positions + self.unread, 0)} at most, or shorten the prompt.",
            )
        return longest

    def _sampler(self, seed: int | Sequence[int] | None) -> Sampler:
        rows, device = self.prompt.ids.shape[0] * self.copies, self.prompt.ids.device
        if seed is None:
            return Sampler(None)
        if self.mode == "beam_sample":
            raise InputError("`seed` has no part in beam sampling.", hint="Call torch.manual_seed, or set num_beams=1.")
        if isinstance(seed, int):
            return Sampler(torch.Generator(device).manual_seed(seed))
        if len(seed) != rows:
            raise InputError(f"there are {len(seed)} seeds for {rows} rows.", hint="Pass one for each row, or one number.")
        return Sampler([torch.Generator(device).manual_seed(number) for number in seed])

    def _record(self) -> Record:
        """What will be returned beside ids."""
        s = self.settings
        if not s.return_dict_in_generate:
            return Record()
        shown = [*(["attentions", "cross_attentions"] if s.output_attentions else ())]
        shown += ["hidden_states"] if s.output_hidden_states else []
        best = {True: 0, False: None}[s.output_logprobs] if isinstance(s.output_logprobs, bool) else s.output_logprobs
        return Record(bool(s.output_logits), bool(s.output_scores), best, tuple(shown))

    def _decoding(self) -> Decoding:
        s = self.settings
        wanted = {"output_attentions": "attentions", "output_hidden_states": "hidden_states"}
        extra = {name: True for name, shown in wanted.items() if shown in self.record.shown}
        cached = s.use_cache is not False
        prompt = replace(self.prompt, cache=self._cache()) if cached else self.prompt
        compiled = compiled_step(self.model, s, prompt.cache)
        chunk = s.prefill_chunk_size
        return Decoding(self.model, prompt, copies=self.copies, use_cache=cached, chunk=chunk, extra=extra, compiled=compiled)

    def _cache(self) -> Cache | None:
        """What the caller passed, or what the settings ask for."""
        if self.prompt.cache is None:
            return make_cache(self.settings, self.model.config, self.positions + self.longest - self.unread)
        if self.settings.cache_implementation is not None:
            raise InputError(
                f"`past_key_values` was passed, and `cache_implementation` is {self.settings.cache_implementation!r}.",
                hint="Leave one of them out: the cache that was passed is used as it is.",
            )
        return self.prompt.cache

    @property
    def shrinks(self) -> bool:
        """Whether rows that are done may leave the batch: nobody looks at them or the cache, and no graph counts on them."""
        independent = not self.settings.do_sample or self.sampler.independent
        unseen = not self.settings.return_dict_in_generate and (self.prompt.cache is None or not self.prompt.kept)
        return independent and unseen and not self.custom and not compiles(self.settings)

    def steps(self) -> Iterator[Step]:
        """Write step by step; for strategies that are certain of each token."""
        s, parts = self.settings, (self.decoding, self.processors, self.stopping)
        choose: Choice = self.sampler if s.do_sample else greedy
        with layer_named(self.decoding, self.prompt):
            if self.mode == "contrastive":
                yield from write_contrastive(*parts, alpha=s.penalty_alpha or 0.0, most=s.top_k or 1, filler=self.filler)
            elif self.mode == "assisted":
                guess = make_guess(self.model, self.prompt, s, self.more)
                yield from write_assisted(*parts, choose, guess, longest=self.longest)
            else:
                yield from write(*parts, choose, filler=self.filler, shrink=self.shrinks)

    def allow_streaming(self) -> None:
        """Refuse strategies that change what they have written.

        Raises:
            InputError: naming the setting.
        """
        if self.beams > 1:
            raise InputError(
                f"with `num_beams={self.beams}`, no token is certain before the end, so that nothing can be streamed.",
                hint="Set num_beams=1, or call generate().",
            )

    def reason(self, token: int, number: int) -> str:
        """Why a row ended with its token number ``number`` (from 1)."""
        return "length" if number >= self.longest and token not in self.ends else "stop"

    def result(self, told: Callable[[Step], None] | None = None) -> Tensor | ModelOutput:
        """Write to the end, and tell each step where somebody listens: the ids, or the output that the settings ask for."""
        if self.beams > 1:
            return self._searched()
        for step in self.steps():
            if told is not None:
                told(step)
            if self.settings.return_dict_in_generate:
                self.record.step(self.decoding.outputs, step.logits, step.scores)
                self.record.chosen(step.scores, step.tokens, step.done)
        return self._output(self.decoding.sequences(self.filler))

    def _searched(self) -> Tensor | ModelOutput:
        s = self.settings
        search = BeamSearch(
            self.decoding,
            self.processors,
            self.stopping,
            s,
            ends=self.ends,
            longest=self.longest,
            # As the reference has it: beams take a padding id of 0 for none.
            filler=s.pad_token_id or next(iter(self.ends), -1),
            seen=lambda logits, scores: self.record.step(self.decoding.outputs, logits, scores),
        )
        with layer_named(self.decoding, self.prompt):
            sequences, scores, rows = search.run()
        return self._output(sequences, sequences_scores=scores if s.output_scores else None, beam_indices=rows)

    def _output(self, ids: Tensor, **more: Any) -> Tensor | ModelOutput:
        if not self.settings.return_dict_in_generate:
            return ids
        encodes = self.model.config.is_encoder_decoder
        kept = self.record.result() | more | {"past_key_values": self.decoding.cache}
        if encodes:
            states = self.prompt.inputs["encoder_outputs"]
            if self.settings.output_attentions:
                kept["encoder_attentions"] = states.get("attentions")
            if self.settings.output_hidden_states:
                kept["encoder_hidden_states"] = states.get("hidden_states")
        return OUTPUTS[self.beams > 1, encodes](sequences=ids, **kept)
