"""Templates that attack: they end soon, in an error of ours that names template and line, and reach nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.pace import within
from tests.thorough import in_turn
from transept.errors import FormatError, InputError, TranseptError
from transept.preprocess.text import sandbox
from transept.preprocess.text.sandbox import MAX_TOKENS, render

SECONDS = 0.4
# Small limits make the tests short; what they are compared with is the same code.
SLACK = 2.0


def attack(template: str, seconds: float = SECONDS) -> str:
    with within(seconds + SLACK):
        return render(template, {"messages": [{"role": "user", "content": "x"}]}, name="odd", seconds=seconds)[0]


ESCAPES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "subclasses": "{{ messages.__class__.__base__.__subclasses__() }}",
    "item": "{{ messages['__class__']['__base__'] }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('id') }}",
    "function globals": "{{ raise_exception.__globals__.json }}",
    "format": "{{ '{0.__class__.__base__}'.format(messages) }}",
    "format_map": "{{ '{a.__class__.__base__}'.format_map({'a': messages}) }}",
    "format by map": "{{ ['{0.__class__.__base__}']|map('format', messages)|list }}",
    "attr": "{{ (''|attr('__class__'))|attr('__base__') }}",
    "map attribute": "{{ messages|map(attribute='__class__')|map(attribute='__base__')|list|first }}",
    "environment": "{{ self._TemplateReference__context.environment.loader }}",
    "loop": "{% for m in messages %}{{ loop._iterable.__class__ }}{% endfor %}",
    "macro": "{% macro f() %}{% endmacro %}{{ f._func.__code__.co_code }}",
    "namespace": "{% set ns = namespace() %}{{ ns.__class__.__base__ }}",
    "namespace names": "{% set ns = namespace(__class__=1) %}{{ ns }}",
    "namespace slots": "{% set ns = namespace() %}{% set ns._Namespace__attrs = 1 %}",
    "dict": "{{ dict.__call__.__func__.__globals__ }}",
    "generator": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update(a=1) }}",
    "import": "{% import 'os' as os %}{{ os.getcwd() }}",
    "from": "{% from '/etc/passwd' import x %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends '/etc/passwd' %}",
    "open": "{{ open('/etc/passwd').read() }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "charge": "{{ environment.charge }}{{ environment.globals }}{{ context.environment.x }}",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_is_reached(name: str) -> None:
    try:
        text = attack(ESCAPES[name])
    except FormatError as error:
        assert "chat template 'odd'" in str(error)
    else:
        assert text.strip() in ("", "[]")  # undefined prints nothing


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that select": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "loops that go on": "{% for a in range(99999) %}{% for b in range(99999) %}{% continue %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "lazy filters": "{% for a in range(99999) %}{{ range(9999)|map('abs')|select|first }}{% endfor %}",
    "searches": "{% set x = range(9999)|list %}{% for a in range(99999) if a in x[::-1] %}{% endfor %}",
    "comparisons": "{% set x = range(9999)|list %}{% for a in range(99999) %}{% set y = ["
    + "x == x[::-1]," * 500
    + "] %}{% endfor %}",
    "upper case": "{% set x = 'ŀ' * 99999 %}{% for a in range(99999) %}{{ x.upper().lower()[:1] }}{% endfor %}",
    "joined loops": "{% for a in range(99999) %}{% set x = range(9999)|join %}{% endfor %}",
    "blocks": "{% for a in range(99999) %}{% for b in range(99999) %}{% set x %}{{ a }}{% endset %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_ended(name: str) -> None:
    ends = r"takes longer than 0\.4 seconds|makes more values than it may hold"
    with pytest.raises(FormatError, match=rf"'odd', line 1, ({ends})\. Use another template"):
        attack(ENDLESS[name])


DEEP = {
    "macro": "\n{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "block": "\n{% block a %}{{ self.a() }}{% endblock %}",
    "loop": "\n{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
}


@pytest.mark.parametrize("name", DEEP)
def test_endless_recursion_is_named(name: str) -> None:
    with pytest.raises(FormatError, match="'odd', line 2, calls itself without end"):
        attack(DEEP[name])


GROW = "{{% set ns = namespace(x={0}) %}}{{% for i in range(99) %}}{{% set ns.x = {1} %}}{{% endfor %}}{{{{ {2} }}}}"
HUGE = {
    "printed": "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "literals": "{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "set blocks": "{% set y %}{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
    "macros": "{% macro f() %}{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endmacro %}{{ f() }}",
    "repeated": "{{ 'x' * 10 ** 9 }}",
    "repeated list": "{{ [1] * 10 ** 9 }}",
    "repeated by repeated": "{{ 10 ** 9 * 'x' }}",
    "doubled": GROW.format("'x'", "ns.x + ns.x", "ns.x"),
    "joined": GROW.format("'x'", "ns.x ~ ns.x", "ns.x"),
    "shared lists": GROW.format("[1]", "[ns.x, ns.x]", "ns.x"),
    "shared tuples": GROW.format("(1,)", "(ns.x, ns.x)", "ns.x == ns.x"),
    "shared dicts": GROW.format("{}", "{'a': ns.x, 'b': ns.x}", "ns.x|tojson"),
    "shared by dict": GROW.format("{}", "dict(a=ns.x, b=ns.x)", "ns.x"),
    "shared by filters": GROW.format("[1]", "[ns.x, ns.x]|list", "ns.x|string"),
    "powers": GROW.format("9", "ns.x ** 9", "1"),
    "a power": "{{ 9 ** 10 ** 9 }}{{ 9 ** (10 ** 9) }}",
    "center": "{{ 'x'.center(10 ** 9) }}",
    "ljust": "{{ 'x'.ljust(10 ** 9) }}",
    "zfill": "{{ 'x'.zfill(10 ** 9) }}",
    "expandtabs": "{{ ('\t' * 99999).expandtabs(9999) }}",
    "bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "replace": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "replace nothing": "{{ ('x' * 99999).replace('', 'y' * 99999) }}",
    "join": "{{ ('x' * 99999).join('y' * 99999) }}",
    "join lazily": "{{ ('x' * 99999).join(range(9999)|map('string')) }}",
    "translate": "{{ ('x' * 99999).translate({120: 'y' * 99999}) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent often": "{{ ('%(a)s' * 9999) % {'a': 'x' * 99999} }}",
    "format": "{{ '{:999999999}'.format(1) }}",
    "format nested": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "format often": "{{ ('{0}' * 9999).format('x' * 99999) }}",
    "filter center": "{{ 'x'|center(10 ** 9) }}",
    "filter indent": "{{ ('\n' * 99999)|indent(9999, true, true) }}",
    "filter indent text": "{{ '\n'|indent('x' * 99999999) }}",
    "filter batch": "{{ [1]|batch(10 ** 9, 'x')|list }}",
    "filter slice": "{{ [1]|slice(10 ** 9)|list }}",
    "filter replace": "{{ ('x' * 99999)|replace('x', 'y' * 99999) }}",
    "filter join": "{{ range(9999)|join('x' * 99999) }}",
    "filter format": "{{ '%999999999d'|format(1) }}",
    "filter tojson": "{{ [[1]]|tojson(indent=10 ** 9) }}",
    "filter tojson separators": "{{ ([1] * 9999)|tojson(separators=('x' * 99999, '')) }}",
    "filter round": "{{ 3.5|round(10 ** 9, 'ceil') }}",
    "filter map": "{{ range(99999)|map('center', 9999)|list }}",
    "filter block": "{% filter center(10 ** 9) %}x{% endfilter %}",
    "filter by name": "{{ [1]|map('center', 10 ** 9)|list }}",
    "held": "".join("{% set a" + str(i) + " = 'x' * 200000 %}" for i in range(300)),
    "held lists": "".join("{% set a" + str(i) + " = [0] * 12000 %}" for i in range(300)),
    "held parts": "".join("{% set a" + str(i) + " = ('ab' * 9999).split('a') %}" for i in range(300)),
    "held by a namespace": "{% set ns = namespace(x=0) %}{% for i in range(99999) %}"
    "{% set ns.x = namespace(x=ns.x, y='y' * 4000) %}{% endfor %}",
    "held by a cycler": "{% set ns = namespace(x=0) %}{% for i in range(99999) %}{% set ns.x = cycler(ns.x, [1] * 9000) %}{% endfor %}",
    "held by a macro": "{% macro f(x) %}{% set y = x ~ 'ŀ' * 99999 %}{{ f(y[1:]) }}{% endmacro %}{{ f('') }}",
    "slices": "{% set x = 'x' * 200000 %}{% set y = [" + "x[1:]," * 1000 + "] %}",
    "sums": "{% set x = 'x' * 200000 %}{{ " + " ~ ".join(["x"] * 2000) + " }}",
    "filter blocks": "{% set z %}{% for a in range(99999) %}{% filter center(4000) %}x{% endfilter %}{% endfor %}{% endset %}",
    "call blocks": "{% macro f() %}{{ 'x' * 4000 }}{% endmacro %}"
    "{% set z %}{% for a in range(99999) %}{% call f() %}{% endcall %}{% endfor %}{% endset %}",
    "replace by name": "{{ ('x' * 9999)|replace(new='y' * 99999, old='x') }}",
    "percent by name": "{{ '%(a)0999999999d' % {'a': 1} }}",
    "format by unusual digits": "{{ '{:٩٩٩٩٩٩٩٩٩}'.format(1) }}",
    "center nothing": "{{ ''.center(10 ** 9) }}",
    "join by a list": "{{ range(9999)|list|join(['c' * 999] * 99) }}",
    "join a range": "{{ range(99999)|join('x' * 9999) }}",
    "indent other lines": "{{ ('\\r' * 99999)|indent(9999, true, true) }}",
    "list of characters": "{{ ('ŀ' * 200000)|list }}",
    "groups of characters": "{{ ('ŀ' * 200000)|groupby(0) }}",
    "deep json": GROW.format("[1]", "[ns.x]", "([ns.x] * 9)|tojson(indent=60)") * 20 + "{{ 'x' * 10 ** 9 }}",
    "range": "{{ range(10 ** 9)|list }}",
    "time": "{{ strftime_now('%Y' * 99999) }}",
}
SLOW = {
    "rfind": "{{ ('a' * 8000000).rfind('b' + 'a' * 4000000) }}",
    "strip": "{{ ('a' * 8000000).strip('b' * 8000000 + 'a') }}",
    "punycode": "{{ ('é' * 999999).encode('punycode') }}",
    "sum": "{{ ([[1] * 99] * 9999)|sum(start=[]) }}",
    "sum lazily": "{{ range(9999)|map('string')|map('list')|sum(start=[]) }}",
    "wordwrap": "{{ ('x' * 999999)|wordwrap(1) }}",
    "urlize": "{{ ('http://a.b ' * 99999)|urlize }}",
    "numbers": "{{ ('f' * 999999)|int(0, 16) // 7 }}",
}


@pytest.mark.parametrize("name", [*HUGE, *SLOW])
def test_what_would_be_huge_is_not_made(name: str) -> None:
    with pytest.raises(FormatError, match=r"chat template 'odd', line \d"):
        attack((HUGE | SLOW)[name])


MEMORY = """
import resource, sys
from tests.preprocess.text.test_chat_hostile import ENDLESS, HUGE, SLOW, attack
from transept.errors import FormatError
attack("{{ messages }}")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for template in [*HUGE.values(), *SLOW.values(), *ENDLESS.values()]:
    try:
        attack(template)
    except FormatError:
        pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_stays_bounded() -> None:
    """All attacks together, in a process of their own: the most that it has held is at most 64 MB more than before."""
    root = Path(__file__).parents[3]
    result = subprocess.run([sys.executable, "-c", MEMORY], cwd=root, check=True, capture_output=True, text=True)
    assert int(result.stdout) < 2**16  # KiB


