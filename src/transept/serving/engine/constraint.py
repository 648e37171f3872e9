"""What an answer must look like: JSON schemas, patterns and calls of tools as masks of the next token, made by llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from transept.errors import InputError, MissingExtraError, refuse

MAX_BYTES, MAX_DEPTH = 2**18, 64
# A weak model fills an object with line ends and never comes to its end where white space is free.
_OPTIONS = {"whitespace_flexible": False}
JSON_OBJECT = {"type": "object"}


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
        self._tokenizer = llguidance.LLTokenizer(tokenizer.backend_tokenizer.to_str(), eos_token=sorted(ends))

    def json_object(self) -> Matcher:
        """A JSON object of any form."""
        return self.json_schema(JSON_OBJECT)

    def json_schema(self, schema: Mapping[str, Any]) -> Matcher:
        """JSON of a schema, without free white space; ``InputError`` with the library's reason for schemas that are none."""
        check_schema(schema)
        try:
            grammar = self._matcher.grammar_from_json_schema(json.dumps(schema), overrides=_OPTIONS)
        except ValueError as error:
            raise InputError(f"the schema cannot be used: {error!s:.500}") from None
        return self._compiled(grammar, "schema")

    def regex(self, pattern: str) -> Matcher:
        """A text that a regular expression fits as a whole, in the syntax of Rust's ``regex``."""
        refuse(len(pattern.encode()) > MAX_BYTES, f"the pattern has more than {MAX_BYTES} bytes.", "Pass a shorter one.")
        return self._compiled(self._matcher.grammar_from_regex(pattern), "pattern")

    def tools(self, tools: Sequence[Mapping[str, Any]], *, parallel: bool = True) -> Matcher:
        """A JSON list of calls, ``{"name": ..., "arguments": {...}}``, of these tools; one alone unless ``parallel``."""
        return self.json_schema(calls_schema(tools, parallel=parallel))

    def _compiled(self, grammar: str, what: str) -> Matcher:
        made = self._matcher(self._tokenizer, grammar, log_level=0)
        if made.is_error():
            raise InputError(f"the {what} cannot be used: {made.get_error():.500}")
        return Matcher(made, self._tokenizer.vocab_size)


class Matcher:
    """Where one row stands in its constraint.

    ``vocabulary`` is the number of ids of the tokenizer; a model may have more, which are never allowed.
    """

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self.vocabulary = matcher, vocabulary

    @property
    def is_fulfilled(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def is_over(self) -> bool:
        """Whether nothing but an end may come."""
        return bool(self._matcher.is_stopped())

    def copy(self) -> Matcher:
        """Another row at the same place."""
        return Matcher(self._matcher.deep_copy(), self.vocabulary)

    def accept(self, index: int) -> None:
        """Take a token that was written; ``InputError`` where it was not allowed."""
        if not self._matcher.consume_token(index):
            raise InputError(f"the id {index} is not allowed here: {self._matcher.get_error():.300}")

    def bits(self) -> bytes:
        """The ids that may come next, a bit for each, the lowest of a byte first."""
        return bytes(self._matcher.compute_bitmask())


class Constraint:
    """Lets one row write what its matcher allows, behind its reasoning; a processor of scores (1, V).

    Args:
        matcher: of this row alone.
        waits: whether what comes next is free still.
    """

    def __init__(self, matcher: Matcher, waits: Callable[[], bool]) -> None:
        self._matcher, self._waits = matcher, waits

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """The scores, with those that are not allowed at ``-inf``."""
        return scores if self._waits() else masked(scores, [self._matcher])

    def accept(self, index: int) -> bool:
        """Take a token before its text is made; gives whether the answer is complete with it."""
        if self._waits() or self._matcher.is_over:
            return False
        self._matcher.accept(index)
        return self._matcher.is_over


def masked(scores: Tensor, matchers: Sequence[Matcher | None]) -> Tensor:
    """Scores (B, V) with ``-inf`` for ids that a row's matcher does not allow; rows without one are left as they are."""
    found, places = scores.clone(), torch.arange(8, dtype=torch.uint8)
    for row, matcher in enumerate(matchers):
        if matcher is not None:
            taken = torch.frombuffer(bytearray(matcher.bits()), dtype=torch.uint8)
            allowed = torch.zeros(scores.shape[-1], dtype=torch.bool)
            size = min(matcher.vocabulary, scores.shape[-1])
            allowed[:size] = (taken[:, None] >> places & 1).flatten()[:size].bool()
            found[row].masked_fill_(~allowed.to(scores.device), -torch.inf)
    return found


def calls_schema(tools: Sequence[Mapping[str, Any]], *, parallel: bool = True) -> dict[str, Any]:
    """The JSON schema of a list of calls of tools, which are ``{"function": {"name", "parameters"}}``."""
    refuse(not tools, "there is no tool to call.", "Pass `tools`.")
    functions = [tool.get("function", tool) for tool in tools]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": each["name"]}, "arguments": each.get("parameters") or JSON_OBJECT},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for each in functions
    ]
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **({} if parallel else {"maxItems": 1})}


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
