"""Tokenizers of word pieces, and of whole words."""

from __future__ import annotations

from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers

from transept.errors import refuse
from transept.preprocess.text import build, tokens
from transept.preprocess.text.tokenizer import Tokenizer


def composed_wordpiece_backend(files: build.VocabularyFiles, texts: build.Tokens, options: build.Options) -> Backend:
    """BERT's word pieces of composed text; without ``do_basic_tokenize`` those of words as they stand between spaces."""
    what = "`never_split` is not supported: words are split by the vocabulary."
    refuse(options["never_split"], what, "Add the words: tokenizer.add_tokens([...]).")
    backend = build.wordpiece_backend(files, texts, options)
    if options["do_basic_tokenize"]:
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), backend.normalizer])
    else:
        backend.normalizer, backend.pre_tokenizer = normalizers.Sequence([]), pre_tokenizers.WhitespaceSplit()
    return backend


def word_list(backend: Backend) -> str:
    """A vocabulary as a file has it that is read line by line, without tokens that were added."""
    words = sorted(backend.get_vocab(with_added_tokens=False).items(), key=lambda word: word[1])
    return "".join(f"{token}\n" for token, _ in words)


class BertTokenizer(
    Tokenizer,
    files=tokens.files("vocab.txt"),
    tokens=tokens.BERT_TOKENS,
    build=build.wordpiece_backend,
    options={"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None},
    template=tokens.BERT_TEMPLATE,
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


class FunnelTokenizer(
    BertTokenizer,
    tokens=tokens.named(unk="<unk>", sep="<sep>", pad="<pad>", cls="<cls>", mask="<mask>", bos="<s>", eos="</s>"),
    options={
        "do_lower_case": True,
        "tokenize_chinese_chars": True,
        "strip_accents": None,
        "clean_text": True,
        "wordpieces_prefix": "##",
    },
    template=(("cls:2", "A", "sep"), ("cls:2", "A", "sep", "B:1", "sep:1")),
    inputs=("input_ids", "attention_mask"),
    model_types=("funnel",),
):
    """Funnel Transformer's: BERT's word pieces, with a token type of its own for the first token."""

    cls_token_type_id = 2


class SplinterTokenizer(
    BertTokenizer,
    options={"question_token": "[QUESTION]", "do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None},
    template=tokens.around_question,
    extra_tokens=lambda options: (options["question_token"],),
    inputs=("input_ids", "attention_mask"),
    model_types=("splinter",),
):
    """Splinter's: BERT's word pieces; behind a question stands ``question_token``, for its answer."""

    @property
    def question_token(self) -> str:
        return str(self._options["question_token"])

    @property
    def question_token_id(self) -> int | None:
        return self.convert_tokens_to_ids(self.question_token)


class MPNetTokenizer(
    BertTokenizer,
    tokens=tokens.ROBERTA_TOKENS | {"unk_token": "[UNK]"},
    template=build.around_roberta,
    inputs=("input_ids", "attention_mask"),
    model_types=("mpnet",),
):
    """MPNet's: BERT's word pieces with RoBERTa's special tokens."""


class ProphetNetTokenizer(
    BertTokenizer,
    files=tokens.files("prophetnet.tokenizer"),
    tokens=tokens.named(unk="[UNK]", sep="[SEP]", x_sep="[X_SEP]", pad="[PAD]", mask="[MASK]"),
    build=composed_wordpiece_backend,
    options={"do_basic_tokenize": True, "never_split": None} | dict(BertTokenizer.family.options),
    template=(("A", "sep"), ("A", "sep", "B:1", "sep:1")),
    inputs=("input_ids", "attention_mask"),
    applied=True,
    portable=False,
    model_types=("prophetnet",),
):
    """ProphetNet's: BERT's word pieces with an end, and ``x_sep_token`` between the points of a summary."""

    clean_up_tokenization_spaces = True

    def _files(self) -> dict[str, str | bytes]:
        """With the vocabulary alone, which the reference reads."""
        return super()._files() | {self.vocab_files_names["vocab_file"]: word_list(self._backend)}


class EsmTokenizer(
    Tokenizer,
    files={"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"},
    tokens=tokens.named(eos="<eos>", unk="<unk>", pad="<pad>", cls="<cls>", mask="<mask>"),
    build=build.words_backend,
    options={},
    template=(("cls", "A", "eos"), ("cls", "A", "eos", "B", "eos")),
    inputs=("input_ids", "attention_mask"),
    portable=True,
    model_types=("esm",),
):
    """ESM's: each token of the vocabulary, such as the letter of an amino acid, is found wherever it stands."""


BertTokenizerFast = BertTokenizer
EsmTokenizerFast = EsmTokenizer
DistilBertTokenizerFast = DistilBertTokenizer
ElectraTokenizerFast = ElectraTokenizer
DPRContextEncoderTokenizerFast = DPRContextEncoderTokenizer
DPRQuestionEncoderTokenizerFast = DPRQuestionEncoderTokenizer
MPNetTokenizerFast = MPNetTokenizer
MobileBertTokenizer = MobileBertTokenizerFast = BertTokenizer
FunnelTokenizerFast = FunnelTokenizer
SplinterTokenizerFast = SplinterTokenizer
