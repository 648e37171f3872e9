"""Streams of text: the same as the whole answer, never half a character, and ended when their reader has enough."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import torch

import transept
from tests.pace import PATIENCE
from tests.pipelines.test_text_generation import writer_at
from transept.errors import GenerationError, InputError
from transept.generation.detokenizer import Detokenizer
from transept.generation.outputs import AsyncTextIteratorStreamer, TextIteratorStreamer, TextStreamer

TEXTS = ["plain words, and more.", "naïve café", "東京は遠い", "🙂👩‍👩‍👧‍👦 family", " leading and trailing ", "\n\ttabs"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return writer_at(str(tmp_path_factory.mktemp("writer")))


@pytest.fixture(scope="module")
def loaded(path: str) -> tuple[Any, Any]:
    return transept.AutoModelForCausalLM.from_pretrained(path), transept.AutoTokenizer.from_pretrained(path)


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_characters_and_make_the_text(path: str, loaded: tuple[Any, Any], text: str) -> None:
    _, tokenizer = loaded
    ids = tokenizer.encode(text)
    decoder = Detokenizer(tokenizer)
    pieces = [decoder.add([token]) for token in ids]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + decoder.end() == text
    assert len([piece for piece in pieces if piece]) > 1


def test_bytes_that_are_no_character_are_not_held_back_forever(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    ids = tokenizer.encode("é" * 12)[::2]
    decoder = Detokenizer(tokenizer)
    pieces = [decoder.add([token]) for token in ids]
    assert any(pieces)
    assert "".join(pieces) + decoder.end() == tokenizer.decode(ids)


def test_a_stream_is_the_answer(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    ids = tokenizer(["Hello there", "Good dayyyy"], return_tensors="pt")["input_ids"]
    settings = {"max_new_tokens": 12, "do_sample": True, "seed": 5, "return_dict_in_generate": True, "output_scores": True}
    whole = model.generate(ids, **settings)
    pieces = list(model.stream(ids, tokenizer=tokenizer, max_new_tokens=12, do_sample=True, seed=5))
    for row in range(2):
        own = [piece for piece in pieces if piece.row == row]
        assert [piece.ids[0] for piece in own] == whole.sequences[row, ids.shape[1] :].tolist()[: len(own)]
        text = tokenizer.decode(whole.sequences[row], skip_special_tokens=True)
        assert tokenizer.decode(ids[row]) + "".join(piece.text for piece in own) == text
        assert [piece.finish_reason for piece in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason in ("stop", "length")
        for place, piece in enumerate(own):
            expected = whole.scores[place][row].log_softmax(-1)[piece.ids[0]]
            assert piece.logprobs[0] == pytest.approx(float(expected), abs=1e-4)
    assert [piece.stats is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    stats = pieces[-1].stats
    assert stats is not None
    assert stats.new_tokens == len(pieces)
    assert 0 < stats.seconds_to_first_token <= stats.seconds


def test_the_tokenizer_beside_the_model_is_found(path: str, loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]
    found = [list(model.stream(ids, max_new_tokens=3, **more)) for more in ({}, {"tokenizer": tokenizer})]
    assert [piece.text for piece in found[0]] == [piece.text for piece in found[1]]
    with pytest.raises(InputError, match="tokenizer"):
        transept.GPT2LMHeadModel(model.config).stream(ids)


def test_a_closed_stream_stops(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]
    pieces = model.stream(ids, tokenizer=tokenizer, max_new_tokens=400)
    next(pieces)
    assert torch.is_grad_enabled()
    pieces.close()
    assert list(pieces) == []


def test_beams_cannot_be_streamed(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    with pytest.raises(InputError, match="num_beams=2"):
        model.stream(tokenizer("Hello", return_tensors="pt")["input_ids"], tokenizer=tokenizer, num_beams=2)


def test_async_streams(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]

    async def read() -> list[int]:
        return [piece.ids[0] async for piece in model.astream(ids, tokenizer=tokenizer, max_new_tokens=5)]

    assert asyncio.run(read()) == [piece.ids[0] for piece in model.stream(ids, tokenizer=tokenizer, max_new_tokens=5)]


def test_streamers(loaded: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = loaded
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]
    whole = model.generate(ids, max_new_tokens=8)
    assert torch.equal(model.generate(ids, max_new_tokens=8, streamer=TextStreamer(tokenizer)), whole)
    assert capsys.readouterr().out == tokenizer.decode(whole[0]) + "\n"
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=PATIENCE)
    thread = threading.Thread(target=model.generate, args=(ids,), kwargs={"max_new_tokens": 8, "streamer": streamer})
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert "Hello" + text == tokenizer.decode(whole[0])
    with pytest.raises(InputError, match="one row"):
        model.generate(ids.repeat(2, 1), max_new_tokens=2, streamer=TextStreamer(tokenizer))
    with pytest.raises(GenerationError, match="no text came"):
        next(TextIteratorStreamer(tokenizer, timeout=0.01))


def slowed(model: Any, monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None = None) -> threading.Event:
    """Let each step take a while; the event tells that one has begun, and it is cleared when that is over."""
    running, step = threading.Event(), model.step

    def slow(**inputs: Any) -> Any:
        running.set()
        time.sleep(0.1)
        if error is not None:
            raise error("broken")
        found = step(**inputs)
        running.clear()
        return found

    monkeypatch.setattr(model, "step", slow)
    return running


@pytest.mark.parametrize("cancelled", [1, 3])
@pytest.mark.parametrize("error", [None, GenerationError])
def test_a_cancelled_stream_waits_for_its_step(
    loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, cancelled: int, error: type[Exception] | None
) -> None:
    model, tokenizer = loaded
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]
    running = slowed(model, monkeypatch, error)

    async def read() -> None:
        async for _ in model.astream(ids, tokenizer=tokenizer, max_new_tokens=50):
            pass

    async def leave() -> None:
        task = asyncio.create_task(read())
        while not running.is_set():
            await asyncio.sleep(0.01)
        for _ in range(cancelled):  # whoever waits may be cancelled again
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert error is not None or not running.is_set()

    asyncio.run(leave())


def test_a_stream_with_a_deadline_ends_at_it(loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = loaded
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]
    slowed(model, monkeypatch)

    async def read() -> None:
        async with asyncio.timeout(0.15):
            async for _ in model.astream(ids, tokenizer=tokenizer, max_new_tokens=400):
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(read())


def test_a_reader_may_leave_an_async_stream(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]

    async def read() -> int:
        pieces = model.astream(ids, tokenizer=tokenizer, max_new_tokens=400)
        async for _ in pieces:
            break
        await pieces.aclose()
        return len([piece async for piece in pieces])

    assert asyncio.run(read()) == 0


def test_async_streamers(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    ids = tokenizer("Hello", return_tensors="pt")["input_ids"]
    whole = tokenizer.decode(model.generate(ids, max_new_tokens=8)[0])

    async def read(**options: Any) -> str:
        streamer = AsyncTextIteratorStreamer(tokenizer, timeout=60, **options)
        thread = threading.Thread(target=model.generate, args=(ids,), kwargs={"max_new_tokens": 8, "streamer": streamer})
        thread.start()
        text = "".join([piece async for piece in streamer])
        thread.join()
        return text

    assert asyncio.run(read()) == whole
    assert "Hello" + asyncio.run(read(skip_prompt=True)) == whole

    async def wait() -> None:
        async for _ in AsyncTextIteratorStreamer(tokenizer, timeout=0.05):
            pass

    with pytest.raises(GenerationError, match="thread"):
        asyncio.run(wait())
    with pytest.raises(InputError, match="running event loop"):
        AsyncTextIteratorStreamer(tokenizer)
