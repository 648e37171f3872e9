"""What encoder–decoders write beside the reference, token for token, and the pipelines that translate and summarise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import transept
from transept.core.model import Model

from .families import FAMILIES, Family
from .harness import SINGLE, batch, classes, compare, pair

# Those of `families/seq2seq.py` that have no tests of generation of their own.
NAMES = ("bigbird_pegasus", "blenderbot", "blenderbot-small", "longt5", "m2m_100", "mvp", "pegasus", "plbart")
NAMES += ("umt5", "switch_transformers", "nllb-moe")
WRITERS = [
    pytest.param(family, cls, id=family.model_type)
    for family in FAMILIES
    if family.model_type in NAMES
    for cls in classes(family)
    if cls.__name__.endswith("ForConditionalGeneration")
]


@pytest.mark.reference
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("family", "cls"), WRITERS)
def test_writes_as_the_reference(family: Family, cls: type[Model], beams: int) -> None:
    ours, theirs = pair(family, cls)
    pad = "none" if family.reads_padding else "right"
    inputs = {name: value for name, value in batch(family, cls, pad=pad).items() if not name.startswith("decoder_")}
    asked: dict[str, Any] = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False, "forced_bos_token_id": 9}
    asked |= {"decoder_start_token_id": 2}
    mine: Any = ours
    found = mine.generate(**inputs, **asked)
    assert found.tolist() == theirs.generate(**inputs, **asked).tolist()
    assert found.tolist() == mine.generate(**inputs, **asked, use_cache=False).tolist()


@pytest.mark.reference
@pytest.mark.parametrize("name", ["m2m_100", "nllb"])
def test_translates_as_the_reference(name: str, tmp_path: Path) -> None:
    import sentencepiece
    import transformers

    texts = [f"the {word} of Paris is {other}" for word in ("cat", "hello", "world") for other in ("a", "new", "here")]
    path = tmp_path / "sentencepiece.bpe.model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 20), model_prefix=str(path)[: -len(".model")], vocab_size=21, minloglevel=2
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(number) for number in range(3, len(model)))]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: place for place, piece in enumerate(pieces)}))
    kind, languages = ("M2M100Tokenizer", ("en", "fr")) if name == "m2m_100" else ("NllbTokenizer", ("eng_Latn", "fra_Latn"))
    tokenizer = getattr(transept, kind).from_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path / "model")
    torch.manual_seed(0)
    settings = next(family for family in FAMILIES if family.model_type == "m2m_100").tiny | {"vocab_size": len(tokenizer)}
    theirs = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**settings)).eval()
    theirs.save_pretrained(tmp_path / "model")
    pipe = transept.pipeline("translation", str(tmp_path / "model"), src_lang=languages[0], tgt_lang=languages[1])
    found = pipe(texts[:2], max_new_tokens=8)
    other = getattr(transformers, kind).from_pretrained(tmp_path / "model", src_lang=languages[0])
    start = other.convert_tokens_to_ids(languages[1]) if name == "nllb" else other.get_lang_id(languages[1])
    for text, answer in zip(texts, found, strict=False):
        ids = theirs.generate(**other(text, return_tensors="pt"), forced_bos_token_id=start, max_new_tokens=8)
        assert answer[0]["translation_text"] == other.decode(ids[0], skip_special_tokens=True)


RESIZED = [
    pytest.param(family, cls, id=cls.__name__)
    for family in FAMILIES
    if family.model_type in ("pegasus", "pegasus_x")
    for cls in classes(family)
]


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls"), RESIZED)
def test_positions_are_resized_as_the_references(family: Family, cls: type[Model]) -> None:
    ours, theirs = pair(family, cls)
    for size in (70, 7):
        ours.resize_position_embeddings(size)
        if family.model_type == "pegasus":  # the other's decoder has no such method there, and no table
            theirs.resize_position_embeddings(size)
        assert ours.config.max_position_embeddings == size
        inputs = batch(family, cls, pad="none", length=min(size, 68))
        with torch.no_grad():
            compare(ours(**inputs), theirs(**inputs), SINGLE)
    state = theirs.state_dict()
    assert {name: value.shape for name, value in ours.state_dict().items()} == {name: state[name].shape for name in state}
