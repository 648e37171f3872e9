"""What holds for any text and any document, by Hypothesis."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transept.errors import FormatError, InputError
from transept.storage.files import dump_json, load_json, parse_json, safe_join, write_text

# Neither one example nor the making of all has a limit of time, as machines may be slow or busy.
SLOW: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
ROOT = Path(tempfile.gettempdir()).resolve() / "transept-nowhere"
NAMES = st.text() | st.lists(st.sampled_from(["..", ".", "", "a", "b.json", "\\", "C:", "\0", "~", "é"])).map("/".join)
VALUES = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS: Any = st.recursive(
    VALUES | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=300, **SLOW)
@given(NAMES)
def test_a_joined_name_stays_below_the_root(name: str) -> None:
    try:
        path = safe_join(ROOT, name)
    except FormatError:
        return
    assert path.resolve().is_relative_to(ROOT)
    assert path != ROOT


@settings(max_examples=200, **SLOW)
@given(DOCUMENTS)
def test_a_document_comes_back_as_it_was(document: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x.json")
        try:
            write_text(path, dump_json(document))
        except InputError:
            return  # half a surrogate pair
        assert load_json(path) == document


@settings(max_examples=200, **SLOW)
@given(st.text(alphabet='[]{}",:0123456789.eE+-truefalsnNaIity\\ud8 \n'))
def test_any_text_is_a_document_or_a_typed_error(text: str) -> None:
    try:
        found = parse_json(text)
    except FormatError:
        return
    assert found == json.loads(text)
