"""What a row writes, beside plain definitions: the whole text decoded, cut at the first stop string, and read as an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.pace import within
from transept import PreTrainedTokenizerFast
from transept.errors import InputError
from transept.generation.detokenizer import Detokenizer
from transept.preprocess.text.answers import AnswerReader, ReasoningDelta, TextDelta
from transept.serving.engine.calls import CallBegin, CallReader
from transept.serving.engine.writer import StopStrings, Writer

WORDS = ["a", "b", "Hello", "world", ".", ",", "n", "'", "t", "s", "é", "東", "x"]
SPECIAL = ["<s>", "</s>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
EMOJI = "naïve 東京 🙂👩‍👩‍👧 ok "


def built(model: Any, decoder: Any, before: Any = None, **options: Any) -> Any:
    backend = Tokenizer(model)
    backend.decoder = decoder
    if before is not None:
        backend.pre_tokenizer = before
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", additional_special_tokens=SPECIAL[2:], **options
    )


def byte_level() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    merges = [("Ġ", "a"), ("l", "l"), ("Ã", "©"), ("Ġ", "Ġ")]
    vocabulary |= {"".join(pair): len(vocabulary) + place for place, pair in enumerate(merges)}
    before = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return built(models.BPE(vocabulary, merges), decoders.ByteLevel(), before)


def byte_fallback() -> Any:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *WORDS, *(f"▁{word}" for word in WORDS)]
    model = models.BPE({token: index for index, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return built(model, decoders.Sequence(steps), pre_tokenizers.Metaspace())


def word_piece() -> Any:
    tokens = ["[UNK]", *WORDS, *(f"##{word}" for word in WORDS)]
    model = models.WordPiece({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]")
    return built(model, decoders.WordPiece(), pre_tokenizers.BertPreTokenizer(), clean_up_tokenization_spaces=True)


TOKENIZERS = {"byte level": byte_level(), "byte fallback": byte_fallback(), "word piece": word_piece()}


def pieces(tokenizer: Any, prompt: list[int], ids: list[int], skip: bool = True) -> list[str]:
    decoder = Detokenizer(tokenizer, skip, prompt)
    return [*(decoder.add([index]) for index in ids), decoder.end()]


def ids_of(name: str) -> st.SearchStrategy[list[int]]:
    """Ids of any kind; bytes as whole characters where a decoder would take others back."""
    tokenizer = TOKENIZERS[name]
    if name != "byte fallback":
        return st.lists(st.integers(0, len(tokenizer) - 1), max_size=80)
    characters = st.text(max_size=8).map(lambda text: [byte + 1 for byte in text.encode("utf-8", "ignore")])
    tokens = st.integers(257, len(tokenizer) - 1).map(lambda index: [index])
    return st.lists(st.one_of(characters, tokens), max_size=40).map(lambda parts: [index for part in parts for index in part])


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_pieces_are_what_decoding_shows_beyond_the_prompt(name: str, data: st.DataObject) -> None:
    tokenizer, skip = TOKENIZERS[name], data.draw(st.booleans())
    prompt, ids = data.draw(ids_of(name)), data.draw(ids_of(name))
    before, whole = (tokenizer.decode(some, skip_special_tokens=skip) for some in (prompt, prompt + ids))
    if whole.startswith(before):  # else the prompt ends within a character, or with space that is taken away
        assert "".join(pieces(tokenizer, prompt, ids, skip)) == whole[len(before) :]


def test_spaces_that_go_one_after_the_other_are_held_back() -> None:
    tokenizer = TOKENIZERS["word piece"]
    ids = tokenizer.convert_tokens_to_ids(["a", "n", "'", "t", "x"])
    assert "".join(pieces(tokenizer, [], ids)) == tokenizer.decode(ids) == "an't x"


def test_a_long_prompt_is_cut_where_a_character_begins() -> None:
    character = [byte + 1 for byte in "😀".encode()]
    for before in range(4):
        assert "".join(pieces(TOKENIZERS["byte fallback"], character * 40 + [49] * before, [49])) == "0"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_incomplete_character_is_shown(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(EMOJI * 20, add_special_tokens=False)
    found = pieces(tokenizer, [], ids)
    assert name == "word piece" or not any("\ufffd" in piece for piece in found)
    assert "".join(found) == tokenizer.decode(ids)
    assert sum(map(bool, found)) >= 80


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("token", ["bytes", "special", "word"])
def test_long_answers_cost_linear_time(name: str, token: str) -> None:
    tokenizer = TOKENIZERS[name]
    index = {"bytes": 200, "special": tokenizer.eos_token_id, "word": len(tokenizer) - 9}[token]
    with within(6):
        pieces(tokenizer, [], [min(index, len(tokenizer) - 1)] * 8000)


# --- Stop strings ----------------------------------------------------------------------------------------------------------


def until(text: str, strings: list[str]) -> tuple[str, bool]:
    """What is shown of a text that is over as soon as it ends with one of the strings."""
    for end in range(1, len(text) + 1):
        if found := [string for string in strings if text[:end].endswith(string)]:
            return text[: end - max(map(len, found))], True
    return text, False


def cut(text: str, lengths: list[int]) -> Iterator[str]:
    for length in lengths:
        yield text[:length]
        text = text[length:]
    yield text


SHORT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)
LENGTHS = st.lists(st.integers(0, 5), max_size=20)


@settings(max_examples=500, deadline=None)
@given(SHORT, STOPS, LENGTHS)
def test_stop_strings_are_the_definition(text: str, strings: list[str], lengths: list[int]) -> None:
    matcher, shown, read = StopStrings(strings), "", ""
    for piece in cut(text, lengths):
        more, stopped = matcher.feed(piece)
        shown, read = shown + more, read + piece
        wanted, over = until(read, strings)
        assert stopped == matcher.stopped == over
        if over:
            assert shown == wanted
            break
        held = [size for size in range(len(read) + 1) if not size or any(s.startswith(read[-size:]) for s in strings)]
        assert shown == read[: len(read) - max(held)]  # no more is held back than a beginning
    assert shown + matcher.end() == until(text, strings)[0]


def test_stop_strings_cost_linear_time() -> None:
    matcher = StopStrings(["a" * 511 + "b", *("a" * size + "c" for size in range(15))])
    with within(3):
        for _ in range(2000):
            matcher.feed("a" * 100)
    assert len(matcher.end()) == 511
    with pytest.raises(InputError, match="stop string must not be empty"):
        StopStrings([""])


# --- Rows ------------------------------------------------------------------------------------------------------------------


def told(writer: Writer, ids: list[int]) -> tuple[str, str, list[str], str | None]:
    events = [event for index in ids for event in writer.feed(index)] + writer.end()
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    calls = [event.name for event in events if isinstance(event, CallBegin)]
    return text, reasoning, calls, writer.finish_reason


@settings(max_examples=300, deadline=None)
@given(st.data(), STOPS, st.integers(1, 60))
def test_a_row_is_its_text_until_something_ends_it(data: st.DataObject, strings: list[str], most: int) -> None:
    tokenizer = TOKENIZERS["byte level"]
    letters = st.sampled_from([tokenizer.convert_tokens_to_ids(letter) for letter in "abcĠ"] + [tokenizer.eos_token_id])
    ids = data.draw(st.lists(letters, max_size=50))
    writer = Writer(tokenizer, [], max_tokens=most, ends=[tokenizer.eos_token_id], stop=strings)
    text, _, _, reason = told(writer, ids)
    taken: list[int] = []
    wanted = "stop"  # by end()
    for index in ids[:most]:
        taken.append(index)
        if index == tokenizer.eos_token_id or until(tokenizer.decode(taken), strings)[1]:
            break
    else:
        wanted = "length" if len(ids) >= most else "stop"
    assert text == until(tokenizer.decode([i for i in taken if i != tokenizer.eos_token_id]), strings)[0]
    assert (reason, writer.tokens) == (wanted, len(taken))


def test_reasoning_and_calls_are_told_by_marks_that_are_special_tokens() -> None:
    tokenizer = TOKENIZERS["byte level"]

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    ids = [*encode(f"<think>ab</think>Hi<s> {call}"), tokenizer.eos_token_id]
    settings: dict[str, Any] = {"max_tokens": 200, "ends": [tokenizer.eos_token_id]}
    writer = Writer(tokenizer, [], **settings, reader=CallReader(AnswerReader()))
    assert told(writer, ids) == ("Hi", "ab", ["f"], "tool_calls")
    assert (writer.tokens, writer.reasoning_tokens) == (len(ids), 4)
    assert told(Writer(tokenizer, [], **settings, reader=CallReader(AnswerReader(calls=False))), ids)[0] == f"Hi {call}"
    plain = Writer(tokenizer, [], **settings)
    assert told(plain, ids)[:2] == ('abHi {"name": "f", "arguments": {}}', "")
    short = Writer(tokenizer, [], max_tokens=len(ids) - 3, reader=CallReader(AnswerReader()))
    text, _, calls, reason = told(short, ids)
    assert (calls, reason) == ([], "length")
    assert text == 'Hi <tool_call>{"name": "f", "arguments": {}'  # a call that was cut off stays text
    with pytest.raises(InputError, match="`max_tokens` must be at least 1"):
        Writer(tokenizer, [], max_tokens=0)


@pytest.mark.parametrize("text", ['{"a": 1}', "<|user|> is a mark", "<tool_", "a <", "<think", "x<|im_end|>y"])
def test_no_text_is_lost(text: str) -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    for reader in (None, CallReader(AnswerReader()), CallReader(AnswerReader(calls=False))):
        assert told(Writer(tokenizer, [], max_tokens=99, reader=reader), ids)[0] == text


def test_json_comes_as_it_is_written_where_no_calls_are_read() -> None:
    reader = AnswerReader(calls=False)
    assert [reader.feed(piece) for piece in ('{"a"', ": 1}")] == [[TextDelta('{"a"')], [TextDelta(": 1}")]]
