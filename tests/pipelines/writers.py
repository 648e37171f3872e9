"""Tiny models that write, with a vocabulary of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn

import transept

SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCABULARY = {token: index for index, token in enumerate([*SPECIAL.values(), *LETTERS])}
IDS = {"vocab_size": len(VOCABULARY), "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
WIDTHS = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
STACKS: dict[str, Any] = {
    f"{half}_{name}": size
    for half in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
}
STACKS |= {"d_model": 32, "decoder_start_token_id": 2, "forced_eos_token_id": None}
SIZES: dict[str, dict[str, Any]] = {
    "Llama": {**WIDTHS, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 512},
    "Mistral": {**WIDTHS, "intermediate_size": 48, "num_key_value_heads": 2, "sliding_window": 24},
    "Gemma2": {**WIDTHS, "intermediate_size": 48, "num_key_value_heads": 2, "sliding_window": 24, "head_dim": 8},
    "GPTNeoX": {**WIDTHS, "intermediate_size": 48, "max_position_embeddings": 512},
    "OPT": {**WIDTHS, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 512},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Mamba": {"hidden_size": 32, "num_hidden_layers": 2},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "T5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 1},
    **{family: {**STACKS, "max_position_embeddings": 512} for family in ("Bart", "MBart")},
}


def tokenizer(pairs: str = "<s> $A </s> </s> $B </s>", single: str = "$A") -> Any:
    """One token a byte."""
    core = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[], unk_token="<unk>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(single=single, pair=pairs, special_tokens=[("<s>", 0), ("</s>", 2)])
    return transept.PreTrainedTokenizerFast(tokenizer_object=core, **SPECIAL)


def model(name: str, **settings: Any) -> Any:
    """A model of the class of that name whose scores are far apart."""
    family = next(family for family in SIZES if name.startswith(family))
    torch.manual_seed(0)
    made = getattr(transept, name)(getattr(transept, f"{family}Config")(**{**IDS, **SIZES[family], **settings})).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.3 / parameter.std())
    return made


def pipe(task: str, name: str, settings: dict[str, Any] | None = None, **options: Any) -> Any:
    """A pipeline of such a model."""
    single = "$A" if name.endswith(("CausalLM", "LMHeadModel")) else "$A </s>"
    return transept.pipeline(task, model=model(name, **settings or {}), tokenizer=tokenizer(single=single), **options)


class Watch:
    """Keeps the shapes (rows, positions) of what a module reads, and fails where it has more rows than there is memory."""

    def __init__(self, module: nn.Module, most: int | None = None, error: Callable[[], Exception] | None = None) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.most, self.error = most, error
        self.handle = module.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        ids: Tensor = args[0] if args else kwargs["input_ids"]
        if self.most is not None and self.error is not None and ids.shape[0] > self.most:
            raise self.error()
        self.shapes.append(tuple(ids.shape))

    @property
    def positions(self) -> int:
        """Positions read in all, padding included."""
        return sum(rows * length for rows, length in self.shapes)
