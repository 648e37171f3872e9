"""How models spell calls of functions, for those who write them; :mod:`transept.preprocess.text.answers` reads them."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple


class CallFormat(NamedTuple):
    """How calls are spelled: what stands before all, each of them, what stands between two, and what stands behind all."""

    opening: str
    call: str  # with NAME and ARGUMENTS
    between: str
    closing: str


_OBJECT = '{"name": "NAME", "arguments": ARGUMENTS}'
_SEPARATED = "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>"
CALL_FORMATS = {  # by what the chat template holds, or a token that there is; the first that fits
    "[ARGS]": CallFormat("", "[TOOL_CALLS]NAME[ARGS]ARGUMENTS", "", ""),
    "[TOOL_CALLS]": CallFormat("[TOOL_CALLS][", _OBJECT, ", ", "]"),
    "<|tool_call_start|>": CallFormat("<|tool_call_start|>[", _OBJECT, ", ", "]<|tool_call_end|>"),
    "<|START_ACTION|>": CallFormat(
        "<|START_ACTION|>[", '{"tool_name": "NAME", "parameters": ARGUMENTS}', ", ", "]<|END_ACTION|>"
    ),
    "<|tools_prefix|>": CallFormat("<|tools_prefix|>[", '{"NAME": ARGUMENTS}', ", ", "]<|tools_suffix|>"),
    "<｜tool▁calls▁begin｜>": CallFormat("<｜tool▁calls▁begin｜>", _SEPARATED, "", "<｜tool▁calls▁end｜>"),
    "<tool_call>": CallFormat("", f"<tool_call>\n{_OBJECT}\n</tool_call>", "\n", ""),
}
_BARE = CallFormat("", '{"name": "NAME", "parameters": ARGUMENTS}', "; ", "")


def format_of(template: str, tokens: Container[str]) -> CallFormat:
    """How a model spells calls, by its chat template or else by the tokens that it has; as bare JSON where neither says."""
    told = [form for mark, form in CALL_FORMATS.items() if mark in template]
    return next(iter((*told, *(form for mark, form in CALL_FORMATS.items() if mark in tokens), _BARE)))
