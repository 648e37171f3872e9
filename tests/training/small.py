"""Small models of ours and of the reference with the same weights, and rows for them."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import transept

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SIZES |= {"max_position_embeddings": 64, "initializer_range": 0.1}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}
GPT = {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.1}
GPT |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
T5 = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
T5 |= {"decoder_start_token_id": 0}
VIT = {"image_size": 16, "patch_size": 8, "num_channels": 3} | STILL
WAVE = {"vocab_size": 12, "conv_dim": [8, 8], "conv_stride": [4, 4], "conv_kernel": [8, 4], "num_conv_pos_embeddings": 4}
WAVE |= {"num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
WAVE |= {"feat_proj_dropout": 0.0, "final_dropout": 0.0, "layerdrop": 0.0, "apply_spec_augment": False, "mask_time_prob": 0.0}
WAVE |= {"ctc_loss_reduction": "mean", "ctc_zero_infinity": True}
BODY = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}


@dataclass(frozen=True)
class Head:
    """A class, its settings, and which rows it reads."""

    name: str
    settings: dict[str, Any]
    rows: str
    accumulates: bool = False  # whether the reference accumulates it rightly


HEADS = [
    Head("BertForSequenceClassification", SIZES | STILL, "class"),
    Head("BertForTokenClassification", SIZES | STILL, "tokens"),
    Head("BertForQuestionAnswering", SIZES | STILL | {"num_labels": 2}, "span"),
    Head("BertForMaskedLM", SIZES | STILL, "masked"),
    Head("BertForMultipleChoice", SIZES | STILL, "choice"),
    Head("ElectraForSequenceClassification", SIZES | STILL | {"embedding_size": 8}, "class"),
    Head("RobertaForTokenClassification", SIZES | STILL | {"max_position_embeddings": 70}, "tokens"),
    Head("GPT2LMHeadModel", GPT, "text", accumulates=True),
    Head("LlamaForCausalLM", SIZES | {"num_key_value_heads": 1}, "text", accumulates=True),
    Head("T5ForConditionalGeneration", T5, "pair"),
    Head("ViTForImageClassification", BODY | VIT, "picture", accumulates=True),
    Head("Wav2Vec2ForCTC", BODY | WAVE, "sound"),
]


def head(name: str) -> Head:
    return next(each for each in HEADS if each.name == name)


def rows(kind: str, count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """Rows of equal sizes and different lengths, with labels of which some are ignored."""
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=draw)

    def row() -> dict[str, Tensor]:
        if kind == "picture":
            return {"pixel_values": torch.randn(3, 16, 16, generator=draw), "labels": number(0, 3)}
        if kind == "sound":
            labels = number(1, 12, 5)
            labels[int(number(2, 5)) :] = -100
            return {"input_values": torch.randn(400, generator=draw), "labels": labels}
        if kind == "spectrum":
            labels = number(2, 60, 6)
            labels[int(number(2, 7)) :] = -100
            return {"input_features": torch.randn(8, 20, generator=draw), "labels": labels}
        if kind == "choice":
            return {"input_ids": number(5, 60, 3, 8), "labels": number(0, 3)}
        length = int(number(4, 13))
        ids, mask = number(5, 60, 12), (torch.arange(12) < length).long()
        found = {"input_ids": ids * mask, "attention_mask": mask}
        if kind == "class":
            return found | {"labels": number(0, 3)}
        if kind == "span":
            start = int(number(0, length))
            return found | {"start_positions": torch.tensor(start), "end_positions": number(start, length)}
        if kind == "pair":
            labels = number(5, 60, 6)
            labels[int(number(2, 7)) :] = -100
            return found | {"labels": labels}
        labels = number(0, 3, 12) if kind == "tokens" else ids.clone()
        if kind == "masked":
            labels[torch.rand(12, generator=draw) < 0.6] = -100
        if kind == "text":
            labels[0] = -100  # nothing predicts it, yet the reference counts it for classes that it does not know
        return found | {"labels": labels.masked_fill(mask == 0, -100)}

    return [row() for _ in range(count)]


def ours(head: Head, seed: int = 0, **more: Any) -> Any:
    """A model of ours with random weights."""
    cls = getattr(transept, head.name)
    torch.manual_seed(seed)
    return cls(cls.config_class(**(head.settings | more)))


def pair(head: Head, **more: Any) -> tuple[Any, Any]:
    """Ours and the reference's with the same weights."""
    import transformers

    theirs = getattr(transformers, head.name)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        made = theirs(theirs.config_class(**(head.settings | more)))
        made.save_pretrained(folder)
        return getattr(transept, head.name).from_pretrained(folder), made


@contextmanager
def reference_warnings() -> Iterator[None]:
    """The reference warns of things that are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def quiet(folder: Path, **settings: Any) -> dict[str, Any]:
    """Settings of a run that shows nothing and saves nothing."""
    return {
        "output_dir": str(folder),
        "disable_tqdm": True,
        "save_strategy": "no",
        "use_cpu": True,
        "logging_steps": 1,
    } | settings