VALUES = (
    "('ab' * 99999)",
    "('a\\nŀ ' * 60000)",
    "''",
    "7",
    "2.5",
    "(['ab' * 999] * 200)",
    "({'a': 'b' * 9999})",
    "'%s' * 9999",
)
GIVEN = ("", "'b'", "10 ** 9", "'b' * 99999", "'c' * 99999, 'b'", "{98: 'c' * 99999}", "60000, 60000", "attribute='a'")


@pytest.mark.parametrize("value", in_turn(VALUES, 3))
def test_no_method_and_no_filter_makes_too_much(value: str) -> None:
    """Every one that there is, so that what a later version of Python or jinja2 brings is looked at too."""
    names = [name for name in dir(str) if not name.startswith("_")]
    forms = [f"{{{{ {value}.{name}({given}) }}}}" for name in names for given in GIVEN]
    filters = ImmutableSandboxedEnvironment().filters
    forms += [f"{{{{ {value}|{name}({given}) }}}}" for name in filters for given in GIVEN]
    for form in forms:
        try:
            text = attack(form, seconds=0.2)
        except TranseptError:
            continue
        assert len(text) <= sandbox.MEMORY + 32 * 2**10


UNTRANSLATABLE = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 5000,
    "terms": "{{ " + "+".join(["1"] * 20000) + " }}",
    "blocks": "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "loops": "{% for a in b %}" * 25 + "{% endfor %}" * 25,
    "filters": "{{ 1" + "|upper" * 5000 + " }}",
    "tags": "{% nothing %}",
    "open": "{{ 'x",
    "no loop": "{% break %}",
    "words": "{{ a }}" * MAX_TOKENS,
}


@pytest.mark.parametrize("name", UNTRANSLATABLE)
def test_what_is_no_template_is_named(name: str) -> None:
    with pytest.raises(FormatError, match=r"chat template 'odd' (is no template|has more than the \d+ words)"):
        attack(UNTRANSLATABLE[name])


def test_chats_are_bounded_too() -> None:
    with pytest.raises(InputError, match="more than the 16777216 characters"):
        render("{{ messages }}", {"messages": ["x" * sandbox.MAX_CHAT]})


def test_a_template_raises_what_it_wants() -> None:
    with pytest.raises(InputError, match=r"'odd', line 3, refuses this chat: No way!$"):
        attack("a\nb\n{{ raise_exception('No way!') }}")
    with pytest.raises(FormatError, match=r"line 2, fails: ZeroDivisionError: division by zero\. Use"):
        attack("\n{{ 1 / 0 }}")
    with pytest.raises(TranseptError, match="line 1, fails: 'nobody' is undefined"):
        attack("{{ nobody.name }}")


def test_a_namespace_that_holds_itself_prints() -> None:
    assert attack("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}") == "[<Namespace>]"
