"""Tasks from text to text: what the model writes, decoded; prefixes, languages and bad inputs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import transept
from tests.preprocess.text.conftest import SentencePieces
from transept.errors import InputError, InputTypeError

from .writers import model

TEXTS = ["A short text.", "Another one, which is longer than the first!", "x"]
LENGTH = {"max_new_tokens": 8, "num_beams": 2}
SPECIFIC = {
    "summarization": {"prefix": "summarize: ", "num_beams": 3},
    "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 5},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BART with a byte-level vocabulary and settings for two tasks."""
    directory = tmp_path_factory.mktemp("writer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *alphabet, "en_XX", "de_DE"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    more = ["en_XX", "de_DE"]
    made = transept.PreTrainedTokenizerFast(tokenizer_object=core, additional_special_tokens=more, **special)
    made.save_pretrained(directory)
    torch.manual_seed(0)
    sizes = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    }
    config = transept.BartConfig(vocab_size=len(vocabulary), max_position_embeddings=128, init_std=0.3, **sizes)
    transept.BartForConditionalGeneration(config).save_pretrained(directory)
    stored = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(stored | {"task_specific_params": SPECIFIC}))
    return str(directory)


def by_hand(path: str, text: str, **settings: Any) -> str:
    tokenizer, model = transept.AutoTokenizer.from_pretrained(path), transept.AutoModelForSeq2SeqLM.from_pretrained(path)
    ids = model.generate(**tokenizer(text, return_tensors="pt"), **settings)
    return tokenizer.decode(ids[0], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("text2text-generation", "generated_text"),
        ("summarization", "summary_text"),
        ("translation", "translation_text"),
        ("translation_en_to_de", "translation_text"),
    ],
)
def test_answers_are_what_the_model_writes(path: str, task: str, name: str) -> None:
    pipe = transept.pipeline(task, model=path, packed=False)
    special = dict(SPECIFIC.get(task, {}))
    prefix = special.pop("prefix", "")
    settings = {"max_new_tokens": 8} if task == "summarization" else {} if special else LENGTH
    found = pipe(TEXTS, **settings)
    assert found == [[{name: by_hand(path, prefix + text, **special, **settings)}] for text in TEXTS]
    assert found == [pipe(text, **settings) for text in TEXTS]


def test_several_answers_and_ids(path: str) -> None:
    pipe = transept.pipeline("text2text-generation", model=path, max_new_tokens=6)
    found = pipe(TEXTS[:2], num_beams=3, num_return_sequences=3)
    assert [len(each) for each in found] == [3, 3]
    ids = pipe(TEXTS[0], return_tensors=True)[0]["generated_token_ids"]
    assert pipe.tokenizer.decode(ids, skip_special_tokens=True) == pipe(TEXTS[0])[0]["generated_text"]


def test_the_task_is_told_from_the_checkpoint(path: str) -> None:
    assert transept.pipeline(model=path).task == "text2text-generation"


def test_long_texts_are_cut_where_asked(path: str) -> None:
    pipe = transept.pipeline("summarization", model=path, **LENGTH)
    with pytest.raises(InputError, match="truncation"):
        pipe("x" * 200)
    cut = pipe("x" * 200, truncation=True, prefix="")
    assert cut == pipe("x" * 126, prefix="")


def test_bad_inputs_lose_no_other_answer(path: str) -> None:
    pipe = transept.pipeline("text2text-generation", model=path, **LENGTH)
    found = pipe([TEXTS[0], 7, TEXTS[2]], on_error="return")
    assert isinstance(found[1], InputTypeError)
    assert [found[0], found[2]] == [pipe(TEXTS[0]), pipe(TEXTS[2])]


def test_a_decoder_alone_is_refused(tmp_path: Path) -> None:
    from .test_text_generation import writer_at

    with pytest.raises(Exception, match="ForConditionalGeneration|encoder"):
        transept.pipeline("summarization", model=writer_at(str(tmp_path)))


def test_the_target_language_comes_first_where_the_tokenizer_knows_several(path: str) -> None:
    pipe = transept.pipeline("translation", model=path, max_new_tokens=5, src_lang="en_XX", tgt_lang="de_DE")
    plain = pipe(TEXTS[0], return_tensors=True)[0]["translation_token_ids"]
    pipe.tokenizer.src_lang = "en_XX"
    german = pipe.tokenizer.convert_tokens_to_ids("de_DE")
    found = pipe(TEXTS[0], return_tensors=True)[0]["translation_token_ids"]
    assert found[1] == german != plain[1]
    with pytest.raises(InputError, match="'fr_XX'"):
        pipe(TEXTS[0], tgt_lang="fr_XX")


LANGUAGES = ("en_XX", "de_DE", "fr_XX", "ro_RO")


@pytest.fixture(scope="module")
def translate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """mBART's, whose tokenizer marks texts with their language."""
    tokenizer = transept.MBartTokenizer(SentencePieces(tmp_path_factory.mktemp("pieces"))())
    mbart = model("MBartForConditionalGeneration", vocab_size=len(tokenizer))
    return transept.pipeline("translation", model=mbart, tokenizer=tokenizer, max_new_tokens=4)


def test_a_language_of_one_call_changes_no_shared_tokenizer(translate: Any) -> None:
    tokenizer = translate.tokenizer
    before = tokenizer("a b").input_ids
    german = translate.prepare(["a b"], translate.with_options({"src_lang": "de_DE"}))[0][0].inputs["input_ids"]
    assert german[-1] == tokenizer.convert_tokens_to_ids("de_DE") != before[-1]
    assert german[:-1] == before[:-1]
    translate("a b", src_lang="de_DE", tgt_lang="fr_XX")
    assert tokenizer.src_lang == "en_XX"
    assert tokenizer("a b").input_ids == before == translate.prepare(["a b"], translate.options)[0][0].inputs["input_ids"]
    with pytest.raises(InputError, match="no language 'xx_XX'"):
        translate("a b", src_lang="xx_XX")


def test_threads_speak_languages_of_their_own(translate: Any) -> None:
    def ends(language: str) -> set[int]:
        options = translate.with_options({"src_lang": language})
        return {translate.prepare(["a b c"], options)[0][0].inputs["input_ids"][-1] for _ in range(200)}

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ends, LANGUAGES))
    assert found == [{translate.code(language)} for language in LANGUAGES]
