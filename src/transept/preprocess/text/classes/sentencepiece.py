"""Tokenizers of SentencePiece models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import tokenizers

from transept.errors import FormatError
from transept.preprocess.text import build, tokens
from transept.preprocess.text.sentencepiece import CONTROL, Piece, sentencepiece_backend
from transept.preprocess.text.tokenizer import Tokenizer


class LlamaTokenizer(
    Tokenizer,
    files=tokens.files("tokenizer.model"),
    tokens=tokens.named(bos="<s>", eos="</s>", unk="<unk>"),
    build=build.llama_backend,
    options={"legacy": False, "add_prefix_space": None},
    padding_side="left",
    model_types=("llama", "mistral", "mixtral"),
):
    """Llama's tokenizer (byte pairs with byte fallback).

    Options: ``legacy`` (whether the space before a text is also put after special tokens), ``add_prefix_space``,
    ``add_bos_token`` and ``add_eos_token``.
    """


class GemmaTokenizer(
    Tokenizer,
    files=tokens.files("tokenizer.model"),
    tokens=tokens.named(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>"),
    build=build.plain_backend,
    options={},
    padding_side="left",
    model_types=("gemma", "gemma2", "gemma3", "gemma3_text", "recurrent_gemma", "t5gemma"),
):
    """Gemma's tokenizer (byte pairs with byte fallback). Options: ``add_bos_token`` and ``add_eos_token``."""


class T5Tokenizer(
    Tokenizer,
    files=tokens.files("spiece.model"),
    tokens=tokens.named(eos="</s>", unk="<unk>", pad="<pad>"),
    build=build.t5_backend,
    options={"extra_ids": 100},
    template=(("A", "eos"), ("A", "eos", "B", "eos")),
    extra_tokens=build.sentinels,
    model_types=("t5", "mt5", "umt5", "longt5", "switch_transformers"),
):
    """T5's tokenizer. Option ``extra_ids``: how many sentinels ``<extra_id_0>``, ... follow the vocabulary."""


_MAX_UNUSED = 10_000


def _unused(options: Mapping[str, Any]) -> list[str]:
    """The masks and the tokens that mean nothing, which stand between PEGASUS's end and the unknown piece."""
    count = options["offset"]
    if type(count) is not int or not 2 <= count <= _MAX_UNUSED:
        raise FormatError(f"offset is {count!r:.40}, but must be an integer from 2 to {_MAX_UNUSED}.")
    return [options["mask_token_sent"], *(f"<unk_{place}>" for place in range(2, count))]


