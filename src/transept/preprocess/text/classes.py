"""The public names of tokenizers. The spelling with ``Fast`` means the same class: the library does the work of all."""

from __future__ import annotations

from functools import partial

import tokenizers

from transept.preprocess.text import boxes, build, languages, tokenizer
from transept.preprocess.text.build import Template
from transept.preprocess.text.python import marian, slow
from transept.preprocess.text.settings import Token
from transept.preprocess.text.tokenizer import Tokenizer

AddedToken = tokenizers.AddedToken
PreTrainedTokenizerFast = PreTrainedTokenizerBase = TokenizersBackend = tokenizer.Tokenizer
PreTrainedTokenizer = PythonBackend = slow.PreTrainedTokenizer
MarianTokenizer = marian.MarianTokenizer
MBartTokenizer = languages.MBartTokenizer
MBart50Tokenizer = languages.MBart50Tokenizer

_END = "<|endoftext|>"
_BERT_TEMPLATE: Template = (("cls", "A", "sep"), ("cls", "A", "sep", "B:1", "sep:1"))
_ROBERTA_TEMPLATE: Template = (("bos", "A", "eos"), ("bos", "A", "eos", "eos", "B", "eos"))


def _files(vocab: str, **others: str) -> dict[str, str]:
    return {"vocab_file": vocab, **others, "tokenizer_file": "tokenizer.json"}


def _named(**tokens: Token) -> dict[str, Token | None]:
    return {f"{name}_token": token for name, token in tokens.items()}


def _word_mask(text: str) -> tokenizers.AddedToken:
    """A mask that is a word of its own takes the space before it, as words do."""
    return AddedToken(text, lstrip=True, special=True, normalized=False)


def _apart(text: str) -> tokenizers.AddedToken:
    """A special token that takes the spaces around it."""
    return AddedToken(text, lstrip=True, rstrip=True, special=True, normalized=False)


