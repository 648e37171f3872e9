"""`text-generation` against the reference's, and what batching, chats and bad inputs make of it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import transept
from transept.errors import InputError, InputTypeError, TranseptError

from .text_models import TEXTS

PROMPTS = [text for text in TEXTS if text.strip()]
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello world"}]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
LENGTH = {"max_new_tokens": 9, "do_sample": False}


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny GPT-2 with a byte-level vocabulary and a chat template."""
    return writer_at(str(tmp_path_factory.mktemp("writer")))


def writer_at(path: str) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "<|end|>"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transept.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", pad_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 512, "initializer_range": 0.3}
    config = transept.GPT2Config(vocab_size=len(vocabulary), eos_token_id=256, bos_token_id=256, **sizes)
    transept.GPT2LMHeadModel(config).save_pretrained(path)
    return path


def reference(path: str, *args: Any, **options: Any) -> Any:
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.pipeline("text-generation", model=path, device="cpu")(*args, **options)


@pytest.mark.reference
@pytest.mark.parametrize(
    "options",
    [{}, {"return_full_text": False}, {"num_beams": 3, "num_return_sequences": 2}, {"repetition_penalty": 1.4}],
)
def test_texts_equal_reference(writer: str, options: dict[str, Any]) -> None:
    ours = transept.pipeline("text-generation", model=writer, packed=False)
    for prompt in PROMPTS[:4]:
        assert ours(prompt, **LENGTH, **options) == reference(writer, prompt, **LENGTH, **options)


@pytest.mark.reference
def test_chats_equal_reference(writer: str) -> None:
    ours = transept.pipeline("text-generation", model=writer, packed=False)
    for chat in (CHAT, [*CHAT, {"role": "assistant", "content": "I say"}]):
        for options in ({}, {"return_full_text": False}):
            assert ours(chat, **LENGTH, **options) == reference(writer, chat, **LENGTH, **options)
    assert ours([CHAT, CHAT], **LENGTH) == [ours(CHAT, **LENGTH)] * 2


def test_a_list_is_answered_like_each_alone(writer: str) -> None:
    ours = transept.pipeline("text-generation", model=writer)
    assert ours(PROMPTS, **LENGTH) == [ours(prompt, **LENGTH) for prompt in PROMPTS]


def test_one_bad_prompt_loses_no_other(writer: str) -> None:
    ours = transept.pipeline("text-generation", model=writer)
    found = ours(["Hello", "", 7, "x" * 600], **LENGTH, on_error="return")
    assert isinstance(found[0], list)
    assert [type(each) for each in found[1:]] == [InputError, InputTypeError, InputError]
    assert "makes no tokens" in str(found[1])
    assert "600" in str(found[3])
    cut = ours("x" * 600, handle_long_generation="hole", **LENGTH)
    assert len(cut[0]["generated_text"]) == 600 + LENGTH["max_new_tokens"]


def test_options_are_checked(writer: str) -> None:
    ours = transept.pipeline("text-generation", model=writer)
    with pytest.raises(InputError, match="max_new_tokens"):
        ours("Hello", max_new_token=3)
    with pytest.raises(TranseptError, match="temperature"):
        ours("Hello", do_sample=True, temperature=0.0)
    ids = ours("Hello", return_tensors=True, **LENGTH)[0]["generated_token_ids"]
    assert len(ids) == 5 + LENGTH["max_new_tokens"]


def test_the_task_is_told_from_the_checkpoint(writer: str) -> None:
    assert transept.pipeline(model=writer).task == "text-generation"


def test_a_model_that_does_not_write_is_refused(text_model: Any) -> None:
    path = text_model("BertForMaskedLM")
    tokenizer = transept.AutoTokenizer.from_pretrained(path)
    model = transept.AutoModelForMaskedLM.from_pretrained(path)
    with pytest.raises(InputTypeError):
        transept.pipeline("text-generation", model=model, tokenizer=tokenizer)


def test_prompts_are_cut_where_asked(writer: str) -> None:
    ask = transept.pipeline("text-generation", writer, return_full_text=False, **LENGTH)
    ask.tokenizer.model_max_length = 40
    long = "word " * 30
    assert ask(long, truncation=True) == ask(long[:40])
    assert ask([long, "x"], truncation=True) == [ask(long[:40]), ask("x")]
    chat = [{"role": "user", "content": long}]
    assert len(ask.row(chat, ask.with_options({"truncation": True})).inputs["input_ids"]) == 40
    assert len(ask.row(long).inputs["input_ids"]) == len(long)
    with pytest.raises(InputError, match="`truncation` is 'often'"):
        ask(long, truncation="often")


@pytest.mark.reference
def test_cut_prompts_equal_the_references(writer: str) -> None:
    import transformers

    theirs = transformers.pipeline("text-generation", writer, device="cpu")
    ours = transept.pipeline("text-generation", writer)
    for pipe in (theirs, ours):
        pipe.tokenizer.model_max_length = 40
    long = "word " * 30
    assert ours(long, truncation=True, **LENGTH) == theirs(long, truncation=True, **LENGTH)


def test_a_streamer_gets_each_prompt_in_turn(writer: str) -> None:
    class Streamer:
        """Counts what it gets."""

        def __init__(self) -> None:
            self.got: list[list[int]] = [[]]

        def put(self, ids: torch.Tensor) -> None:
            self.got[-1] += ids.flatten().tolist()

        def end(self) -> None:
            self.got.append([])

    ask = transept.pipeline("text-generation", writer, return_tensors=True, **LENGTH)
    streamer = Streamer()
    answers = ask(PROMPTS[:3], streamer=streamer)
    assert sorted(streamer.got[:-1]) == sorted(answer[0]["generated_token_ids"] for answer in answers)
    assert answers == ask(PROMPTS[:3])
    for wrong in (5, "text", object(), type("Half", (), {"put": len})()):
        with pytest.raises(InputTypeError, match="`streamer` must have the methods put and end"):
            ask(PROMPTS[0], streamer=wrong)


@pytest.mark.parametrize("seed", ["1", 2.5, -1, True, [1], torch.tensor(3)])
def test_a_seed_is_a_number(writer: str, seed: Any) -> None:
    with pytest.raises(InputError, match="`seed` must be a whole number from 0"):
        transept.pipeline("text-generation", writer, **LENGTH)("x", seed=seed)
