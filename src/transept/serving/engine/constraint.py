"""What an answer must look like: JSON schemas, patterns and calls of tools as masks of the next token, made by llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transept.errors import InputError, MissingExtraError, refuse
from transept.preprocess.text.answers import FORMATS, MARKS, REASONING_TAGS
from transept.preprocess.text.tools import format_of

MAX_BYTES, MAX_DEPTH = 2**18, 64  # of a schema
MAX_CALLS = 16  # of an answer that must call something
# A weak model fills an object with line ends and never comes to its end where white space is free.
_OPTIONS = {"whitespace_flexible": False}
JSON_OBJECT = {"type": "object"}
_NO_ARGUMENTS: dict[str, Any] = {"properties": {}}
_OPEN = {"allOf", "anyOf", "oneOf", "$ref", "if", "not", "patternProperties"}  # what may speak of other properties
# Text that no call is read in: it holds no mark of one, and does not begin as JSON.
_FREE = rf"/(.|\n)*/ & ~/(.|\n)*({'|'.join(map(re.escape, FORMATS))})(.|\n)*/ & ~/\s*\{{(.|\n)*/"


class Grammars:
    """Compiles constraints for one tokenizer; making it takes about a second, each constraint some milliseconds.

    Args:
        tokenizer: of the model; it needs a ``backend_tokenizer``.
        ends: ids that end an answer, which are allowed where the constraint is fulfilled.

    Raises:
        MissingExtraError: llguidance is not installed.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int]) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise MissingExtraError("llguidance", "serve", "structured answers") from error
        refuse(not ends, "a constrained answer needs an id that ends it.", "Set `eos_token_id`.")
        self._matcher: Any = llguidance.LLMatcher
        self._ends = sorted(ends)
        added = {str(token): int(index) for index, token in tokenizer.added_tokens_decoder.items()}
        self._marks = {mark: added[mark] for mark in MARKS if mark in added}
        self._opens = frozenset(self._marks[mark] for mark in REASONING_TAGS if mark in self._marks)
        self._tokenizer = llguidance.LLTokenizer(tokenizer.backend_tokenizer.to_str(), eos_token=self._ends)

    def json_schema(self, schema: Mapping[str, Any]) -> Constraint:
        """JSON of a schema, without free white space; ``InputError`` with the library's reason for schemas that are none."""
        check_schema(schema)
        try:
            grammar = self._matcher.grammar_from_json_schema(json.dumps(schema), overrides=_OPTIONS)
        except ValueError as error:
            raise InputError(f"the schema cannot be used: {error!s:.500}") from None
        return self._compiled(grammar, "schema")

    def calls(
        self, functions: Sequence[Mapping[str, Any]], template: str, *, parallel: bool = True, free: bool = False
    ) -> Constraint:
        """One call or more of some functions, as a model spells them.

        Args:
            functions: ``{"name", "parameters"}`` of each.
            template: the chat template, which tells how calls are spelled.
            parallel: whether there may be several.
            free: whether there may be none, and text before them.
        """
        rules, form = [], format_of(template, self._marks)
        for place, function in enumerate(functions):
            schema = schema_of(function)
            check_schema(schema)
            parts = form.call.split("ARGUMENTS")
            before, after = (self._spelled(part.replace("NAME", function["name"])) for part in parts)
            rules.append(f"call{place}: {before} arguments{place} {after}")
            rules.append(f"arguments{place}: %json {json.dumps({**schema, 'x-guidance': _OPTIONS})}")
        more = f"({self._spelled(form.between)} call){{0,{MAX_CALLS - 1}}}" if parallel else ""
        rules.append(f"calls: {self._spelled(form.opening)} call {more} {self._spelled(form.closing)}")
        rules.append("call: " + " | ".join(f"call{place}" for place in range(len(functions))))
        rules += ["start: FREE | FREE? calls", f"FREE: {_FREE}"] if free else ["start: calls"]
        return self._compiled("\n".join(rules), "schema of a function", () if free else self._ends)

    def _spelled(self, text: str) -> str:
        """A text in a grammar: marks that are tokens as those, and the rest as strings."""
        apart = re.sub("|".join(map(re.escape, self._marks)), "\0\\g<0>\0", text) if self._marks else text
        tokens = {mark: f"<[{index}]>" for mark, index in self._marks.items()}
        return " ".join(tokens.get(part) or json.dumps(part, ensure_ascii=False) for part in apart.split("\0") if part)

    def _compiled(self, grammar: str, what: str, ends: Sequence[int] = ()) -> Constraint:
        made = self._matcher(self._tokenizer, grammar, log_level=0)
        if made.is_error():
            raise InputError(f"the {what} cannot be used: {made.get_error():.500}")
        return Constraint(made, self._tokenizer.vocab_size, self._opens, ends)


