"""``generate`` and ``stream``: what a model that writes text can do.

Shapes: B prompts, R rows (prompts times returned sequences), T ids, N new ids, V vocabulary.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from transept.errors import InputError, InputTypeError, refuse
from transept.generation.config import GENERATION_CONFIG_NAME, GenerationConfig
from transept.generation.detokenizer import Detokenizer
from transept.generation.outputs import Piece, Stats, transition_scores
from transept.generation.prompt import check_arguments, check_ids, end_tokens, next_inputs, read_prompt
from transept.generation.rules import MORE
from transept.generation.run import Run
from transept.generation.together import in_step, pass_together
from transept.layers.tensors import check_tensors
from transept.outputs import ModelOutput
from transept.storage.source import Source


class Generates:
    """Mixed into models that write text."""

    config: Any
    _generation_config: GenerationConfig | None = None
    _source: Source | None = None
    _own_tokenizer: Any = None
    settings_beside: ClassVar[frozenset[str]] = frozenset()  # of generation, which this kind of model reads from ``extra``

    def loaded(self, source: Source) -> None:
        """Read ``generation_config.json`` where the checkpoint has it."""
        super().loaded(source)  # type: ignore[misc]
        # A token of the hub is the call's own: it must not be copied, pickled or saved with the model.
        self._source = replace(source, token=source.token if isinstance(source.token, bool) else None)
        if source.find(GENERATION_CONFIG_NAME) is not None:
            self._generation_config = GenerationConfig.from_json_file(source.need(GENERATION_CONFIG_NAME))

    def texts(self, **settings: Any) -> dict[str, str]:
        """With ``generation_config.json``."""
        found: dict[str, str] = super().texts(**settings)  # type: ignore[misc]
        return found | {GENERATION_CONFIG_NAME: self.generation_config.to_json_string()}

    @property
    def generation_config(self) -> GenerationConfig:
        """The checkpoint's settings for generation, made of the model's config where it has none."""
        if self._generation_config is None:
            self._generation_config = GenerationConfig.from_model_config(self.config)
        self._generation_config.__dict__["_beside"] = self.settings_beside
        return self._generation_config

    @generation_config.setter
    def generation_config(self, settings: GenerationConfig) -> None:
        self._generation_config = settings

    @classmethod
    def can_generate(cls) -> bool:
        """Whether :meth:`generate` can be called: yes."""
        return True

    def step(self, **inputs: Any) -> Any:
        """One step of writing: the forward pass, unless a family reads more than what there is to read."""
        return self(**inputs)  # type: ignore[operator]

    def encode_prompt(self, *args: Any, **inputs: Any) -> Any:
        """The pass of the encoder, where there is one, over what a prompt is made of."""
        return self.get_encoder()(*args, **inputs)  # type: ignore[attr-defined]

    def embed_prompt(self, ids: Tensor, mask: Tensor | None, cache: Any, inputs: dict[str, Any]) -> Tensor | None:
        """Embeddings (B, S, D) of a prompt that holds more than its ids say; ``None`` where it does not.

        What they are made of is taken out of the inputs of each step; ``mask`` (B, S) is true for real positions.
        """
        return None

    def prepare_inputs_for_generation(self, input_ids: Tensor | None, **inputs: Any) -> dict[str, Any]:
        """The arguments of the next forward pass; see :func:`transept.generation.prompt.next_inputs`."""
        return next_inputs(self, input_ids, **inputs)

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Sequence[Callable[[Tensor, Tensor], Tensor]] | None = None,
        stopping_criteria: Sequence[Callable[..., Any]] | None = None,
        prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None,
        synced_gpus: bool | None = None,
        assistant_model: Any = None,
        streamer: Any = None,
        negative_prompt_ids: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        *,
        seed: int | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Tensor | ModelOutput:
        """Write on from prompts.

        Args:
            inputs: (B, T) ids; of the encoder where there is one. ``input_ids`` and ``inputs_embeds`` are taken too.
            generation_config: settings, in place of the checkpoint's; those it leaves open are the checkpoint's.
            logits_processor, stopping_criteria: callables beside those that the settings ask for.
            prefix_allowed_tokens_fn: (row, ids (T)) -> the tokens that may follow.
            synced_gpus: make passes until all processes are done, which those that share weights need. By default so where
                PyTorch's ``fully_shard`` divides them.
            assistant_model: a smaller model that drafts, for assisted generation (Leviathan et al. 2023).
            streamer: gets the prompt and each token, such as a ``TextStreamer``.
            negative_prompt_ids, negative_prompt_attention_mask: (B, S) another prompt that ``guidance_scale`` leads away from.
            seed: of the drawing: one number for the call, or one a row, which makes rows independent of each other.
            kwargs: settings by name (``max_new_tokens``, ``do_sample`` ...), what the model takes (``attention_mask`` ...), and
                ``tokenizer`` and ``assistant_tokenizer`` for stop strings and draft models of other vocabularies.

        Returns:
            (R, T) ids with the prompt (without it for ``inputs_embeds`` alone), or, with ``return_dict_in_generate``, an
            output that holds what was asked for.

        Raises:
            InputError, ConfigError: settings or inputs that cannot be; each names its remedy.
            GenerationError: the model's scores are no numbers.
        """
        check_arguments({"streamer": streamer, "synced_gpus": synced_gpus})
        kwargs |= {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria, "seed": seed}
        kwargs |= {"prefix_allowed_tokens_fn": prefix_allowed_tokens_fn, "assistant_model": assistant_model}
        kwargs |= {"negative_prompt_ids": negative_prompt_ids, "negative_prompt_attention_mask": negative_prompt_attention_mask}
        with in_step(self) if pass_together(self, synced_gpus) else contextlib.nullcontext():
            return self._written(self._run(inputs, generation_config, kwargs), streamer)

    def _written(self, run: Run, streamer: Any) -> Tensor | ModelOutput:
        if streamer is None:
            return run.result()
        run.allow_streaming()
        streamer.put(run.prompt.ids.cpu())
        generated = run.result(lambda step: streamer.put(step.tokens.cpu()))
        streamer.end()
        return generated

    compute_transition_scores = staticmethod(transition_scores)

    def stream(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *,
        tokenizer: Any = None,
        skip_special_tokens: bool = True,
        **kwargs: Any,
    ) -> Iterator[Piece]:
        """Write as :meth:`generate` does, and give each piece as soon as it is there; closing the iterator stops.

        Args:
            inputs, generation_config, kwargs: see :meth:`generate`.
            tokenizer: turns ids into text; the one beside the model's checkpoint when absent.
            skip_special_tokens: leave them out of the text.
        """
        tokenizer = self._tokenizer() if tokenizer is None else tokenizer
        run = self._run(inputs, generation_config, kwargs | {"tokenizer": tokenizer})
        run.allow_streaming()
        what = f"`tokenizer` must be a tokenizer, but is {type(tokenizer).__name__}."
        refuse(not callable(getattr(tokenizer, "decode", None)), what, kind=InputTypeError)
        return self._pieces(run, tokenizer, skip_special_tokens)

    async def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Piece]:
        """The same for ``async for``: each step runs in a thread, so that the event loop goes on.

        Where the reader is cancelled, the step that runs is waited for, and then the stream is closed.
        """
        pieces = self.stream(*args, **kwargs)
        try:
            while True:
                step = asyncio.ensure_future(asyncio.to_thread(next, pieces, None))
                try:
                    piece = await asyncio.shield(step)
                except asyncio.CancelledError:
                    while not step.done():  # a thread cannot be stopped
                        with contextlib.suppress(asyncio.CancelledError):
                            await asyncio.wait([step])
                    raise
                if piece is None:
                    return
                yield piece
        finally:
            pieces.close()  # type: ignore[attr-defined]

    @torch.no_grad()
    def _pieces(self, run: Run, tokenizer: Any, skip_special_tokens: bool) -> Iterator[Piece]:
        start, prompt, first, tokens = time.perf_counter(), run.prompt.ids, 0.0, 0
        open_ = set(range(prompt.shape[0] * run.copies))
        texts = [Detokenizer(tokenizer, skip_special_tokens, ids) for ids in prompt.tolist() for _ in range(run.copies)]
        for number, step in enumerate(run.steps(), 1):
            first = first or time.perf_counter() - start
            chances = step.scores.log_softmax(dim=-1).gather(1, step.tokens[:, None])[:, 0].tolist()
            columns = (step.rows.tolist(), step.tokens.tolist(), step.done.tolist(), chances)
            for row, token, done, chance in zip(*columns, strict=True):
                if row not in open_:
                    continue
                text, tokens, reason, stats = texts[row].add([token]), tokens + 1, None, None
                if done:
                    open_.discard(row)
                    text, full = text + texts[row].end(), number >= run.longest and token not in run.ends
                    reason = "length" if full else "stop"
                if not open_:
                    stats = Stats(prompt.numel(), tokens, first, time.perf_counter() - start)
                yield Piece(text, [token], [chance], row, reason, stats)

    def _run(self, inputs: Tensor | None, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> Run:
        """Settings and prompt, checked and complete."""
        check_arguments(kwargs | {"generation_config": generation_config})
        main: Any = self.main_input_name  # type: ignore[attr-defined]
        check_tensors(kwargs | ({} if inputs is None else {main: inputs}), self, unsigned=True)
        seed, more = kwargs.pop("seed", None), {name: kwargs.pop(name, None) for name in MORE}
        if more["negative_prompt_ids"] is not None:
            more["negative_prompt_ids"] = check_ids(more["negative_prompt_ids"], "negative_prompt_ids")
        twice = inputs is not None and kwargs.get("input_ids") is not None
        refuse(twice, "the prompt was passed twice, as `inputs` and as `input_ids`.", "Pass one of them.")
        ids = kwargs.pop("input_ids", None) if inputs is None else inputs
        settings = self._settings(generation_config, kwargs)
        prompt = read_prompt(self, settings, ids, kwargs)
        return Run(self, settings, prompt, seed, more)

    def _settings(self, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> GenerationConfig:
        """All settings of a call: the caller's, of which those by name are taken out of ``kwargs``, over the checkpoint's."""
        settings = copy.deepcopy(generation_config) if generation_config is not None else GenerationConfig()
        settings.fill(self.generation_config)
        settings.update(**{name: kwargs.pop(name) for name in tuple(kwargs) if settings.knows(name)})
        settings.eos_token_id = end_tokens(settings) or None
        return settings

    def _tokenizer(self) -> Any:
        """The tokenizer beside the checkpoint, read when it is first asked for."""
        if self._own_tokenizer is None:
            if self._source is None:
                hint = "Pass tokenizer=AutoTokenizer.from_pretrained(...)."
                raise InputError("a model that was not loaded has no tokenizer beside it.", hint=hint)
            from transept import AutoTokenizer

            self._own_tokenizer = AutoTokenizer.from_pretrained(self._source.name, **self._source.options())
        return self._own_tokenizer
