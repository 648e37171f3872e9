"""The public names of tokenizers. The spelling with ``Fast`` means the same class: the library does the work of all."""

from __future__ import annotations

import tokenizers

from transept.preprocess.text import (
    family_bytepair,
    family_languages,
    family_sentencepiece,
    family_wordpiece,
    marian,
    tokenizer,
)

AddedToken = tokenizers.AddedToken
PreTrainedTokenizerFast = PreTrainedTokenizer = PreTrainedTokenizerBase = TokenizersBackend = tokenizer.Tokenizer

BertTokenizer = BertTokenizerFast = family_wordpiece.BertTokenizer
DistilBertTokenizer = DistilBertTokenizerFast = family_wordpiece.DistilBertTokenizer
ElectraTokenizer = ElectraTokenizerFast = family_wordpiece.ElectraTokenizer
MPNetTokenizer = MPNetTokenizerFast = family_wordpiece.MPNetTokenizer

BartTokenizer = BartTokenizerFast = family_bytepair.BartTokenizer
CLIPTokenizer = CLIPTokenizerFast = family_bytepair.CLIPTokenizer
GPT2Tokenizer = GPT2TokenizerFast = family_bytepair.GPT2Tokenizer
GPTNeoXTokenizer = GPTNeoXTokenizerFast = family_bytepair.GPTNeoXTokenizer
Qwen2Tokenizer = Qwen2TokenizerFast = family_bytepair.Qwen2Tokenizer
RobertaTokenizer = RobertaTokenizerFast = family_bytepair.RobertaTokenizer

AlbertTokenizer = AlbertTokenizerFast = family_sentencepiece.AlbertTokenizer
BarthezTokenizer = BarthezTokenizerFast = family_sentencepiece.BarthezTokenizer
CamembertTokenizer = CamembertTokenizerFast = family_sentencepiece.CamembertTokenizer
DebertaV2Tokenizer = DebertaV2TokenizerFast = family_sentencepiece.DebertaV2Tokenizer
GemmaTokenizer = GemmaTokenizerFast = family_sentencepiece.GemmaTokenizer
MBartTokenizer = MBartTokenizerFast = family_languages.MBartTokenizer
MBart50Tokenizer = MBart50TokenizerFast = family_languages.MBart50Tokenizer
MarianTokenizer = marian.MarianTokenizer
LlamaTokenizer = LlamaTokenizerFast = family_sentencepiece.LlamaTokenizer
ReformerTokenizer = ReformerTokenizerFast = family_sentencepiece.ReformerTokenizer
T5Tokenizer = T5TokenizerFast = family_sentencepiece.T5Tokenizer
XLMRobertaTokenizer = XLMRobertaTokenizerFast = family_sentencepiece.XLMRobertaTokenizer
XLNetTokenizer = XLNetTokenizerFast = family_sentencepiece.XLNetTokenizer
