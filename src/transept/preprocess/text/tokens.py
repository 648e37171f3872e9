"""The special tokens of families, and where they go."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, processors

from transept.errors import FormatError
from transept.preprocess.text.backend import guarded
from transept.preprocess.text.build import Options, Template, Tokens, token_of
from transept.preprocess.text.settings import Token

END = "<|endoftext|>"
BERT_TEMPLATE: Template = (("cls", "A", "sep"), ("cls", "A", "sep", "B:1", "sep:1"))
ROBERTA_TEMPLATE: Template = (("bos", "A", "eos"), ("bos", "A", "eos", "eos", "B", "eos"))


def files(vocab: str, **others: str) -> dict[str, str]:
    return {"vocab_file": vocab, **others, "tokenizer_file": "tokenizer.json"}


def named(**tokens: Token) -> dict[str, Token | None]:
    return {f"{name}_token": token for name, token in tokens.items()}


def word_mask(text: str) -> AddedToken:
    """A mask that is a word of its own takes the space before it, as words do."""
    return AddedToken(text, lstrip=True, special=True, normalized=False)


def apart(text: str) -> AddedToken:
    """A special token that takes the spaces around it."""
    return AddedToken(text, lstrip=True, rstrip=True, special=True, normalized=False)


BERT_TOKENS = named(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
ROBERTA_TOKENS = named(bos="<s>", eos="</s>", unk="<unk>", sep="</s>", pad="<pad>", cls="<s>", mask=word_mask("<mask>"))


def around_question(backend: Tokenizer, tokens: Tokens, options: Options) -> processors.PostProcessor:
    """BERT's special tokens; a question before a text ends in a token that stands for its answer, and a full stop."""
    asks = options["question_token"]
    used = dict(token_of(backend, tokens, f"{name}_token") for name in ("cls", "sep"))
    used |= dict(
        token_of(backend, {"question_token": asks, "full stop": "."}, name) for name in ("question_token", "full stop")
    )
    cls, sep = tokens["cls_token"], tokens["sep_token"]
    pair = [f"{cls}:0", "$A:0", f"{asks}:0", ".:0", f"{sep}:0", "$B:1", f"{sep}:1"]
    with guarded(FormatError, "the special tokens cannot be put around texts"):
        single = [f"{cls}:0", "$A:0", f"{sep}:0"]
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(used.items()))
