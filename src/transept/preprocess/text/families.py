"""The families of tokenizers: what the tokenizers of each have in common, as records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

from transept.errors import FormatError
from transept.preprocess.text.build import (
    QWEN,
    Family,
    Options,
    Template,
    Tokens,
    VocabularyFiles,
    byte_level_backend,
    byte_pair_model,
    index_of,
    wordpiece_backend,
)
from transept.preprocess.text.sentencepiece import CONTROL, UNKNOWN, Piece, sentencepiece_backend
from transept.preprocess.text.special import Token

Build = Callable[[VocabularyFiles, Tokens, Options], tokenizers.Tokenizer]
MAX_SENTINELS = 10_000
_END = "<|endoftext|>"
_BERT_TEMPLATE: Template = (("cls", "A", "sep"), ("cls", "A", "sep", "B:1", "sep:1"))
_ROBERTA_TEMPLATE: Template = (("bos", "A", "eos"), ("bos", "A", "eos", "eos", "B", "eos"))


def _files(**names: str) -> Mapping[str, str]:
    return names | {"tokenizer_file": "tokenizer.json"}


def _named(mask: Token | None = None, **texts: str) -> dict[str, Token | None]:
    """Special tokens by name. A mask that is a word of its own takes the space before it, as words do."""
    named: dict[str, Token | None] = {f"{name}_token": text for name, text in texts.items()}
    return named if mask is None else named | {"mask_token": mask}


def _word_mask(text: str) -> AddedToken:
    return AddedToken(text, lstrip=True, special=True, normalized=False)


_BERT_TOKENS = _named(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ROBERTA_TOKENS = _named(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>", cls="<s>", mask=_word_mask("<mask>"))


# WordPiece


def _wordpiece(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
    return wordpiece_backend(files, unk_token=tokens["unk_token"], **options)


def _as_roberta(backend: tokenizers.Tokenizer, tokens: Tokens, options: Options) -> None:
    """``<s> A </s>`` and ``<s> A </s></s> B </s>``, with offsets that leave out the space before a word."""
    sep, cls = ((token, index_of(backend, token)) for token in (tokens["sep_token"], tokens["cls_token"]))
    trim, space = bool(options.get("trim_offsets", True)), bool(options.get("add_prefix_space"))
    backend.post_processor = processors.RobertaProcessing(sep, cls, trim, space)


BERT = Family(
    files=_files(vocab_file="vocab.txt"),
    tokens=_BERT_TOKENS,
    build=_wordpiece,
    options={"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None},
    template=_BERT_TEMPLATE,
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    portable=True,
    model_types=("bert", "ernie", "convbert", "layoutlm", "mobilebert", "squeezebert", "visual_bert"),
)

DISTILBERT = replace(BERT, inputs=("input_ids", "attention_mask"), model_types=("distilbert",))

ELECTRA = replace(BERT, model_types=("electra",))

MPNET = replace(
    BERT,
    tokens=_ROBERTA_TOKENS | {"unk_token": "[UNK]"},
    template=(("cls", "A", "sep"), ("cls", "A", "sep", "sep", "B", "sep")),
    finish=_as_roberta,
    inputs=("input_ids", "attention_mask"),
    model_types=("mpnet",),
)


# Byte pairs


def _byte_level(pattern: str | None = None, *, compose: bool = False) -> Build:
    def build(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
        return byte_level_backend(files, add_prefix_space=bool(options["add_prefix_space"]), pattern=pattern, compose=compose)

    return build


GPT2 = Family(
    files=_files(vocab_file="vocab.json", merges_file="merges.txt"),
    tokens=_named(bos=_END, eos=_END, unk=_END),
    build=_byte_level(),
    options={"add_prefix_space": False},
    portable=True,
    model_types=("gpt2", "gpt_bigcode", "gptj", "gpt_neo", "opt", "starcoder2"),
)

ROBERTA = replace(
    GPT2,
    tokens=_ROBERTA_TOKENS,
    options={"add_prefix_space": False, "trim_offsets": True},
    finish=_as_roberta,
    model_types=("roberta", "longformer", "data2vec-text", "roberta-prelayernorm", "led"),
)

BART = replace(ROBERTA, model_types=("bart",))

GPT_NEOX = replace(
    GPT2,
    tokens=_named(bos=_END, eos=_END, unk=_END, pad="<|padding|>"),
    build=_byte_level(compose=True),
    model_types=("gpt_neox", "mamba", "olmo"),
)

QWEN2 = replace(
    GPT2,
    tokens=_named(eos=_END, unk=_END, pad=_END),
    build=_byte_level(QWEN, compose=True),
    model_types=("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
)


_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def _clip(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
    ends = {"continuing_subword_prefix": "", "end_of_word_suffix": "</w>"}
    backend = tokenizers.Tokenizer(byte_pair_model(files, fuse_unk=False, unk_token=tokens["unk_token"], **ends))
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    return backend


def _clip_ends(backend: tokenizers.Tokenizer, tokens: Tokens, options: Options) -> None:
    ends = {"sep_token": tokens["eos_token"], "cls_token": tokens["bos_token"]}
    _as_roberta(backend, ends, {"trim_offsets": False})


CLIP = replace(
    GPT2,
    tokens=_named(bos="<|startoftext|>", eos=_END, unk=_END, pad=_END),
    build=_clip,
    options={},
    finish=_clip_ends,
    model_types=("clip", "clipseg", "clip_text_model"),
)


# SentencePiece


def _as_it_is(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
    """The model's pieces in their own order."""
    return sentencepiece_backend(files.need_sentencepiece())


