"""What the classes of families state: layouts of ids, templates, options; and the examples of the glossary."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

from tests.pace import PATIENCE, slowness
from transept.errors import FormatError
from transept.preprocess.text import classes
from transept.preprocess.text.auto import AutoTokenizer

from .agreement import VOCABS, cleaned, clip_files, compare, of_reference, of_sentencepiece
from .conftest import SentencePieces, sentences

PLAIN = ["the hello", "world and the Paris", "a (of) that's", "don't hello"]
LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "T5Tokenizer": ({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, "spiece.model"),
    "SiglipTokenizer": ({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, "spiece.model"),
    "XLMRobertaTokenizer": ({}, "sentencepiece.bpe.model"),
    "CamembertTokenizer": ({}, "sentencepiece.bpe.model"),
    "AlbertTokenizer": (
        {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]},
        "spiece.model",
    ),
    "DebertaV2Tokenizer": (
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
        | {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
        "spm.model",
    ),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_and_templates_beside_the_reference(name: str, sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    options, file = LAYOUTS[name]
    (tmp_path / file).write_bytes(sentence_pieces(**options).read_bytes())
    ours = getattr(classes, name).from_pretrained(tmp_path)
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    # On plain text the two agree; where SentencePiece says otherwise, see test_agreement.
    for inputs in ((PLAIN,), (PLAIN, PLAIN[::-1])):
        columns = {"return_token_type_ids": True, "return_special_tokens_mask": True, "padding": True}
        assert dict(ours(*inputs, **columns)) == dict(theirs(*inputs, **columns))
    assert ours.decode(ours(PLAIN[0])["input_ids"], skip_special_tokens=True) == PLAIN[0]
    assert len(ours) == len(theirs)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert (ours.padding_side, ours.model_input_names) == (theirs.padding_side, theirs.model_input_names)


@pytest.mark.reference
@pytest.mark.parametrize("lower", [True, False])
def test_siglip_cleans_texts_and_pads_to_one_length(sentence_pieces: SentencePieces, tmp_path: Path, lower: bool) -> None:
    options, file = LAYOUTS["SiglipTokenizer"]
    (tmp_path / file).write_bytes(sentence_pieces(**options).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "siglip"}')
    ours = AutoTokenizer.from_pretrained(tmp_path, do_lower_case=lower)
    theirs = transformers.SiglipTokenizer.from_pretrained(tmp_path, do_lower_case=lower)
    texts = ["A photo of THE cat.", "  two \t spaces\n", "don't (stop)! [it]", "", "...", "hello world " * 60]
    inputs = {"padding": "max_length", "truncation": True}
    assert dict(ours(texts, **inputs)) == dict(theirs(texts, **inputs))
    assert {len(row) for row in ours(texts, **inputs)["input_ids"]} == {64}
    ours.save_pretrained(tmp_path / "again")
    assert dict(AutoTokenizer.from_pretrained(tmp_path / "again")(texts, **inputs)) == dict(ours(texts, **inputs))


@pytest.mark.reference
def test_xglm_beside_the_reference(sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(sentence_pieces().read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "xglm"}')
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]  # the reference's does not read such a file itself
    pieces = [(model.id_to_piece(number), model.get_score(number)) for number in range(3, len(model))]
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path), transformers.XGLMTokenizer(vocab=[*first, *pieces])
    assert type(ours) is classes.XGLMTokenizer
    for inputs in ((PLAIN,), (PLAIN, PLAIN[::-1]), (["a<madeupword3>b"],)):
        columns = {"return_special_tokens_mask": True, "padding": True}
        assert dict(ours(*inputs, **columns)) == dict(theirs(*inputs, **columns))
    assert (len(ours), ours.model_input_names) == (len(theirs), theirs.model_input_names)


@pytest.mark.reference
def test_pegasus_beside_the_reference(sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    path = tmp_path / "spiece.model"
    path.write_bytes(sentence_pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "pegasus"}')
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    # The layout of Google's checkpoints, which the reference has in their tokenizer.json and no longer makes itself.
    first = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, 103))]
    pieces = [(model.id_to_piece(number), model.get_score(number)) for number in range(2, len(model))]
    ours = AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.PegasusTokenizer(vocab=[*((text, 0.0) for text in first), *pieces])
    assert type(ours) is classes.PegasusTokenizer
    assert (ours.unk_token_id, len(ours)) == (105, len(model) + 103)
    for inputs in ((PLAIN,), (PLAIN, PLAIN[::-1]), (["<mask_1>the<mask_2>"],)):
        assert dict(ours(*inputs, padding=True)) == dict(theirs(*inputs, padding=True))
    assert ours.decode(ours(PLAIN[0])["input_ids"], skip_special_tokens=True) == PLAIN[0]
    ours.save_pretrained(tmp_path / "saved")
    assert dict(AutoTokenizer.from_pretrained(tmp_path / "saved")(PLAIN)) == dict(ours(PLAIN))


@pytest.mark.reference
def test_blenderbot_and_mvp_beside_the_reference(bpe_files: Path, odd_texts: list[str]) -> None:
    for name in ("BlenderbotTokenizer", "MvpTokenizer"):
        ours, theirs = (getattr(library, name).from_pretrained(bpe_files) for library in (classes, transformers))
        texts = odd_texts[:300]
        assert ours(texts, add_special_tokens=False)["input_ids"] == theirs(texts, add_special_tokens=False)["input_ids"]
        assert ours.special_tokens_map == theirs.special_tokens_map
    row = classes.BlenderbotTokenizer.from_pretrained(bpe_files)("the")
    assert row.tokens() == ["Ġthe", "</s>"]


@pytest.mark.reference
def test_the_first_gpt_beside_the_reference(odd_texts: list[str], tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False)
    backend.train_from_iterator(sentences(), trainer)
    backend.model.save(str(tmp_path))
    assert compare(of_reference("OpenAIGPTTokenizer", tmp_path), odd_texts).different == []
    (tmp_path / "config.json").write_text('{"model_type": "openai-gpt"}')
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is classes.OpenAIGPTTokenizer


def test_xlnet_puts_special_tokens_and_padding_on_the_other_side(sentence_pieces: SentencePieces) -> None:
    symbols = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"]
    path = sentence_pieces(control_symbols=symbols, user_defined_symbols=["<eop>", "(", ")"])
    xlnet = classes.XLNetTokenizer(path)
    batch = xlnet(["the hello world", "hello"], ["world", "the"], padding=True, return_token_type_ids=True)
    tokens, kinds = xlnet.convert_ids_to_tokens(batch["input_ids"][1]), batch["token_type_ids"][1]
    assert (tokens[0], tokens[-2:]) == ("<pad>", ["<sep>", "<cls>"])
    assert (kinds[0], kinds[-2:]) == (3, [1, 2])
    assert set(kinds) == {0, 1, 2, 3}
    assert xlnet("the", return_token_type_ids=True)["token_type_ids"][-2:] == [0, 2]
    assert xlnet.extra_special_tokens == ["<eop>", "<eod>"]
    assert "(" not in xlnet.all_special_tokens


def test_barthez_has_its_models_own_order(sentence_pieces: SentencePieces) -> None:
    path = sentence_pieces(bos_id=0, pad_id=1, eos_id=2, unk_id=3, control_symbols=["<mask>"])
    barthez = classes.BarthezTokenizer(path)
    assert barthez.tokenize("the hello", add_special_tokens=True) == ["<s>", "▁the", "▁hello", "</s>"]
    assert [barthez.bos_token_id, barthez.pad_token_id, barthez.eos_token_id, barthez.unk_token_id] == [0, 1, 2, 3]


def test_albert_cleans_texts_and_keeps_user_defined_symbols_ordinary(
    sentence_pieces: SentencePieces, odd_texts: list[str]
) -> None:
    symbols = ["[CLS]", "[SEP]", "[MASK]"]
    path = sentence_pieces(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=symbols, user_defined_symbols=["(", "-"])
    for lower in (True, False):
        count = compare(of_sentencepiece(path, classes.AlbertTokenizer(path, do_lower_case=lower), cleaned(lower)), odd_texts)
        assert count.different == []
    albert = classes.AlbertTokenizer(path)
    assert albert.all_special_tokens == ["[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]"]
    row = albert("the (hello")["input_ids"]
    assert albert.decode(row, skip_special_tokens=True) == "the (hello"
    kept = classes.AlbertTokenizer(path, keep_accents=True, do_lower_case=False)
    assert kept.tokenize("é") != albert.tokenize("é")


def test_options_of_llama(sentence_pieces: SentencePieces) -> None:
    options = {"remove_extra_whitespaces": False, "normalization_rule_name": "identity", "byte_fallback": True}
    path = sentence_pieces(model_type="bpe", vocab_size=640, **options)

    def joined(text: str, *, special: bool = False, **settings: Any) -> str:
        tokens = classes.LlamaTokenizer(path, **settings).tokenize(*text.split("|"), add_special_tokens=special)
        return "".join(tokens)

    assert joined("the<s>the") == "▁the<s>the"
    assert joined(" the") == "▁▁the"
    assert joined("the<s>the", legacy=True) == "▁the<s>▁the"
    assert joined("the<s>the", add_prefix_space=False) == "the<s>the"
    both = {"add_bos_token": True, "add_eos_token": True}
    assert joined("the|a", special=True, **both) == "<s>▁the</s><s>▁a</s>"
    kinds = classes.LlamaTokenizer(path, **both)("the", "a", return_token_type_ids=True)["token_type_ids"]
    assert (kinds[0], kinds[-1], kinds) == (0, 1, sorted(kinds))
    llama = classes.LlamaTokenizer(path)
    assert llama.padding_side == "left"
    for text in ("the ☃ é", "  two  spaces ", "日本\n\n"):
        assert llama.decode(llama(text)["input_ids"]) == text


@pytest.mark.reference
def test_reformer_equals_the_reference(sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(sentence_pieces(model_type="bpe", vocab_size=640).read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "reformer"}')
    ours, theirs = AutoTokenizer.from_pretrained(tmp_path), transformers.ReformerTokenizer.from_pretrained(tmp_path)
    assert type(ours) is classes.ReformerTokenizer
    assert dict(ours(PLAIN, PLAIN[::-1])) == dict(theirs(PLAIN, PLAIN[::-1]))
    assert ours.decode(ours(PLAIN[0])["input_ids"]) == PLAIN[0]
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert (ours.padding_side, ours.model_input_names) == (theirs.padding_side, theirs.model_input_names)


@pytest.mark.reference
def test_gemma_equals_the_reference(sentence_pieces: SentencePieces, odd_texts: list[str], tmp_path: Path) -> None:
    options = {"remove_extra_whitespaces": False, "normalization_rule_name": "identity", "add_dummy_prefix": False}
    options |= {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"}
    options |= {
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "model_type": "bpe",
        "vocab_size": 640,
        "byte_fallback": True,
    }
    symbols = ["<mask>", "<start_of_turn>", "\n", "\n\n"]
    path = sentence_pieces(user_defined_symbols=symbols, **options)
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "gemma2"}')
    texts = [*odd_texts[:800], "the  two\n\n\nlines", " <start_of_turn>user\nthe<bos> é ☃"]
    for settings in ({}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        ours, theirs = AutoTokenizer.from_pretrained(tmp_path), transformers.GemmaTokenizer.from_pretrained(tmp_path)
        assert type(ours) is classes.GemmaTokenizer
        assert (ours.special_tokens_map, ours.padding_side) == (theirs.special_tokens_map, theirs.padding_side)
        for text in texts:
            assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
    assert ours.decode(ours("the ☃\n\n  é")["input_ids"], skip_special_tokens=True) == "the ☃\n\n  é"
    # Where runs of spaces are symbols, the reference does not find them.
    path = sentence_pieces(user_defined_symbols=[*symbols, "▁▁", "▁▁▁"], **options)
    assert compare(of_sentencepiece(path, classes.GemmaTokenizer(path)), odd_texts).different == []


@pytest.mark.reference
def test_sentinels_of_t5(sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    path = sentence_pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (tmp_path / "spiece.model").write_bytes(path.read_bytes())
    ours, theirs = (kind.from_pretrained(tmp_path) for kind in (classes.T5Tokenizer, transformers.T5Tokenizer))
    for token in ("<extra_id_0>", "<extra_id_99>"):
        assert ours.convert_tokens_to_ids(token) == theirs.convert_tokens_to_ids(token)
    assert ours.vocab_size == len(ours) == 480
    assert classes.T5Tokenizer(path, extra_ids=0).vocab_size == 380
    for wrong in (-1, 10**12, "100", None):
        with pytest.raises(FormatError, match="extra_ids is"):
            classes.T5Tokenizer(path, extra_ids=wrong)


@pytest.mark.real_data
@pytest.mark.reference
def test_clip_decodes_like_the_reference(tmp_path: Path) -> None:
    folder = clip_files(tmp_path)
    ours, theirs = (kind.CLIPTokenizer.from_pretrained(folder) for kind in (classes, transformers))
    rows = ours(["A photo of a cat.", "two   Dogs, é!"])["input_ids"]
    assert ours.batch_decode(rows) == theirs.batch_decode(rows)
    assert ours.batch_decode(rows, skip_special_tokens=True) == ["a photo of a cat .", "two dogs , é !"]
    assert compare(of_reference("CLIPTokenizer", folder), PLAIN).different == []


def test_every_name_has_its_fast_spelling() -> None:
    names = [name for name in vars(classes) if name.endswith("Tokenizer") and name not in ("Tokenizer", "PreTrainedTokenizer")]
    slow = (
        "Marian",
        "M2M100",
        "BlenderbotSmall",
        "CTRL",
        "Canine",
        "BertGeneration",
        "XLM",
        "Flaubert",
        "BioGpt",
        "FSMT",
        "PLBart",
        "Luke",
        "ProphetNet",
    )
    for name in slow:  # the reference has no other
        names.remove(f"{name}Tokenizer")
    assert len(names) >= 19
    for name in names:
        assert getattr(classes, f"{name}Fast") is getattr(classes, name)
        assert hasattr(transformers, name), name
    assert classes.PreTrainedTokenizerBase is classes.PreTrainedTokenizerFast


@pytest.mark.real_data
def test_the_examples_of_the_glossary() -> None:
    tokenizer = classes.BertTokenizer(vocab_file=VOCABS / "bert-base-cased/vocab.txt", do_lower_case=False)
    sequence = "A Titan RTX has 24GB of VRAM"
    assert tokenizer.tokenize(sequence) == ["A", "Titan", "R", "##T", "##X", "has", "24", "##GB", "of", "V", "##RA", "##M"]
    ids = [101, 138, 18696, 155, 1942, 3190, 1144, 1572, 13745, 1104, 159, 9664, 2107, 102]
    assert tokenizer(sequence)["input_ids"] == ids
    assert tokenizer.decode(ids) == "[CLS] A Titan RTX has 24GB of VRAM [SEP]"
    short = "This is a short sequence."
    long = "This is a rather long sequence. It is at least longer than the sequence A."
    assert [len(tokenizer(text)["input_ids"]) for text in (short, long)] == [8, 19]
    padded = tokenizer([short, long], padding=True)
    assert padded["input_ids"][0] == tokenizer(short)["input_ids"] + [0] * 11
    assert padded["attention_mask"] == [[1] * 8 + [0] * 11, [1] * 19]
    pair = tokenizer("HuggingFace is based in NYC", "Where is HuggingFace based?")
    assert tokenizer.decode(pair["input_ids"]) == ("[CLS] HuggingFace is based in NYC [SEP] Where is HuggingFace based? [SEP]")
    assert pair["token_type_ids"] == [0] * 10 + [1] * 9


def test_tokenizing_imports_no_torch(vocab_txt: Path) -> None:
    code = (
        "import sys, time; began = time.process_time()\n"
        "from transept.preprocess.text.auto import AutoTokenizer\n"
        "print(time.process_time() - began)\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(vocab_txt)!r}, pad_token='[PAD]')\n"
        "batch = tokenizer(['the hello', 'the'], padding=True, truncation=True, max_length=9)\n"
        "batch.word_ids(0), tokenizer.decode(batch['input_ids'])\n"
        "heavy = {'torch', 'numpy', 'transformers', 'sentencepiece', 'google.protobuf', 'tiktoken', 'jinja2'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "tokenizer(['the'], return_tensors='np')\n"
        "assert 'torch' not in sys.modules and 'numpy' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=PATIENCE)
    assert float(done.stdout) < slowness()


@pytest.mark.reference
def test_letters_of_proteins_beside_the_reference(tmp_path: Path) -> None:
    words = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    ours, theirs = (library.from_pretrained(tmp_path) for library in (classes.EsmTokenizer, transformers.EsmTokenizer))
    texts = ["MKTAYIAKQR", "MK TA<mask>YI", "mkt A-Z.", "K 7 x7K", "", "<null_1>M", "M<eos>K"]
    for inputs in ((texts,), (texts, texts[::-1])):
        assert ours(*inputs)["input_ids"] == theirs(*inputs)["input_ids"]
    assert ours(texts, padding=True)["attention_mask"] == theirs(texts, padding=True)["attention_mask"]
    assert ours.decode(ours(texts[0])["input_ids"]) == theirs.decode(theirs(texts[0])["input_ids"])
    ours.save_pretrained(tmp_path / "saved")
    assert classes.EsmTokenizer.from_pretrained(tmp_path / "saved")(texts)["input_ids"] == ours(texts)["input_ids"]


@pytest.mark.reference
def test_rembert_reads_a_sentencepiece_model_beside_the_reference(sentence_pieces: SentencePieces, tmp_path: Path) -> None:
    (tmp_path / "sentencepiece.model").write_bytes(sentence_pieces(**LAYOUTS["AlbertTokenizer"][0]).read_bytes())
    ours, theirs = (library.from_pretrained(tmp_path) for library in (classes.RemBertTokenizer, transformers.RemBertTokenizer))
    texts = [*PLAIN, "the  Paris"]  # the reference has another id for unknown pieces
    apart = ours(texts, add_special_tokens=False)["input_ids"]
    assert apart == theirs(texts, add_special_tokens=False)["input_ids"]
    # The reference puts special tokens around texts where there is a tokenizer.json alone.
    first, last = ours.cls_token_id, ours.sep_token_id
    assert ours(texts)["input_ids"] == [[first, *ids, last] for ids in apart]
    pairs = [[first, *one, last, *other, last] for one, other in zip(apart, apart[::-1], strict=True)]
    assert ours(texts, texts[::-1])["input_ids"] == pairs
    assert ours.model_input_names == theirs.model_input_names