class Constraint:
    """What the answer of a row must look like, and how far the row is in it; a processor of scores (1, V).

    Args:
        matcher: of llguidance.
        vocabulary: the number of ids of the tokenizer; a model may have more, which are never allowed.
        opens: tokens that begin reasoning.
        ends: where there are some, the answer ends with one of them as soon as it may, unless the model's own likeliest
            token goes on.
    """

    def __init__(self, matcher: Any, vocabulary: int, opens: frozenset[int] = frozenset(), ends: Sequence[int] = ()) -> None:
        self._matcher, self._vocabulary, self._opens, self._ends = matcher, vocabulary, opens, ends
        self._reasons: Callable[[], bool] = bool
        self._opened = False  # by a token whose text is not read yet

    def of_row(self, reasons: Callable[[], bool], *, may_open: bool = False) -> Constraint:
        """The same for one more row, which is as far.

        Args:
            reasons: whether what comes next is reasoning, which may be anything.
            may_open: whether the answer may begin with a token that opens reasoning, where that is the likeliest of all.
        """
        opens = self._opens if may_open else frozenset[int]()
        found = Constraint(self._matcher.deep_copy(), self._vocabulary, opens, self._ends)
        found._reasons = reasons
        return found

    @property
    def is_fulfilled(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def _waits(self) -> bool:
        reasons = self._reasons()
        self._opened = self._opened and not reasons
        return reasons or self._opened

    def allowed(self, count: int) -> Tensor:
        """Which of so many ids may come next (V)."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        found = np.zeros(count, bool)
        found[: self._vocabulary] = np.unpackbits(bits, count=self._vocabulary, bitorder="little")[:count]
        return torch.from_numpy(found)

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """The scores, with those that are not allowed at ``-inf``."""
        if self._waits:
            return scores
        # A model that does not think has a mark for it in its vocabulary, too, and may give it more than what is allowed;
        # and a weak one would call functions for ever, since all that it may write is unlikely.
        best, found = int(scores.argmax()), scores.masked_fill(~self.allowed(scores.shape[-1]).to(scores.device), -torch.inf)
        if best in self._opens:
            found[:, best] = scores[:, best]
        elif self._ends and self.is_fulfilled and not bool(found[0, best].isfinite()):
            only = torch.full_like(scores, -torch.inf)
            only[:, self._ends] = scores[:, self._ends]
            found = only if bool(only.amax().isfinite()) else found  # settings may allow no end yet
        return found

    def accept(self, index: int) -> bool:
        """Take a token before its text is made; gives whether the answer is complete with it.

        Raises:
            InputError: the token is not allowed.
        """
        if self._waits or self._matcher.is_stopped():
            return False
        opens, self._opens = self._opens, frozenset()
        self._opened = index in opens
        if not self._opened and not self._matcher.consume_token(index):
            raise InputError(f"the id {index} is not allowed here: {self._matcher.get_error():.300}")
        return bool(self._matcher.is_stopped())


def schema_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments: an object that has no others, unless its parameters say so."""
    parameters = function.get("parameters") or _NO_ARGUMENTS
    closed = {} if _OPEN & parameters.keys() else {"additionalProperties": False}
    return {**closed, **parameters, "type": "object"}


def check_schema(schema: Any) -> None:
    """Refuse schemas that are too long or too deep, or that point elsewhere (``InputError``)."""
    refuse(not isinstance(schema, Mapping), f"a schema must be an object, but is {schema!r:.80}.")
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        refuse(depth > MAX_DEPTH, f"the schema is deeper than {MAX_DEPTH}.", "Use a flatter one.")
        if isinstance(value, Mapping):
            target = value.get("$ref", "#")
            remote = isinstance(target, str) and not target.startswith("#")
            refuse(remote, f"the schema refers to {target!r:.80}, outside itself.", "Put what is meant under `$defs`.")
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        waiting += [(item, depth + 1) for item in inner]
    size = len(json.dumps(schema).encode())
    refuse(size > MAX_BYTES, f"the schema has {size} bytes, but may have {MAX_BYTES}.", "Use a shorter one.")
