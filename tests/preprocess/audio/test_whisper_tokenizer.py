"""Whisper's tokenizer gives the reference's ids, texts, times and words, and reads and writes its files."""

from __future__ import annotations

import copy
import json
import pickle
import random

import numpy as np
import pytest
import transformers
from tests.preprocess.audio.speech_vocabulary import SPECIAL, TEXTS, trained, write_files
from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from transept import AutoTokenizer, WhisperTokenizer
from transept.errors import FormatError, InputError
from transept.preprocess.audio import languages, normalize
from transept.preprocess.audio.transcript import Written, joined, split_words

SPELLINGS = {"colour": "color", "centre": "center"}


@pytest.fixture(scope="module", params=[True, False], ids=["times", "no_times"])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    reference = write_files(folder, times=request.param)
    return WhisperTokenizer.from_pretrained(folder), reference


def test_languages_are_the_references():
    assert languages.LANGUAGES == LANGUAGES
    assert list(languages.LANGUAGES) == list(LANGUAGES)
    assert languages.CODES == TO_LANGUAGE_CODE


def test_ids_match_the_reference(pair):
    ours, reference = pair
    assert len(ours) == len(reference)
    assert ours.all_special_ids == reference.all_special_ids
    for text in [*TEXTS, "", " ", "a<|en|>b<|1.00|>c"]:
        assert ours(text)["input_ids"] == reference(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)
    assert ours(TEXTS[0], TEXTS[1])["input_ids"] == reference(TEXTS[0], TEXTS[1])["input_ids"]
    assert ours.timestamp_ids() == reference.timestamp_ids()


@pytest.mark.parametrize("language", [None, "french", "fr", "Burmese", "yue"])
@pytest.mark.parametrize("task", [None, "translate", "transcribe"])
@pytest.mark.parametrize("times", [True, False])
def test_what_stands_before_a_text_matches_the_reference(pair, language, task, times):
    ours, reference = (copy.deepcopy(each) for each in pair)
    for each in (ours, reference):
        each.set_prefix_tokens(language=language, task=task, predict_timestamps=times)
    assert ours.prefix_tokens == reference.prefix_tokens
    assert ours("a dog")["input_ids"] == reference("a dog")["input_ids"]
    asked = {"language": language, "task": task, "no_timestamps": times}
    assert ours.get_decoder_prompt_ids(**asked) == reference.get_decoder_prompt_ids(**asked)


def test_prompts_match_the_reference(pair):
    ours, reference = pair
    assert ours.get_prompt_ids("  Paris, Mr. Fox ").tolist() == reference.get_prompt_ids("  Paris, Mr. Fox ").tolist()
    assert ours.get_prompt_ids("fox", return_tensors="pt").tolist() == ours.get_prompt_ids("fox", return_tensors=None)
    with pytest.raises(InputError, match=r"special token '<\|en\|>'"):
        ours.get_prompt_ids("a <|en|> fox")


def sequences(tokenizer, seed, count=60):
    """Tokens as a model writes them over several windows: texts between times, in pairs or not, some times falling."""
    chance, first = random.Random(seed), tokenizer.first_time_id
    words = tokenizer.encode("".join(TEXTS), add_special_tokens=False)
    for _ in range(count):
        ids = [tokenizer._find("<|startofprev|>"), *chance.sample(words, 3)] if chance.random() < 0.2 else []
        ids += tokenizer.prefix_tokens[: chance.randrange(3)]
        for _ in range(chance.randrange(4)):
            now = 0
            for _ in range(chance.randrange(4)):
                start = chance.randrange(len(words) - 12)
                later = now + chance.randrange(300)
                times = [first + now] * (chance.random() < 0.9), [first + later] * (chance.random() < 0.9)
                ids += [*times[0], *words[start : start + chance.randrange(12)], *times[1]]
                now = later
        yield ids + [tokenizer.eos_token_id] * (chance.random() < 0.5)


FORMS = [{}, {"normalize": True}, {"basic_normalize": True}, {"basic_normalize": True, "remove_diacritics": True}]


@pytest.mark.parametrize("skip", [True, False])
def test_texts_match_the_reference(pair, skip):
    ours, reference = pair
    ours, reference = copy.deepcopy(ours), copy.deepcopy(reference)
    ours.english_spelling_normalizer = reference.english_spelling_normalizer = SPELLINGS
    for ids in sequences(ours, seed=1):
        for form in FORMS:
            assert ours.decode(ids, skip, **form) == reference.decode(ids, skip, **form)
        for timed in (True, False):
            asked = {"skip_special_tokens": skip, "decode_with_timestamps": timed, "output_offsets": True}
            if not skip and ids[:1] == [ours._find("<|startofprev|>")]:
                asked["output_offsets"] = False
            assert ours.decode(ids, **asked) == reference.decode(ids, **asked)


def test_a_batch_is_decoded_row_by_row(pair):
    ours, _ = pair
    rows = list(sequences(ours, seed=2, count=5))
    assert ours.batch_decode(rows, skip_special_tokens=True) == [ours.decode(row, skip_special_tokens=True) for row in rows]
    assert ours.decode(np.array(rows[0])) == ours.decode(rows[0])


