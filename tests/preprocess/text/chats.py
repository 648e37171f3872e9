"""Conversations, tools and templates that the tests of chats share, and a small tokenizer, ours and the reference's."""

from __future__ import annotations

import copy
from typing import Any

import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from transept.preprocess.text.classes import PreTrainedTokenizerFast
from transept.preprocess.text.tokenizer import Tokenizer

from .corpus import DATA

TEMPLATES = sorted((DATA / "tokenizers/chat_templates").glob("*.jinja"))

CHATML = """\
{%- if messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- if tools %}
{{- '<|im_start|>tools\\n' }}{% for tool in tools %}{{ tool | tojson(indent=2) }}
{% endfor %}{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role not in ['user', 'assistant', 'tool'] %}
        {{- raise_exception('There is no role ' ~ message.role) }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content | default('') }}
            {%- for call in message.tool_calls | default([]) %}
                {{- '<tool_call>' ~ call.function | tojson ~ '</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

FEATURES = """\
{% macro line(role, text='none') %}[{{ role }}] {{ text|trim }}{{ caller() if caller else '' }}
{% endmacro %}
{% set ns = namespace(count=0, last='', out='') %}
{{ bos_token }}{% for m in messages %}
{% if loop.first and m['role'] == 'system' %}{% continue %}{% endif %}
{% if ns.count > 6 %}{% break %}{% endif %}
{% set ns.count = ns.count + 1 %}{% set ns.last = m.role %}
{% if m.content is string %}{{ line(m.role, m.content) }}{% elif m.content is iterable %}
{% for part in m.content %}{{ part.text if part.type == 'text' else '<' ~ part.type ~ '>' }}{% if not loop.last %}, {% endif %}{% endfor %}

{% else %}{{ line(m.role) }}{% endif %}{% set ns.out = ns.out ~ loop.index0 %}
{% endfor %}{% call line('call', 'x' * 3) %}!{% endcall %}
{{ messages|map(attribute='role')|list|join(', ') }} {{ messages|selectattr('role', 'equalto', 'user')|list|length }}
{{ (messages|first).role|upper }} {{ '%s-%03d' % (ns.last, ns.count) }} {{ '{0:>8}|{role}'.format(ns.out, role=ns.last) }}
{{ dict(a=1, b=[none, true, 1.5], **{'c': 'é<&>'})|tojson }} {{ {'k': ['v', {}]}|tojson(indent=2, ensure_ascii=true) }}
{{ documents|tojson(separators=(',', ':'), sort_keys=true) if documents else 'no documents' }}
{{ [1, 2, 3, 4]|batch(3, '-')|list }} {{ range(3)|sum }} {{ [3, 1, 2]|sort|reverse|list }} {{ 7 // 2 }} {{ 2 ** 5 }} {{ 7 % 4 }}
{{ 'a,b;c'.replace(';', ',').split(',') }} {{ ' x '.strip() }} {{ 'ab'.center(6) }} {{ 'abc'[::-1] }} {{ ','.join(['x', 'y']) }}
{% filter upper %}in a filter{% endfilter %}{% set block %}set {{ ns.count }}{% endset %}{{ block }} {{ messages[0].nothing }}
{{ {'b': 1, 'a': 2}|dictsort }} {{ {'a': 1}.items()|list }} {{ 'x' in 'xyz' }} {{ (1, 2) + (3,) }} {{ 3.7|round|int }} {{ cycler('a', 'b').next() }}
{% for k, v in {'a': [1, [2, [3]]]}.items() recursive %}{{ k }}={{ v }}{% endfor %} {{ strftime_now('%Y') }} {{ eos_token }}
"""

CALL = {"type": "function", "id": "call_1ab", "function": {"name": "weather", "arguments": {"city": "Paris"}}}


def weather(city: str, unit: str = "celsius") -> str:
    """Tell the weather.

    Args:
        city: the city, and where there are several of that name
            the country too
        unit: the unit (choices: ["celsius", "fahrenheit"])

    Returns:
        the weather
    """
    return f"{city} {unit}"


def user(content: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = "Hello!", **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


SYSTEM = {"role": "system", "content": "You are terse."}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [user()],
    "system": [SYSTEM, user()],
    "turns": [SYSTEM, user(), assistant(), user("Und du? é 漢字 🙂\n\n"), assistant("  spaced \n")],
    "tools": [
        user(),
        assistant("", tool_calls=[CALL]),
        {"role": "tool", "content": "21", "tool_call_id": "call_1ab", "name": "weather"},
    ],
    "tools answered": [
        user(),
        assistant("", tool_calls=[CALL, CALL]),
        {"role": "tool", "content": '{"t": 21}', "tool_call_id": "call_1ab", "name": "weather"},
        {"role": "tool", "content": "22", "tool_call_id": "call_1ab", "name": "weather"},
        assistant("It is 21 °C."),
        user("Thanks"),
    ],
    "empty": [user("")],
    "two answers": [assistant(), assistant()],
    "no such role": [{"role": "x", "content": "y"}],
    "reasoning": [user(), assistant("Hi", reasoning_content="hmm, so"), user("Bye"), assistant("See you", thinking="well")],
    "think tags": [user(), assistant("<think>\nhm\n</think>\n\nHi"), user(), assistant("Yes")],
    "parts": [user([{"type": "text", "text": "look"}, {"type": "image"}]), assistant([{"type": "text", "text": "I do"}])],
    "none": [user(), assistant(None, tool_calls=[CALL])],
    "no content": [{"role": "user"}],
    "late system": [user(), SYSTEM, user()],
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": True},
    {"tools": [weather]},
    {"documents": [{"title": "A title", "text": "Some <text>"}]},
    {"continue_final_message": True},
    {"continue_final_message": "reasoning_content"},
    {"enable_thinking": False, "add_generation_prompt": True},
    {"tools": [weather], "add_generation_prompt": True, "enable_thinking": True},
    {"tools": [weather], "documents": [{"title": "t", "text": "x"}], "date_string": "1 May 2026"},
]
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<|im_start|>", "<|im_end|>"]


def pair(**options: Any) -> tuple[Tokenizer, Any]:
    """A small byte-level tokenizer, ours and the reference's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"} | options
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **copy.deepcopy(names))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names), theirs