def _llama(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
    prefix = "always" if options["legacy"] else "first"
    return sentencepiece_backend(files.need_sentencepiece(), prefix="never" if options["add_prefix_space"] is False else prefix)


LLAMA = Family(
    files=_files(vocab_file="tokenizer.model"),
    tokens=_named(bos="<s>", eos="</s>", unk="<unk>"),
    build=_llama,
    options={"legacy": False, "add_prefix_space": None},
    padding_side="left",
    model_types=("llama", "mistral", "mixtral"),
)

GEMMA = Family(
    files=_files(vocab_file="tokenizer.model"),
    tokens=_named(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>"),
    build=_as_it_is,
    options={},
    padding_side="left",
    model_types=("gemma", "gemma2", "gemma3", "gemma3_text"),
)


def _sentinels(options: Options) -> list[str]:
    count = options["extra_ids"]
    if type(count) is not int or not 0 <= count <= MAX_SENTINELS:
        raise FormatError(f"extra_ids is {count!r:.40}, but must be an integer from 0 to {MAX_SENTINELS}.")
    return [f"<extra_id_{place}>" for place in range(count)]


def _t5(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
    """The model's pieces, then the sentinels from the last to the first."""
    model = files.need_sentencepiece()
    known = {piece.text for piece in model.pieces}
    sentinels = [text for text in reversed(_sentinels(options)) if text not in known]
    return sentencepiece_backend(model, pieces=[*model.pieces, *(Piece(text, kind=CONTROL) for text in sentinels)])


T5 = Family(
    files=_files(vocab_file="spiece.model"),
    tokens=_named(eos="</s>", unk="<unk>", pad="<pad>"),
    build=_t5,
    options={"extra_ids": 100},
    template=(("A", "eos"), ("A", "eos", "B", "eos")),
    extra_tokens=_sentinels,
    model_types=("t5", "mt5", "longt5", "switch_transformers"),
)

REFORMER = Family(
    files=_files(vocab_file="spiece.model"),
    tokens=_named(eos="</s>", unk="<unk>"),
    build=_as_it_is,
    options={},
    model_types=("reformer",),
)


def _cleaned(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
    """The model's pieces in their own order, of text without accents and with plain quotes."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not options["keep_accents"]:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if options["do_lower_case"]:
        steps.append(normalizers.Lowercase())
    return sentencepiece_backend(files.need_sentencepiece(), before=steps)


ALBERT = Family(
    files=_files(vocab_file="spiece.model"),
    tokens=_named(bos="[CLS]", eos="[SEP]", unk="<unk>", sep="[SEP]", pad="<pad>", cls="[CLS]", mask=_word_mask("[MASK]")),
    build=_cleaned,
    options={"do_lower_case": True, "keep_accents": False},
    template=_BERT_TEMPLATE,
    model_types=("albert",),
)

XLNET = replace(
    ALBERT,
    tokens=_ROBERTA_TOKENS | _named(sep="<sep>", cls="<cls>"),
    options={"do_lower_case": False, "keep_accents": False},
    template=(("A", "sep", "cls:2"), ("A", "sep", "B:1", "sep:1", "cls:2")),
    extra_tokens=lambda options: ("<eop>", "<eod>"),
    padding_side="left",
    pad_type=3,
    model_types=("xlnet",),
)


def _control(*texts: str) -> list[Piece]:
    return [Piece(text, kind=CONTROL) for text in texts]


def _fairseq(*between: str) -> Build:
    """The order of fairseq's ids: four special tokens in place of the model's own, the pieces, ``between``, the mask."""

    def build(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
        model = files.need_sentencepiece()
        bos = tokens.get("bos_token") or tokens["cls_token"]
        first = [*_control(bos, tokens["pad_token"], tokens["eos_token"]), Piece(tokens["unk_token"], kind=UNKNOWN)]
        pieces = [*first, *model.pieces[3:], *_control(*between, tokens["mask_token"])]
        return sentencepiece_backend(model, pieces=pieces)

    return build


XLM_ROBERTA = Family(
    files=_files(vocab_file="sentencepiece.bpe.model"),
    tokens=_ROBERTA_TOKENS,
    build=_fairseq(),
    options={},
    template=_ROBERTA_TEMPLATE,
    model_types=("xlm-roberta", "xlm-roberta-xl", "xmod"),
)


def _camembert(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
    model = files.need_sentencepiece()
    first = _control("<s>NOTUSED", tokens["pad_token"], "</s>NOTUSED")
    first += [Piece(tokens["unk_token"], kind=UNKNOWN), *_control("<unk>NOTUSED")]
    return sentencepiece_backend(model, pieces=[*first, *model.pieces[1:], *_control(tokens["mask_token"])])


CAMEMBERT = replace(
    XLM_ROBERTA,
    build=_camembert,
    extra_tokens=lambda options: ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    model_types=("camembert",),
)

BARTHEZ = replace(XLM_ROBERTA, build=_as_it_is, model_types=("barthez",))


def _deberta(files: VocabularyFiles, tokens: Tokens, options: Options) -> tokenizers.Tokenizer:
    lower = [normalizers.Lowercase()] if options["do_lower_case"] else []
    apart = [pre_tokenizers.Punctuation(behavior="isolated")] if options["split_by_punct"] else []
    return sentencepiece_backend(files.need_sentencepiece(), before=lower, before_words=apart)


DEBERTA_V2 = Family(
    files=_files(vocab_file="spm.model"),
    tokens=_named(bos="[CLS]", eos="[SEP]") | _BERT_TOKENS,
    build=_deberta,
    options={"do_lower_case": False, "split_by_punct": False},
    template=_BERT_TEMPLATE,
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    model_types=("deberta-v2",),
)


# Many languages

LANGUAGES: tuple[str, ...] = (
    *("ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX", "kk_KZ"),
    *("ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN"),
)
_MORE = (
    *("af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN", "mn_MN", "mr_IN"),
    *("pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES"),
    "sl_SI",
)

MBART = replace(
    XLM_ROBERTA,
    build=_fairseq(*LANGUAGES),
    options={"src_lang": None, "tgt_lang": None},
    template=None,  # it depends on the language
    extra_tokens=lambda options: LANGUAGES,
    applied=frozenset({"src_lang", "tgt_lang"}),
    model_types=("mbart",),
)
MBART50_LANGUAGES = (*LANGUAGES, *_MORE)
MBART50 = replace(
    MBART,
    tokens={name: token for name, token in _ROBERTA_TOKENS.items() if name != "bos_token"},
    build=_fairseq(*MBART50_LANGUAGES),
    extra_tokens=lambda options: MBART50_LANGUAGES,
    model_types=(),
)