_BERT_TOKENS = _named(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ROBERTA_TOKENS = _named(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>", cls="<s>", mask=_word_mask("<mask>"))


# WordPiece


class BertTokenizer(
    Tokenizer,
    files=_files("vocab.txt"),
    tokens=_BERT_TOKENS,
    build=build.wordpiece_backend,
    options={"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None},
    template=_BERT_TEMPLATE,
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    portable=True,
    model_types=(
        *("bert", "ernie", "convbert", "layoutlm", "megatron-bert", "mobilebert", "nomic_bert", "squeezebert"),
        "visual_bert",
    ),
):
    """BERT's tokenizer. ``do_lower_case``, ``tokenize_chinese_chars`` and ``strip_accents`` are its options."""


class DistilBertTokenizer(BertTokenizer, inputs=("input_ids", "attention_mask"), model_types=("distilbert",)):
    """DistilBERT's: BERT's without token types."""


class ElectraTokenizer(BertTokenizer, model_types=("electra",)):
    """ELECTRA's: BERT's."""


class DPRContextEncoderTokenizer(BertTokenizer):
    """BERT's, of DPR's passages."""


class DPRQuestionEncoderTokenizer(BertTokenizer, model_types=("dpr",)):
    """BERT's, of DPR's questions."""


class MPNetTokenizer(
    BertTokenizer,
    tokens=_ROBERTA_TOKENS | {"unk_token": "[UNK]"},
    template=build.around_roberta,
    inputs=("input_ids", "attention_mask"),
    model_types=("mpnet",),
):
    """MPNet's: BERT's word pieces with RoBERTa's special tokens."""


class EsmTokenizer(
    Tokenizer,
    files={"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"},
    tokens=_named(eos="<eos>", unk="<unk>", pad="<pad>", cls="<cls>", mask="<mask>"),
    build=build.words_backend,
    options={},
    template=(("cls", "A", "eos"), ("cls", "A", "eos", "B", "eos")),
    inputs=("input_ids", "attention_mask"),
    portable=True,
    model_types=("esm",),
):
    """ESM's: each token of the vocabulary, such as the letter of an amino acid, is found wherever it stands."""


# Byte pairs


class GPT2Tokenizer(
    Tokenizer,
    files=_files("vocab.json", merges_file="merges.txt"),
    tokens=_named(bos=_END, eos=_END, unk=_END),
    build=build.byte_level_backend,
    options={"add_prefix_space": False},
    portable=True,
    model_types=("gpt2", "gpt_bigcode", "gptj", "gpt_neo", "codegen", "opt", "phi", "starcoder2"),
):
    """GPT-2's tokenizer. Options: ``add_prefix_space``, ``add_bos_token`` and ``add_eos_token``."""


class RobertaTokenizer(
    GPT2Tokenizer,
    tokens=_ROBERTA_TOKENS,
    options={"add_prefix_space": False, "trim_offsets": True},
    template=build.around_roberta,
    model_types=("roberta", "longformer", "data2vec-text", "roberta-prelayernorm", "led"),
):
    """RoBERTa's: GPT-2's byte pairs with special tokens around. Options: ``add_prefix_space``, ``trim_offsets``."""


class BartTokenizer(RobertaTokenizer, model_types=("bart",)):
    """BART's: RoBERTa's."""


class DebertaTokenizer(
    GPT2Tokenizer,
    tokens=_named(bos="[CLS]", eos="[SEP]") | _BERT_TOKENS | _named(mask=_word_mask("[MASK]")),
    template=(("cls", "A", "sep"), ("cls", "A", "sep", "sep", "B", "sep")),
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    model_types=("deberta",),
):
    """DeBERTa's: GPT-2's byte pairs with BERT's special tokens."""


class LayoutLMv3Tokenizer(
    boxes.BoxTokenizer,
    files=_files("vocab.json", merges_file="merges.txt"),
    tokens=_ROBERTA_TOKENS,
    build=build.byte_level_backend,
    options={"add_prefix_space": True, "trim_offsets": True} | boxes.BOX_OPTIONS,
    template=build.around_roberta,
    inputs=("input_ids", "attention_mask", "bbox"),
    portable=True,
    applied=True,
    model_types=("layoutlmv3",),
):
    """LayoutLMv3's: RoBERTa's, of words with their boxes."""


class GPTNeoXTokenizer(
    GPT2Tokenizer,
    tokens=_named(bos=_END, eos=_END, unk=_END, pad="<|padding|>"),
    build=partial(build.byte_level_backend, compose=True),
    model_types=("gpt_neox", "mpt", "mamba", "mamba2", "falcon_mamba", "rwkv", "olmo", "olmoe"),
):
    """GPT-NeoX's: GPT-2's byte pairs of text in Unicode's NFC."""


class Qwen2Tokenizer(
    GPT2Tokenizer,
    tokens=_named(eos=_END, unk=_END, pad=_END),
    build=partial(build.byte_level_backend, pattern=build.QWEN, compose=True),
    model_types=("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"),
):
    """Qwen2's: byte pairs of text in Unicode's NFC, with digits apart."""


class CohereTokenizer(
    GPT2Tokenizer,
    tokens=_named(bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>")
    | _named(unk="<UNK>", pad="<PAD>", cls="<CLS>", sep="<SEP>", mask="<MASK_TOKEN>"),
    build=partial(build.byte_level_backend, compose=True, digits=True),
    padding_side="left",
    model_types=("cohere", "cohere2"),
):
    """Command R's: byte pairs of text in Unicode's NFC, with digits apart."""


class CLIPTokenizer(
    GPT2Tokenizer,
    tokens=_named(bos="<|startoftext|>", eos=_END, unk=_END, pad=_END),
    build=build.clip_backend,
    options={},
    template=partial(build.around_roberta, sep="eos_token", cls="bos_token"),
    model_types=("clip", "clipseg", "clip_text_model"),
):
    """CLIP's: byte pairs of lower-case words that end in ``</w>``, with the begin token before a text and the end after it."""

    def _decoded(self, ids: list[int], skip_special_tokens: bool) -> str:
        return super()._decoded(ids, skip_special_tokens).replace("</w>", " ").strip()


class OpenAIGPTTokenizer(
    GPT2Tokenizer, tokens=_named(unk="<unk>"), build=build.gpt_backend, options={}, model_types=("openai-gpt",)
):
    """The first GPT's: byte pairs of lower-case words, without special tokens."""


# SentencePiece


class LlamaTokenizer(
    Tokenizer,
    files=_files("tokenizer.model"),
    tokens=_named(bos="<s>", eos="</s>", unk="<unk>"),
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
    files=_files("tokenizer.model"),
    tokens=_named(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>"),
    build=build.plain_backend,
    options={},
    padding_side="left",
    model_types=("gemma", "gemma2", "gemma3", "gemma3_text"),
):
    """Gemma's tokenizer (byte pairs with byte fallback). Options: ``add_bos_token`` and ``add_eos_token``."""


class T5Tokenizer(
    Tokenizer,
    files=_files("spiece.model"),
    tokens=_named(eos="</s>", unk="<unk>", pad="<pad>"),
    build=build.t5_backend,
    options={"extra_ids": 100},
    template=(("A", "eos"), ("A", "eos", "B", "eos")),
    extra_tokens=build.sentinels,
    model_types=("t5", "mt5", "longt5", "switch_transformers"),
):
    """T5's tokenizer. Option ``extra_ids``: how many sentinels ``<extra_id_0>``, ... follow the vocabulary."""


class SiglipTokenizer(
    Tokenizer,
    files=_files("spiece.model"),
    tokens=_named(eos=_apart("</s>"), unk=_apart("<unk>"), pad=_apart("</s>")),
    build=build.siglip_backend,
    options={"do_lower_case": True},
    template=(("A", "eos"), ("A", "eos", "B", "eos")),
    max_length=64,
    model_types=("siglip", "siglip_text_model"),
):
    """SigLIP's tokenizer: unigrams of lower-case words without punctuation, 64 at most. Option: ``do_lower_case``."""


class ReformerTokenizer(
    Tokenizer,
    files=_files("spiece.model"),
    tokens=_named(eos="</s>", unk="<unk>"),
    build=build.plain_backend,
    options={},
    model_types=("reformer",),
):
    """Reformer's tokenizer (byte pairs), which adds no special tokens."""


class AlbertTokenizer(
    Tokenizer,
    files=_files("spiece.model"),
    tokens=_named(bos="[CLS]", eos="[SEP]") | _BERT_TOKENS | _named(unk="<unk>", pad="<pad>", mask=_word_mask("[MASK]")),
    build=build.cleaned_backend,
    options={"do_lower_case": True, "keep_accents": False},
    template=_BERT_TEMPLATE,
    model_types=("albert", "nystromformer"),
):
    """ALBERT's tokenizer. Options: ``do_lower_case`` and ``keep_accents``."""


class RemBertTokenizer(
    AlbertTokenizer,
    files=_files("sentencepiece.model"),
    options={"do_lower_case": False, "keep_accents": True},
    inputs=("input_ids", "attention_mask"),
    model_types=("rembert",),
):
    """RemBERT's: ALBERT's with accents and capital letters."""


class XLNetTokenizer(
    AlbertTokenizer,
    tokens=_ROBERTA_TOKENS | _named(sep="<sep>", cls="<cls>"),
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
    files=_files("sentencepiece.bpe.model"),
    tokens=_ROBERTA_TOKENS,
    build=build.fairseq_backend,
    options={},
    template=_ROBERTA_TEMPLATE,
    model_types=("xlm-roberta", "xlm-roberta-xl", "xmod", "jina_embeddings_v3"),
):
    """XLM-RoBERTa's tokenizer, whose ids are those of fairseq: four special tokens, the pieces, the mask."""


_UNUSED = tuple(f"<madeupword{number}>" for number in range(7))


class XGLMTokenizer(
    XLMRobertaTokenizer,
    tokens={name: token for name, token in _ROBERTA_TOKENS.items() if name != "mask_token"},
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
    files=_files("spm.model"),
    tokens=_named(bos="[CLS]", eos="[SEP]") | _BERT_TOKENS,
    build=build.deberta_backend,
    options={"do_lower_case": False, "split_by_punct": False},
    template=_BERT_TEMPLATE,
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    model_types=("deberta-v2",),
):
    """The tokenizer of DeBERTa's second and third version. Options: ``do_lower_case`` and ``split_by_punct``."""


BertTokenizerFast = BertTokenizer
EsmTokenizerFast = EsmTokenizer
DistilBertTokenizerFast = DistilBertTokenizer
ElectraTokenizerFast = ElectraTokenizer
DPRContextEncoderTokenizerFast = DPRContextEncoderTokenizer
DPRQuestionEncoderTokenizerFast = DPRQuestionEncoderTokenizer
MPNetTokenizerFast = MPNetTokenizer
GPT2TokenizerFast = GPT2Tokenizer
OpenAIGPTTokenizerFast = OpenAIGPTTokenizer
RobertaTokenizerFast = RobertaTokenizer
BartTokenizerFast = BartTokenizer
DebertaTokenizerFast = DebertaTokenizer
LayoutLMv3TokenizerFast = LayoutLMv3Tokenizer
SiglipTokenizerFast = SiglipTokenizer
GPTNeoXTokenizerFast = GPTNeoXTokenizer
Qwen2TokenizerFast = Qwen2Tokenizer
CohereTokenizerFast = CohereTokenizer
CLIPTokenizerFast = CLIPTokenizer
LlamaTokenizerFast = LlamaTokenizer
GemmaTokenizerFast = GemmaTokenizer
T5TokenizerFast = T5Tokenizer
ReformerTokenizerFast = ReformerTokenizer
AlbertTokenizerFast = AlbertTokenizer
MobileBertTokenizer = MobileBertTokenizerFast = BertTokenizer
RemBertTokenizerFast = RemBertTokenizer
XLNetTokenizerFast = XLNetTokenizer
XLMRobertaTokenizerFast = XLMRobertaTokenizer
XGLMTokenizerFast = XGLMTokenizer
CamembertTokenizerFast = CamembertTokenizer
BarthezTokenizerFast = BarthezTokenizer
DebertaV2TokenizerFast = DebertaV2Tokenizer
MBartTokenizerFast = MBartTokenizer
MBart50TokenizerFast = MBart50Tokenizer
