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
from transept.generation.beam import BeamSearch, BeamSettings
from transept.generation.build import build_criteria, build_processors
from transept.generation.caches import make_cache
from transept.generation.compiled import compiled_step, compiles
from transept.generation.config import GenerationConfig, Mode
from transept.generation.contrastive import write_contrastive
from transept.generation.decode import Decoding, Prompt, model_backbone
from transept.generation.diagnose import layer_named
from transept.generation.outputs import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)
from transept.generation.prepare import end_tokens
from transept.generation.processors import LogitsProcessorList
from transept.generation.record import Record
from transept.generation.sample import Choice, Drawn, Step, likeliest, write, write_shrinking
from transept.generation.stopping import StoppingCriteriaList
from transept.layers.cache import Cache
from transept.outputs import ModelOutput

DEFAULT_NEW_TOKENS = 20


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
        self.model, self.prompt, self.more = model, prompt, more
        self.settings = settings
        self.positions = prompt.ids.shape[1] if prompt.embeds is None else prompt.embeds.shape[1]
        self.mode = self._mode()
        self.longest = self._longest()
        self.beams, self.groups = settings.num_beams or 1, settings.num_beam_groups or 1
        self.copies = self.beams if self.beams > 1 else settings.num_return_sequences or 1
        self.ends = end_tokens(settings)
        self.filler = settings.pad_token_id if settings.pad_token_id is not None else next(iter(self.ends), 0)
        self.custom = bool(processors or stopping)  # callables that may keep something of each row
        self.processors = self._processors(processors)
        self.stopping = self._criteria(stopping)
        self.draw = self._drawing(seed)
        self.record = self._record()
        self.decoding = self._decoding()
        if self.decoding.rows > 1 and settings.pad_token_id is None and not self.ends and (stopping or settings.stop_strings):
            raise InputError(
                f"{self.decoding.rows} rows that stop one after the other need a token behind their ends.",
                hint="Set `pad_token_id`, or pass prompts one by one.",
            )

    def _mode(self) -> Mode:
        """The strategy, with a draft model where there is one."""
        mode = self.settings.mode
        if self.more.get("assistant_model") is None or mode == "assisted":
            return mode
        if mode not in ("greedy", "sample"):
            raise InputError(
                f"`assistant_model` has no part in {mode.replace('_', ' ')} search.",
                hint="Leave it out, or leave num_beams and penalty_alpha out.",
            )
        return "assisted"

    def _processors(self, custom: Sequence[Any]) -> LogitsProcessorList:
        """Those that the settings ask for and the caller's own."""
        return build_processors(
            self.settings,
            self.start,
            self.start + self.longest,
            copies=self.copies // self.groups,
            embedded=self.positions - self.start,
            encoder_input_ids=self.prompt.source if self.model.config.is_encoder_decoder else self.prompt.ids,
            attention_mask=self.prompt.mask,
            prefix_allowed_tokens_fn=self.more.get("prefix_allowed_tokens_fn"),
            custom=custom,
            model=self.model,
            negative_prompt_ids=self.more.get("negative_prompt_ids"),
            negative_prompt_attention_mask=self.more.get("negative_prompt_attention_mask"),
        )

    def _criteria(self, custom: Sequence[Any]) -> StoppingCriteriaList:
        """Those that the settings ask for and the caller's own; rotary models are only warned of being led too far."""
        known = None
        if not self.model.config.is_encoder_decoder:
            known = getattr(model_backbone(self.model), "trained_positions", None)
        room, tokenizer = self.start + self.longest, self.more.get("tokenizer")
        return build_criteria(self.settings, room, tokenizer=tokenizer, max_positions=known, custom=custom)

    @property
    def start(self) -> int:
        """Ids of the prompt."""
        return self.prompt.ids.shape[1]

    @property
    def unread(self) -> int:
        """How many of the last ids the model never reads: one, unless all are looked at before they are chosen."""
        return 0 if self.mode == "contrastive" else 1

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

    def _drawing(self, seed: int | Sequence[int] | None) -> Drawn:
        """How tokens are drawn."""
        rows, device = self.prompt.ids.shape[0] * self.copies, self.prompt.ids.device
        if seed is None:
            return Drawn(None)
        if self.mode == "beam_sample":
            raise InputError("`seed` has no part in beam sampling.", hint="Call torch.manual_seed, or set num_beams=1.")
        if isinstance(seed, int):
            return Drawn(torch.Generator(device).manual_seed(seed))
        if len(seed) != rows:
            raise InputError(f"there are {len(seed)} seeds for {rows} rows.", hint="Pass one for each row, or one number.")
        return Drawn([torch.Generator(device).manual_seed(number) for number in seed])

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
        room, cached = self.start + self.longest, s.use_cache is not False
        prompt = replace(self.prompt, cache=self._cache()) if cached else self.prompt
        return Decoding(
            self.model,
            prompt,
            room,
            copies=self.copies,
            use_cache=cached,
            chunk=s.prefill_chunk_size,
            extra=extra,
            compiled=compiled_step(self.model, s, prompt.cache),
        )

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
        """Whether rows that are done may leave the batch: nobody looks at them or the cache, and no program counts on them."""
        independent = not self.settings.do_sample or self.draw.independent
        unseen = not self.settings.return_dict_in_generate and (self.prompt.cache is None or not self.prompt.kept)
        return independent and unseen and not self.custom and not compiles(self.settings)

    def steps(self) -> Iterator[Step]:
        """Write step by step; for strategies that are certain of each token."""
        strategies = {"contrastive": self._contrastive, "assisted": self._assisted}
        with layer_named(self.decoding, self.prompt):
            yield from strategies.get(self.mode, self._plain)()

    def _choice(self) -> Choice:
        return self.draw if self.settings.do_sample else likeliest

    def _plain(self) -> Iterator[Step]:
        if self.shrinks:
            return write_shrinking(self.decoding, self.processors, self.stopping, self._choice())
        return write(self.decoding, self.processors, self.stopping, self._choice(), filler=self.filler)

    def _contrastive(self) -> Iterator[Step]:
        alpha, most = self.settings.penalty_alpha or 0.0, self.settings.top_k or 1
        return write_contrastive(self.decoding, self.processors, self.stopping, alpha=alpha, most=most, filler=self.filler)

    def _assisted(self) -> Iterator[Step]:
        guess = make_guess(self.model, self.prompt, self.settings, self.more)
        return write_assisted(self.decoding, self.processors, self.stopping, self._choice(), guess, longest=self.longest)

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
        """Write to the end, and tell each step where somebody listens."""
        if self.beams > 1:
            return self._searched()
        s = self.settings
        rows = self.prompt.ids.shape[0] * self.copies
        ids = torch.full((rows, self.start + self.longest), self.filler, device=self.prompt.ids.device)
        ids[:, : self.start] = self.prompt.ids.repeat_interleave(self.copies, dim=0)
        end = self.start
        for step in self.steps():
            ids[step.rows, end] = step.tokens
            end += 1
            if told is not None:
                told(step)
            if s.return_dict_in_generate:
                self.record.step(self.decoding.outputs, step)
        return self.output(ids[:, :end])

    def output(self, ids: Tensor, **more: Any) -> Tensor | ModelOutput:
        """The ids, or the output that the settings ask for."""
        if not self.settings.return_dict_in_generate:
            return ids
        kinds = (GenerateEncoderDecoderOutput, GenerateDecoderOnlyOutput)
        if self.beams > 1:
            kinds = (GenerateBeamEncoderDecoderOutput, GenerateBeamDecoderOnlyOutput)
        kept = self.record.result() | more | {"past_key_values": self.decoding.cache}
        if not self.model.config.is_encoder_decoder:
            return kinds[1](sequences=ids, **kept)
        states = self.prompt.inputs["encoder_outputs"]
        if self.settings.output_attentions:
            kept["encoder_attentions"] = states.get("attentions")
        if self.settings.output_hidden_states:
            kept["encoder_hidden_states"] = states.get("hidden_states")
        return kinds[0](sequences=ids, **kept)

    def _searched(self) -> Tensor | ModelOutput:
        s = self.settings
        settings = BeamSettings(
            beams=self.beams // self.groups,
            groups=self.groups,
            returned=s.num_return_sequences or 1,
            ends=self.ends,
            length_penalty=1.0 if s.length_penalty is None else s.length_penalty,
            early_stopping=s.early_stopping or False,
            sample=bool(s.do_sample),
            longest=self.longest,
            # As the reference has it: beams take a padding id of 0 for none.
            filler=self.settings.pad_token_id or next(iter(self.ends), -1),
        )

        def seen(logits: Tensor, scores: Tensor) -> None:
            self.record.seen(self.decoding.outputs, logits, scores)

        search = BeamSearch(
            self.decoding, self.processors, self.stopping, settings, seen if s.return_dict_in_generate else None
        )
        with layer_named(self.decoding, self.prompt):
            found = search.run()
        scores = found.scores if s.output_scores else None
        return self.output(found.sequences, sequences_scores=scores, beam_indices=found.rows)