def pegasus_backend(
    files: build.VocabularyFiles, tokens: Mapping[str, str], options: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Padding and the end, two masks, tokens that mean nothing, and the model's pieces from the third on."""
    model, (mask, *rest) = files.need_sentencepiece(), _unused(options)
    first = [tokens["pad_token"], tokens["eos_token"], mask, tokens["mask_token"], *rest]
    pieces = [*(Piece(text, kind=CONTROL) for text in first), *model.pieces[2:]]
    return sentencepiece_backend(model, pieces=pieces)


class PegasusTokenizer(
    Tokenizer,
    files=tokens.files("spiece.model"),
    tokens=tokens.named(eos="</s>", unk="<unk>", pad="<pad>", mask="<mask_2>"),
    build=pegasus_backend,
    options={"offset": 103, "mask_token_sent": "<mask_1>"},
    template=(("A", "eos"), ("A", "B", "eos")),
    extra_tokens=lambda options: _unused(options),
    model_types=("pegasus", "pegasus_x", "bigbird_pegasus"),
):
    """PEGASUS's tokenizer: masks of sentences and words, and tokens that mean nothing, stand before the model's pieces.

    Options: ``mask_token_sent`` is the mask of a sentence; ``offset`` is how much larger ids are than in the model.
    """


class SiglipTokenizer(
    Tokenizer,
    files=tokens.files("spiece.model"),
    tokens=tokens.named(eos=tokens.apart("</s>"), unk=tokens.apart("<unk>"), pad=tokens.apart("</s>")),
    build=build.siglip_backend,
    options={"do_lower_case": True},
    template=(("A", "eos"), ("A", "eos", "B", "eos")),
    max_length=64,
    model_types=("siglip", "siglip_text_model"),
):
    """SigLIP's tokenizer: unigrams of lower-case words without punctuation, 64 at most. Option: ``do_lower_case``."""


class ReformerTokenizer(
    Tokenizer,
    files=tokens.files("spiece.model"),
    tokens=tokens.named(eos="</s>", unk="<unk>"),
    build=build.plain_backend,
    options={},
    model_types=("reformer",),
):
    """Reformer's tokenizer (byte pairs), which adds no special tokens."""


class AlbertTokenizer(
    Tokenizer,
    files=tokens.files("spiece.model"),
    tokens=tokens.named(bos="[CLS]", eos="[SEP]")
    | tokens.BERT_TOKENS
    | tokens.named(unk="<unk>", pad="<pad>", mask=tokens.word_mask("[MASK]")),
    build=build.cleaned_backend,
    options={"do_lower_case": True, "keep_accents": False},
    template=tokens.BERT_TEMPLATE,
    model_types=("albert", "nystromformer"),
):
    """ALBERT's tokenizer. Options: ``do_lower_case`` and ``keep_accents``."""


class FNetTokenizer(AlbertTokenizer, inputs=("input_ids", "token_type_ids"), model_types=("fnet",)):
    """FNet's: ALBERT's, without a mask."""


class BigBirdTokenizer(
    Tokenizer,
    files=tokens.files("spiece.model"),
    tokens=tokens.named(bos="<s>", eos="</s>")
    | tokens.BERT_TOKENS
    | tokens.named(unk="<unk>", pad="<pad>", mask=tokens.word_mask("[MASK]")),
    build=build.plain_backend,
    options={"add_prefix_space": True},
    template=tokens.BERT_TEMPLATE,
    model_types=("big_bird",),
):
    """BigBird's tokenizer: unigrams with BERT's special tokens."""


class BertGenerationTokenizer(
    Tokenizer,
    files=tokens.files("spiece.model"),
    tokens=tokens.named(bos="<s>", eos="</s>", unk="<unk>", pad="<pad>", sep="<::::>"),
    build=build.plain_backend,
    options={},
    model_types=("bert-generation",),
):
    """The tokenizer of BERT for generation, which adds no special tokens."""


class RemBertTokenizer(
    AlbertTokenizer,
    files=tokens.files("sentencepiece.model"),
    options={"do_lower_case": False, "keep_accents": True},
    inputs=("input_ids", "attention_mask"),
    model_types=("rembert",),
):
    """RemBERT's: ALBERT's with accents and capital letters."""


class XLNetTokenizer(
    AlbertTokenizer,
    tokens=tokens.ROBERTA_TOKENS | tokens.named(sep="<sep>", cls="<cls>"),
    options={"do_lower_case": False, "keep_accents": False},
    template=(("A", "sep", "cls:2"), ("A", "sep", "B:1", "sep:1", "cls:2")),
    extra_tokens=lambda options: ("<eop>", "<eod>"),
    padding_side="left",
    pad_type=3,
    model_types=("xlnet",),
):
    """XLNet's tokenizer: special tokens follow the text, and padding goes before it."""


class XLMRobertaTokenizer(
    Tokenizer,
    files=tokens.files("sentencepiece.bpe.model"),
    tokens=tokens.ROBERTA_TOKENS,
    build=build.fairseq_backend,
    options={},
    template=tokens.ROBERTA_TEMPLATE,
    model_types=("xlm-roberta", "xlm-roberta-xl", "xmod", "jina_embeddings_v3"),
):
    """XLM-RoBERTa's tokenizer, whose ids are those of fairseq: four special tokens, the pieces, the mask."""


_UNUSED = tuple(f"<madeupword{number}>" for number in range(7))


class XGLMTokenizer(
    XLMRobertaTokenizer,
    tokens={name: token for name, token in tokens.ROBERTA_TOKENS.items() if name != "mask_token"},
    build=partial(build.fairseq_backend, between=_UNUSED),
    template=(("eos", "A"), ("eos", "A", "eos", "eos", "B")),
    extra_tokens=lambda options: _UNUSED,
    inputs=("input_ids", "attention_mask"),
    model_types=("xglm",),
):
    """XGLM's: XLM-RoBERTa's pieces behind the end token, and seven words that mean nothing."""


class CamembertTokenizer(
    XLMRobertaTokenizer,
    build=build.camembert_backend,
    extra_tokens=lambda options: ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    model_types=("camembert",),
):
    """CamemBERT's tokenizer: fairseq's places are not used, and the model's own special pieces are."""


class BarthezTokenizer(XLMRobertaTokenizer, build=build.plain_backend, model_types=("barthez",)):
    """BARThez's tokenizer: its model has fairseq's order already."""


class DebertaV2Tokenizer(
    Tokenizer,
    files=tokens.files("spm.model"),
    tokens=tokens.named(bos="[CLS]", eos="[SEP]") | tokens.BERT_TOKENS,
    build=build.deberta_backend,
    options={"do_lower_case": False, "split_by_punct": False},
    template=tokens.BERT_TEMPLATE,
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    model_types=("deberta-v2",),
):
    """The tokenizer of DeBERTa's second and third version. Options: ``do_lower_case`` and ``split_by_punct``."""


SiglipTokenizerFast = SiglipTokenizer
LlamaTokenizerFast = LlamaTokenizer
GemmaTokenizerFast = GemmaTokenizer
T5TokenizerFast = T5Tokenizer
ReformerTokenizerFast = ReformerTokenizer
AlbertTokenizerFast = AlbertTokenizer
RemBertTokenizerFast = RemBertTokenizer
XLNetTokenizerFast = XLNetTokenizer
XLMRobertaTokenizerFast = XLMRobertaTokenizer
XGLMTokenizerFast = XGLMTokenizer
CamembertTokenizerFast = CamembertTokenizer
BarthezTokenizerFast = BarthezTokenizer
DebertaV2TokenizerFast = DebertaV2Tokenizer
FNetTokenizerFast = FNetTokenizer
BigBirdTokenizerFast = BigBirdTokenizer
PegasusTokenizerFast = PegasusTokenizer
