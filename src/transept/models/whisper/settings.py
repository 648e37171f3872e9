"""What a call that transcribes is to do: settings beside those of all generation, of the model's files and the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from transept.config.fields import Positive, specs
from transept.config.settings import Settings
from transept.errors import ConfigError, InputError, refuse
from transept.generation.config import GenerationConfig
from transept.generation.rules import token_ids
from transept.preprocess.audio.languages import check_task, language_code

_OLD = "Its generation_config.json is of an old version, or none; set model.generation_config.{}."


class SpeechSettings(Settings):
    """Settings of one call, checked.

    Args:
        language: a name, a code or a token; one, or one for each row. Found by listening when absent.
        task: ``"transcribe"``, or ``"translate"`` into English.
        return_timestamps: whether times are written; always in sounds that are longer than a window.
        is_multilingual: ``False`` for models that know English only, which take neither a language nor a task.
        lang_to_id, task_to_id: token of a language, or name of a task -> id.
        no_timestamps_token_id: the id of ``<|notimestamps|>``, behind which the times are.
        prev_sot_token_id: the id of ``<|startofprev|>``, behind which earlier text is.
        max_initial_timestamp_index: the first time is at most this one.
        forced_decoder_ids: pairs of a place and an id, or ``None`` for the language, in old files.
        alignment_heads: pairs of a layer and a head whose attention follows the sound.
        condition_on_prev_tokens: whether a window goes on from the text of the windows before it.
        prompt_condition_type: whether a prompt stands before all windows then, or as what was said before the first.
        compression_ratio_threshold, logprob_threshold: what is more repetitive, or less likely, is written anew.
        no_speech_threshold: a window that is silent with this probability, and unlikely as text, is left out.
        return_token_timestamps: whether each token gets its time, by the decoder's attention to the sound.
        return_segments: whether pieces are given with their times.
        time_precision: seconds from one time to the next.
    """

    language: str | list[str] | None = None
    task: str | None = None
    return_timestamps: bool | None = None
    is_multilingual: bool | None = None
    lang_to_id: dict[str, int] | None = None
    task_to_id: dict[str, int] | None = None
    no_timestamps_token_id: int | None = None
    prev_sot_token_id: int | None = None
    max_initial_timestamp_index: int | None = None
    forced_decoder_ids: list[Any] | None = None
    alignment_heads: list[list[int]] | None = None
    condition_on_prev_tokens: bool | None = None
    prompt_condition_type: Literal["first-segment", "all-segments"] | None = None
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    return_token_timestamps: bool | None = None
    return_segments: bool | None = None
    time_precision: Positive = 0.02

    @classmethod
    def of(cls, settings: GenerationConfig, config: Any, asked: Mapping[str, Any]) -> Self:
        """What the caller asked for, then what the model's files say; ``ConfigError`` or ``InputError`` for what cannot be."""
        known = [name for name in specs(cls) if name != "time_precision"]
        old = {name: config.extra.get(name) for name in ("forced_decoder_ids",) if name not in settings.extra}
        stated = old | {name: settings.extra[name] for name in known if settings.extra.get(name) is not None}
        found = cls(**stated | {name: value for name, value in asked.items() if value is not None})
        found.check_model(config, english_only=stated.get("is_multilingual") is False and asked.get("is_multilingual") is None)
        return found

    def check_model(self, config: Any, *, english_only: bool) -> None:
        """Whether the model has the tokens that the settings need."""
        size = config.vocab_size
        ids = [*(self.lang_to_id or {}).values(), *(self.task_to_id or {}).values()]
        ids += [each for each in (self.no_timestamps_token_id, self.prev_sot_token_id) if each is not None]
        if beyond := [index for index in ids if not 0 <= index < size]:
            raise ConfigError(f"generation_config.json names the token {beyond[0]}, but the model has {size} tokens.")
        asked = self.task is not None or self.language is not None
        hint = "Leave both out, or pass is_multilingual=True where the model knows more languages."
        refuse(english_only and asked, "`language` and `task` were passed, but the model knows English only.", hint)
        refuse(
            self.language and not self.lang_to_id,
            "`language` was passed, but the model has no languages.",
            _OLD.format("lang_to_id"),
        )
        refuse(self.task and not self.task_to_id, "`task` was passed, but the model has no tasks.", _OLD.format("task_to_id"))
        everywhere = self.prompt_condition_type == "all-segments" and not self.condition_on_prev_tokens
        what = "`prompt_condition_type='all-segments'` needs `condition_on_prev_tokens=True`."
        refuse(everywhere, what, "Leave it out: without conditioning a prompt stands before every window.")
        if self.return_token_timestamps:
            self._check_heads(config)

    def _check_heads(self, config: Any) -> None:
        heads, sizes = self.alignment_heads, (config.decoder_layers, config.decoder_attention_heads)
        refuse(
            not heads, "times of tokens were asked for, but the model has no `alignment_heads`.", _OLD.format("alignment_heads")
        )
        for pair in heads or ():
            wrong = len(pair) != 2 or not all(0 <= n < most for n, most in zip(pair, sizes, strict=False))
            refuse(
                wrong, f"`alignment_heads` has {pair}, but there are {sizes[0]} layers of {sizes[1]} heads.", kind=ConfigError
            )

    def need_times(self, config: Any) -> None:
        """``InputError`` where the model writes no times."""
        first = self.no_timestamps_token_id
        missing = first is None or first + 1 >= config.vocab_size
        what = "times were asked for, but the model writes none: it has no tokens behind `no_timestamps_token_id`"
        refuse(missing, f"{what} ({first}).", _OLD.format("no_timestamps_token_id"))

    def first_time(self, config: Any) -> int:
        """The id of the time 0.00; one beyond all ids where the model has no times."""
        return config.vocab_size + 1 if self.no_timestamps_token_id is None else self.no_timestamps_token_id + 1

    def languages(self, rows: int) -> list[int] | None:
        """The ids of the languages that were asked for, one for each row; ``None`` where none was."""
        if self.language is None:
            return None
        names = [self.language] * rows if isinstance(self.language, str) else self.language
        what = f"`language` has {len(names)} languages for {rows} sounds."
        refuse(len(names) != rows, what, "Pass one, or one for each sound.")
        return [self._language(name) for name in names]

    def _language(self, name: str) -> int:
        known = self.lang_to_id or {}
        token = name.lower() if name.lower() in known else f"<|{language_code(name)}|>"
        if token not in known:
            hint = f"It knows {', '.join(sorted(known))}."[:400]
            raise InputError(f"the model does not know the language {name!r}: `lang_to_id` has no {token!r}.", hint=hint)
        return known[token]

    def begin(self, start: int, rows: int) -> tuple[list[list[int | None]], bool]:
        """The ids (one list a row) that a transcript begins with, and whether the language, their second, is to be found."""
        tokens: list[int | None] = [start]
        if self.task is None and self.language is None:
            tokens += self._forced()
        given = self.languages(rows)
        found = given is None and bool(self.lang_to_id) and (len(tokens) == 1 or tokens[1] is None)
        lines, chosen = [list(tokens) for _ in range(rows)], [*given] if given else [None] * rows
        for line, language in zip(lines, chosen, strict=True):
            if given or found:
                line[1:2] = [language]
            line += self._task()
            if self.return_timestamps and line[-1] == self.no_timestamps_token_id:
                line.pop()
            elif not self.return_timestamps and line[-1] != self.no_timestamps_token_id:
                line.append(self.no_timestamps_token_id)
        return lines, found

    def _forced(self) -> list[int | None]:
        """What old files begin with, from place 1 on."""
        pairs = self.forced_decoder_ids or []
        for place, pair in enumerate(pairs, 1):
            right = isinstance(pair, list | tuple) and len(pair) == 2 and pair[0] == place
            refuse(
                not right, f"`forced_decoder_ids` has {pair!r:.60} where place {place} and its id were to be.", kind=ConfigError
            )
        return [None if index is None else token_ids("forced_decoder_ids", index)[0] for _, index in pairs]

    def _task(self) -> list[int]:
        tasks = self.task_to_id or {}
        task = check_task(self.task) if self.task is not None else "transcribe" if self.language is not None and tasks else None
        refuse(
            task is not None and task not in tasks,
            f"the model does not know the task {task!r}.",
            f"It knows {', '.join(tasks)}.",
        )
        return [] if task is None else [tasks[task]]
