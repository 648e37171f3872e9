"""Tokenizers of word pieces, and of whole words."""

from __future__ import annotations

from transept.preprocess.text import build, tokens
from transept.preprocess.text.tokenizer import Tokenizer


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