def windows(tokenizer, seed, words):
    """Outputs for windows of one sound, some of them with a stride, and with times of tokens."""
    chance = random.Random(seed)
    outputs = []
    for ids in sequences(tokenizer, seed, count=chance.randrange(1, 5)):
        languages_heard = [tokenizer._find(f"<|{chance.choice(['en', 'fr', 'zh'])}|>")] * (chance.random() < 0.7)
        ids = [tokenizer._find("<|startoftranscript|>"), *languages_heard, *(i for i in ids if i != tokenizer.eos_token_id)]
        output = {"tokens": np.array([ids])}
        if words:
            output["token_timestamps"] = np.sort(np.random.default_rng(seed).uniform(0, 30, (1, len(ids))).round(2))
        outputs.append(output)
    if chance.random() < 0.6:
        for place, output in enumerate(outputs):
            output["stride"] = (30.0, 5.0 * (place > 0), 5.0 * (place < len(outputs) - 1))
    return outputs


@pytest.mark.parametrize("times", [None, True, "word"])
@pytest.mark.parametrize("language", [True, False])
def test_transcripts_match_the_reference(pair, times, language):
    ours, reference = pair
    asked = {"return_timestamps": times, "return_language": language, "time_precision": 0.02}
    for seed in range(60):
        outputs = windows(ours, seed, times == "word")
        assert ours._decode_asr(outputs, **asked) == reference._decode_asr(outputs, **asked)


def test_windows_are_joined_where_they_agree():
    runs = [[Written(token) for token in run] for run in ([1, 2, 3, 4, 5], [3, 4, 5, 6, 7], [9, 9, 9])]
    assert [one.token for one in joined(runs)] == [1, 2, 3, 4, 5, 6, 7, 9, 9, 9]


@pytest.mark.parametrize("language", [None, "english", "french", "chinese", "japanese", "thai", "lao", "myanmar", "cantonese"])
def test_words_match_the_reference(pair, language):
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    ours, reference = pair
    for text in TEXTS[:4]:
        ids = ours.encode(text, add_special_tokens=False)
        words, _, places = _combine_tokens_into_words(reference, ids, language)
        assert split_words(ids, ours, language) == list(zip(words, places, strict=True))
    assert split_words(ids, ours, "zh") == split_words(ids, ours, "chinese")


def spoken(count, seed=0):
    """Texts of words that mean numbers, amounts and contractions, among others."""
    words = [
        *sorted(normalize._WORDS),
        *sorted(normalize._WORDS),
        *normalize._CONTRACTIONS,
        "$20",
        "£3.50",
        "2.5",
        "10",
        "1960s",
    ]
    words += ["¢7", "0", "00", "-5", "$0.5", "and a half", "mr", "it's", "(aside)", "[x]", "um", "U.S.A.", "3,000", "50%", "é"]
    words += ["Straße", "per cent", "point", "and", "the", "colour", "b2b", "1.", "she'd been", "$", "%", ".", "٣", "a", "half"]
    chance = random.Random(seed)
    return [" ".join(chance.choices(words, k=chance.randrange(1, 9))) for _ in range(count)]


def test_normal_forms_match_the_reference():
    english = EnglishTextNormalizer(SPELLINGS)
    for text in [*spoken(3000), *TEXTS, "", " ", "İstanbul ﬁne Œuvre"]:
        assert normalize.normalize_english(text, SPELLINGS) == english(text)
        for bare in (True, False):
            assert normalize.normalize_basic(text, bare) == BasicTextNormalizer(remove_diacritics=bare)(text)


def test_files_are_read_and_written(tmp_path):
    path = tmp_path / "spellings.json"
    path.write_text(json.dumps(SPELLINGS))
    vocab, merges = trained()
    made = WhisperTokenizer(
        vocab, merges, normalizer_file=path, language="french", task="translate", extra_special_tokens=list(SPECIAL[1:])
    )
    made.save_pretrained(tmp_path / "saved")
    again, reference = (
        AutoTokenizer.from_pretrained(tmp_path / "saved"),
        transformers.WhisperTokenizer.from_pretrained(tmp_path / "saved"),
    )
    for each in (again, pickle.loads(pickle.dumps(again)), reference):
        assert type(each).__name__ == "WhisperTokenizer"
        assert each("the colour")["input_ids"] == made("the colour")["input_ids"]
        assert each.normalize("the colour") == "the color"
        assert (each.language, each.task) == ("french", "translate")
    assert WhisperTokenizer.from_pretrained(tmp_path / "saved", language="german").language == "german"


def test_what_is_wrong_is_named(pair, tmp_path):
    ours, _ = pair
    with pytest.raises(InputError, match=r"language 'klingon' is not known"):
        ours.set_prefix_tokens(language="klingon")
    with pytest.raises(InputError, match=r"task 'sing' is not known"):
        ours.set_prefix_tokens(task="sing")
    assert ours.language is None  # nothing has changed
    vocab, merges = trained()
    with pytest.raises(InputError, match=r"no token '<\|fr\|>'"):
        WhisperTokenizer(vocab, merges, language="fr")
    (tmp_path / "wrong.json").write_text('{"colour": 1}')
    with pytest.raises(FormatError, match="`colour` must be a text, but is 1"):
        WhisperTokenizer(vocab, merges, normalizer_file=tmp_path / "wrong.json")
