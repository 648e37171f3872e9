"""Tokenizers of byte pairs, whose files are a vocabulary and merges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from transept.preprocess.text import boxes, build, tokens
from transept.preprocess.text.tokenizer import Tokenizer
from transept.storage.patterns import compile_pattern, timed

_PRINTS, _DEFINES = re.compile(r"^print", re.MULTILINE), re.compile(r"^def", re.MULTILINE)


class GPT2Tokenizer(
    Tokenizer,
    files=tokens.files("vocab.json", merges_file="merges.txt"),
    tokens=tokens.named(bos=tokens.END, eos=tokens.END, unk=tokens.END),
    build=build.byte_level_backend,
    options={"add_prefix_space": False},
    portable=True,
    model_types=("gpt2", "gpt_bigcode", "gptj", "gpt_neo", "codegen", "opt", "phi", "starcoder2"),
):
    """GPT-2's tokenizer. Options: ``add_prefix_space``, ``add_bos_token`` and ``add_eos_token``."""


class CodeGenTokenizer(GPT2Tokenizer, options={"add_prefix_space": False, "return_token_type_ids": False}):
    """CodeGen's: GPT-2's, whose decoded programs may be cut where a pattern begins."""

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        truncate_before_pattern: Sequence[str] | None = None,
        **options: Any,
    ) -> Any:
        """Ids back to text.

        With ``truncate_before_pattern``, a text ends before the first place that one of these regular expressions fits, and
        before the second line that begins with ``print`` or ``def``. Other arguments are those of every tokenizer.
        """
        text = super().decode(token_ids, skip_special_tokens, clean_up_tokenization_spaces, **options)
        if not truncate_before_pattern:
            return text
        if isinstance(text, list):
            return [self.truncate(one, truncate_before_pattern) for one in text]
        return self.truncate(text, truncate_before_pattern)

    def truncate(self, completion: str, truncate_before_pattern: Sequence[str]) -> str:
        """What stands before the first fit of a pattern, and before the second ``print`` and ``def`` at a line's beginning."""
        for begins in (_PRINTS, _DEFINES):
            places = [fit.start() for fit in begins.finditer(completion)]
            completion = completion[: places[1]] if len(places) > 1 else completion
        ends = [len(completion)]
        for pattern in truncate_before_pattern:  # in which ``^`` fits at each line's beginning
            found = compile_pattern("`truncate_before_pattern`", f"(?m-s:{pattern})", "patterns that texts end before")
            if (fit := timed(found.search, completion, over="a completion")) is not None:
                ends.append(fit.start())
        return completion[: min(ends)]


class RobertaTokenizer(
    GPT2Tokenizer,
    tokens=tokens.ROBERTA_TOKENS,
    options={"add_prefix_space": False, "trim_offsets": True},
    template=build.around_roberta,
    model_types=("roberta", "longformer", "data2vec-text", "roberta-prelayernorm", "led"),
):
    """RoBERTa's: GPT-2's byte pairs with special tokens around. Options: ``add_prefix_space``, ``trim_offsets``."""


class BartTokenizer(RobertaTokenizer, model_types=("bart",)):
    """BART's: RoBERTa's."""


class MvpTokenizer(RobertaTokenizer, model_types=("mvp",)):
    """MVP's: RoBERTa's."""


class BlenderbotTokenizer(
    RobertaTokenizer,
    options={"add_prefix_space": True, "trim_offsets": True},
    template=(("A", "eos"), ("A", "B", "eos")),
    model_types=("blenderbot",),
):
    """BlenderBot's: RoBERTa's byte pairs of a text that begins with a space, with an end."""


class DebertaTokenizer(
    GPT2Tokenizer,
    tokens=tokens.named(bos="[CLS]", eos="[SEP]") | tokens.BERT_TOKENS | tokens.named(mask=tokens.word_mask("[MASK]")),
    template=(("cls", "A", "sep"), ("cls", "A", "sep", "sep", "B", "sep")),
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    model_types=("deberta",),
):
    """DeBERTa's: GPT-2's byte pairs with BERT's special tokens."""


class LayoutLMv3Tokenizer(
    boxes.BoxTokenizer,
    files=tokens.files("vocab.json", merges_file="merges.txt"),
    tokens=tokens.ROBERTA_TOKENS,
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
    tokens=tokens.named(bos=tokens.END, eos=tokens.END, unk=tokens.END, pad="<|padding|>"),
    build=partial(build.byte_level_backend, compose=True),
    model_types=("gpt_neox", "mpt", "mamba", "mamba2", "falcon_mamba", "rwkv", "olmo", "olmoe"),
):
    """GPT-NeoX's: GPT-2's byte pairs of text in Unicode's NFC."""


class Qwen2Tokenizer(
    GPT2Tokenizer,
    tokens=tokens.named(eos=tokens.END, unk=tokens.END, pad=tokens.END),
    build=partial(build.byte_level_backend, pattern=build.QWEN, compose=True),
    model_types=("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"),
):
    """Qwen2's: byte pairs of text in Unicode's NFC, with digits apart."""


class Qwen3_5Tokenizer(  # noqa: N801 (the reference's name)
    Qwen2Tokenizer,
    build=partial(build.byte_level_backend, pattern=build.QWEN3_5, compose=True),
    model_types=("qwen3_5_text", "qwen3_5_moe_text"),
):
    """Qwen3.5's: Qwen2's, in which marks stay with their letters."""


class CohereTokenizer(
    GPT2Tokenizer,
    tokens=tokens.named(bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>")
    | tokens.named(unk="<UNK>", pad="<PAD>", cls="<CLS>", sep="<SEP>", mask="<MASK_TOKEN>"),
    build=partial(build.byte_level_backend, compose=True, digits=True),
    padding_side="left",
    model_types=("cohere", "cohere2"),
):
    """Command R's: byte pairs of text in Unicode's NFC, with digits apart."""


class CLIPTokenizer(
    GPT2Tokenizer,
    tokens=tokens.named(bos="<|startoftext|>", eos=tokens.END, unk=tokens.END, pad=tokens.END),
    build=build.clip_backend,
    options={},
    template=partial(build.around_roberta, sep="eos_token", cls="bos_token"),
    model_types=("clip", "clipseg", "clip_text_model"),
):
    """CLIP's: byte pairs of lower-case words that end in ``</w>``, with the begin token before a text and the end after it."""

    def _decoded(self, ids: list[int], skip_special_tokens: bool) -> str:
        return super()._decoded(ids, skip_special_tokens).replace("</w>", " ").strip()


class OpenAIGPTTokenizer(
    GPT2Tokenizer, tokens=tokens.named(unk="<unk>"), build=build.gpt_backend, options={}, model_types=("openai-gpt",)
):
    """The first GPT's: byte pairs of lower-case words, without special tokens."""


GPT2TokenizerFast = GPT2Tokenizer
OpenAIGPTTokenizerFast = OpenAIGPTTokenizer
RobertaTokenizerFast = RobertaTokenizer
BartTokenizerFast = BartTokenizer
DebertaTokenizerFast = DebertaTokenizer
LayoutLMv3TokenizerFast = LayoutLMv3Tokenizer
GPTNeoXTokenizerFast = GPTNeoXTokenizer
Qwen2TokenizerFast = Qwen2Tokenizer
CohereTokenizerFast = CohereTokenizer
CLIPTokenizerFast = CLIPTokenizer
CodeGenTokenizerFast = CodeGenTokenizer
MvpTokenizerFast = MvpTokenizer
BlenderbotTokenizerFast = BlenderbotTokenizer
Qwen3_5TokenizerFast = Qwen3_5Tokenizer
