"""Pipelines equal one process: every family by every schedule, in 2 and 4 processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import transept
from transept.objectives.terms import total
from transept.parallel.launch import join
from transept.parallel.mesh import DistributedConfig
from transept.parallel.pipeline import SCHEDULES, Pipeline

from .ranks import Ranks

BLOCK = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 4}
TEXT = BLOCK | {"vocab_size": 97, "intermediate_size": 24}
SAME = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
STACKS = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", TEXT | SAME),
    "gpt2": (
        "GPT2LMHeadModel",
        BLOCK | {"vocab_size": 97, "n_inner": 24, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "llama": ("LlamaForCausalLM", TEXT),
    "mixtral": ("MixtralForCausalLM", TEXT | {"num_key_value_heads": 2, "num_local_experts": 4}),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 97, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 2}
        | {"dropout_rate": 0.0, "decoder_start_token_id": 0},
    ),
    "vit": (
        "ViTForImageClassification",
        BLOCK | {"intermediate_size": 24, "image_size": 8, "patch_size": 4, "num_labels": 5},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        STACKS
        | {"vocab_size": 97, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_mel_bins": 4, "max_source_positions": 6}
        | {
            "max_target_positions": 24,
            "pad_token_id": 96,
            "bos_token_id": 95,
            "eos_token_id": 95,
            "decoder_start_token_id": 94,
        },
    ),
}


def build(family: str, **more: Any) -> Any:
    name, settings = FAMILIES[family]
    kind = getattr(transept, name)
    torch.manual_seed(3)
    return kind(kind.config_class(**settings | more))


def make(family: str, rows: int, length: int, seed: int) -> dict[str, Tensor]:
    """A batch with padding at the end of some rows, and other numbers of labels in each."""
    torch.manual_seed(seed)
    if family == "vit":
        return {"pixel_values": torch.randn(rows, 3, 8, 8), "labels": torch.randint(0, 5, (rows,))}
    labels = torch.randint(1, 90, (rows, length))
    labels[torch.rand(rows, length) < 0.4] = -100
    if family == "whisper":
        return {"input_features": torch.randn(rows, 4, 12), "labels": labels}
    ids, mask = torch.randint(1, 90, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    for row in range(0, rows, 2):
        mask[row, length - 1 - row % 3 :] = 0
    ids, labels = ids * mask, labels.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels if family != "t5" else labels[:, : length // 2 + 1]}


def one_process(model: Any, batches: list[dict[str, Tensor]]) -> Tensor:
    """The loss of an update, whose gradients are added to the model's."""
    counts = [model.count(batch) for batch in batches]
    items = {name: torch.stack([count[name] for count in counts]).sum() for name in counts[0]}
    losses = [total(model(**batch).loss_terms, items, len(batches)) for batch in batches]
    for loss in losses:
        loss.backward()
    return torch.stack(losses).sum().detach()


def train(family: str, settings: dict[str, Any], updates: int = 10, parts: int = 1, checkpointing: bool = False) -> Any:
    """The largest differences of losses, gradients, norms and evaluated logits from one process, and of the weights at the end."""
    join()
    config = DistributedConfig(pp_size=dist.get_world_size(), **settings)
    reference, model = build(family).train(), build(family).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    pipeline = Pipeline(model, config.layout(dist.get_world_size()).mesh("cpu"), config)
    rate = 0.1
    worst = dict.fromkeys(("loss", "gradient", "norm", "logits", "weight"), 0.0)
    for update in range(updates):
        batches = [make(family, 5 + update % 3, 6 + 7 * (update % 3), 10 * update + part) for part in range(parts)]
        expected = one_process(reference, batches)
        counts = [model.count(batch) for batch in batches]
        items = {name: torch.stack([count[name] for count in counts]).sum() for name in counts[0]}
        loss = torch.stack([pipeline.step(batch, items, parts) for batch in batches]).sum()
        pipeline.finish_gradients()
        worst["loss"] = max(worst["loss"], float((loss - expected).abs()))
        grads = {name: p.grad for name, p in reference.named_parameters(remove_duplicate=False)}
        norm = torch.stack([p.grad.norm() for p in reference.parameters() if p.grad is not None]).norm()
        worst["norm"] = max(worst["norm"], float((pipeline.norm() / norm - 1).abs()))
        largest = max(float(g.abs().max()) for g in grads.values() if g is not None)
        for name, p in pipeline.named_parameters():
            theirs = torch.zeros_like(p) if p.grad is None else p.grad
            ours = torch.zeros_like(p) if grads[name] is None else grads[name]
            worst["gradient"] = max(worst["gradient"], float((theirs - ours).abs().max()) / largest)
        for parameters in (reference.parameters(), pipeline.parameters()):
            for p in parameters:
                if p.grad is not None:
                    p.data -= rate * p.grad
                    p.grad = None
    batch = make(family, 7, 9, 99)
    reference.eval(), pipeline.eval()
    output = pipeline.evaluate(batch)
    with torch.no_grad():
        theirs = reference(**batch)
    if output is not None:
        worst["logits"] = float((output.logits - theirs.logits).abs().max())
        worst["loss"] = max(worst["loss"], float((output.loss - theirs.loss).abs()))
    expected = dict(reference.named_parameters(remove_duplicate=False))
    worst["weight"] = max(float((p - expected[name]).detach().abs().max()) for name, p in pipeline.named_parameters())
    return worst, sum(p.numel() for p in pipeline.parameters()) / sum(p.numel() for p in reference.parameters())


def within(found: list[Any]) -> None:
    """What must hold: losses within 1e-5, gradients within 2e-5 of the largest one."""
    for worst, _ in found:
        assert worst["loss"] < 1e-5, found
        assert worst["gradient"] < 2e-5, found
        assert worst["norm"] < 1e-5, found
        assert worst["logits"] < 1e-4, found
        assert worst["weight"] < 1e-5, found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_one_process(ranks: Ranks, family: str) -> None:
    within(ranks.run(2, train, family, {"pp_schedule": "1F1B"}))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_every_schedule_equals_one_process(ranks: Ranks, schedule: str, family: str) -> None:
    within(ranks.run(2, train, family, {"pp_schedule": schedule}, 3, 2, True))
