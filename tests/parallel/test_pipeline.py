"""Pipelines equal one process, by every schedule, in 2 and 4 processes; a trainer runs them over all families."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import transept
from tests.thorough import crossed
from transept.objectives.terms import total
from transept.parallel.mesh import SCHEDULES, DistributedConfig
from transept.parallel.pipeline.partition import divide, partition
from transept.parallel.pipeline.pipeline import Pipeline
from transept.parallel.pipeline.stage import padded_rows, spread_texts
from transept.parallel.processes import join
from transept.parallel.sharded import Sharding

from .ranks import Ranks

BLOCK = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 4}
TEXT = BLOCK | {"vocab_size": 97, "intermediate_size": 24}
SAME = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
STACKS = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("AlbertForMaskedLM", TEXT | SAME | {"embedding_size": 8}),
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


def train(family: str, settings: dict[str, Any], updates: int = 5, parts: int = 1, checkpointing: bool = False) -> Any:
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


@pytest.mark.parametrize(("schedule", "family"), crossed(SCHEDULES, ["gpt2", "t5"], 6))
def test_every_schedule_equals_one_process(ranks: Ranks, schedule: str, family: str) -> None:
    within(ranks.run(2, train, family, {"pp_schedule": schedule}, 3, 2, True))


def test_layers_that_are_one_module_are_on_several_stages(ranks: Ranks) -> None:
    within(ranks.run(2, train, "albert", {"pp_schedule": "1F1B"}, 3))


def test_four_stages_and_four_processes(ranks: Ranks) -> None:
    found = ranks.run(4, train, "t5", {"pp_schedule": "1F1B", "pp_microbatches": 5}, 3)
    within(found)
    assert max(share for _, share in found) < 0.7


def replicas(family: str) -> dict[str, float]:
    """A pipeline of two stages for each of two shares of the rows, whose gradients are added up by hand."""
    rank = join()
    config = DistributedConfig(pp_size=2)
    layout = config.layout(4)
    mesh = layout.mesh("cpu")
    reference, pipeline = build(family).train(), Pipeline(build(family).train(), mesh, config)
    batches = [make(family, 5, 9, seed) for seed in range(4)]  # two micro-batches for each share
    expected = one_process(reference, batches)
    items = {name: sum(reference.count(batch)[name] for batch in batches) for name in reference.count(batches[0])}
    own = batches[2 * layout.data_rank(rank) :][:2]
    loss = torch.stack([pipeline.step(batch, items, len(batches), scale=2.0) for batch in own]).sum()
    pipeline.finish_gradients()
    group = mesh["dp_replicate"].get_group()
    for p in pipeline.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= 2.0  # as DistributedDataParallel averages
    dist.all_reduce(loss, group=group)
    norm = torch.stack([p.grad.norm() for p in reference.parameters()]).norm()
    theirs = dict(reference.named_parameters(remove_duplicate=False))
    largest = max(float(p.grad.abs().max()) for p in reference.parameters())
    gradient = max(float((p.grad - theirs[name].grad).abs().max()) for name, p in pipeline.named_parameters()) / largest
    return {"loss": float((loss - expected).abs()), "gradient": gradient, "norm": float((pipeline.norm() / norm - 1).abs())}


def test_pipelines_beside_one_another(ranks: Ranks) -> None:
    for worst in ranks.run(4, replicas, "gpt2"):
        assert worst["loss"] < 1e-5, worst
        assert worst["gradient"] < 2e-5, worst
        assert worst["norm"] < 1e-5, worst


def sharded(family: str, target: str) -> dict[str, float]:
    """A pipeline of two stages, whose weights are sharded between the two shares of the rows."""
    rank = join()
    config = DistributedConfig(pp_size=2, fsdp_size=2)
    layout = config.layout(4)
    mesh = layout.mesh("cpu")
    reference, pipeline = build(family).train(), Pipeline(build(family).train(), mesh, config)
    layers = [layer for stack in pipeline.model.stacks for layer in stack.layers]
    blocks = [layer for layer in layers if next(layer.parameters(), None) is not None]
    Sharding(mesh["dp_shard"], blocks).shard(pipeline.stages[0])
    batches = [make(family, 5, 9, seed) for seed in range(4)]
    expected = one_process(reference, batches)
    items = {name: sum(reference.count(batch)[name] for batch in batches) for name in reference.count(batches[0])}
    own = batches[2 * layout.data_rank(rank) :][:2]
    loss = torch.stack([pipeline.step(batch, items, len(batches), scale=2.0) for batch in own]).sum()
    pipeline.finish_gradients()
    dist.all_reduce(loss, group=mesh["dp_shard"].get_group())
    norm = torch.stack([p.grad.norm() for p in reference.parameters()]).norm()
    theirs = dict(reference.named_parameters(remove_duplicate=False))
    largest = max(float(p.grad.abs().max()) for p in reference.parameters())
    gradients = {name: (p.grad.full_tensor() - theirs[name].grad).abs().max() for name, p in pipeline.named_parameters()}
    pipeline.save_pretrained(target)
    gradient = max(map(float, gradients.values())) / largest
    return {"loss": float((loss - expected).abs()), "gradient": gradient, "norm": float((pipeline.norm() / norm - 1).abs())}


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_stages_with_sharded_weights(ranks: Ranks, family: str, tmp_path: Path) -> None:
    build(family).save_pretrained(tmp_path / "one")
    for worst in ranks.run(4, sharded, family, str(tmp_path / "all")):
        assert worst["loss"] < 1e-5, worst
        assert worst["gradient"] < 2e-5, worst
        assert worst["norm"] < 1e-5, worst
    written = {path.name: path.read_bytes() for path in (tmp_path / "all").iterdir()}
    assert written["model.safetensors"] == (tmp_path / "one" / "model.safetensors").read_bytes()


# --- files -------------------------------------------------------------------------------------------------------------------


def files(source: str, target: str, family: str, schedule: str) -> tuple[float, set[str]]:
    """Read a checkpoint, and write it and an equal one in shards; returns how much of the model this process has."""
    join()
    config = DistributedConfig(pp_size=dist.get_world_size(), pp_schedule=schedule)
    mesh = config.layout(dist.get_world_size()).mesh("cpu")
    kind = getattr(transept, FAMILIES[family][0])
    pipeline = Pipeline.from_pretrained(kind, source, mesh, config)
    pipeline.save_pretrained(target)
    pipeline.save_pretrained(f"{target}-shards", max_shard_size=4000)
    whole = kind.from_pretrained(source)
    own = dict(whole.named_parameters(remove_duplicate=False))
    assert all(torch.equal(p, own[name]) for name, p in pipeline.named_parameters())
    assert not any(t.is_meta for t in (*pipeline.model.parameters(), *pipeline.model.buffers()))
    held = sum(t.untyped_storage().nbytes() for t in {t.data_ptr(): t for t in pipeline.model.state_dict().values()}.values())
    return held / sum(p.nbytes for p in whole.parameters()), {name for name, _ in pipeline.named_parameters()}


@pytest.mark.parametrize(
    ("family", "schedule"),
    [("llama", "1F1B"), ("gpt2", "1F1B"), ("t5", "ZBVZeroBubble"), ("mixtral", "LoopedBFS"), ("whisper", "GPipe")],
)
def test_files_are_those_of_one_process(ranks: Ranks, tmp_path: Path, family: str, schedule: str) -> None:
    model = build(family)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "one-shards", max_shard_size=4000)
    found = ranks.run(2, files, str(tmp_path / "one"), str(tmp_path / "all"), family, schedule)
    for name in ("one", "one-shards"):
        expected = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        written = {path.name: path.read_bytes() for path in (tmp_path / name.replace("one", "all")).iterdir()}
        assert expected.keys() == written.keys()
        assert [file for file in expected if expected[file] != written[file]] == []
    assert set.union(*(names for _, names in found)) >= {name for name, _ in model.named_parameters()}
    assert max(share for share, _ in found) < (0.6 if family == "llama" else 0.95)  # tied tables are large here, and on both


def unwritable(target: str) -> str:
    rank = join()
    config = DistributedConfig(pp_size=2)
    pipeline = Pipeline(build("gpt2"), config.layout(2).mesh("cpu"), config)
    with pytest.raises(transept.TranseptError) as caught:
        pipeline.save_pretrained(target)
    with pytest.raises(transept.TranseptError, match="max_shard_size"):
        pipeline.save_pretrained(f"{target}-{rank}", max_shard_size="much")
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_directory_that_cannot_be_written_is_an_error_of_all(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first, second = ranks.run(2, unwritable, str(tmp_path / "file"))
    assert first.startswith("FileError")
    assert second.startswith("TrainingError: process 0 failed")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def drawn(family: str) -> dict[str, Tensor]:
    join()
    config = DistributedConfig(pp_size=dist.get_world_size())
    kind, settings = getattr(transept, FAMILIES[family][0]), FAMILIES[family][1]
    torch.manual_seed(5)
    mesh = config.layout(dist.get_world_size()).mesh("cpu")
    pipeline = Pipeline.from_config(kind, kind.config_class(**settings), mesh, config)
    loss = pipeline.step(make(family, 4, 6, 0))
    assert loss.isfinite()
    return {name: p.detach() for name, p in pipeline.named_parameters()}


@pytest.mark.parametrize("family", ["t5", "vit"])
def test_new_weights_do_not_depend_on_the_number_of_stages(ranks: Ranks, family: str) -> None:
    two, four = (ranks.run(world, drawn, family) for world in (2, 4))
    whole = {name: p for part in two for name, p in part.items()}
    assert all(torch.equal(p, whole[name]) for part in (*two, *four) for name, p in part.items())
    assert set(whole) == {name for part in four for name in part}
    deviations = {name: float(p.detach().std()) for name, p in build(family).named_parameters() if p.ndim == 2}
    for name, deviation in deviations.items():
        assert float(whole[name].std()) == pytest.approx(deviation, rel=0.35), name


# --- packed texts, and what is refused -----------------------------------------------------------------------------------------


def packed(family: str, rows: int) -> float:
    """The difference of the loss from that of each text alone."""
    join()
    config = DistributedConfig(pp_size=2)
    reference, pipeline = build(family).train(), Pipeline(build(family).train(), config.layout(2).mesh("cpu"), config)
    torch.manual_seed(1)
    ids, positions = torch.randint(1, 90, (rows, 20)), torch.zeros(rows, 20, dtype=torch.long)
    labels = ids.clone()
    for row in range(rows):
        lengths = [3 + row, 7, 10 - row] if rows > 1 else [3, 4, 2, 5, 6]
        positions[row] = torch.cat([torch.arange(length) for length in lengths])
        labels[row, positions[row] == 0] = -100
    batch = {"input_ids": ids, "seq_idx": (positions == 0).cumsum(dim=1), "labels": labels}
    expected = one_process(reference, [batch])
    loss = pipeline.step(batch)
    pipeline.finish_gradients()
    theirs = dict(reference.named_parameters(remove_duplicate=False))
    largest = max(float(p.grad.abs().max()) for p in reference.parameters())
    gradient = max(float((p.grad - theirs[name].grad).abs().max()) for name, p in pipeline.named_parameters()) / largest
    return max(float((loss - expected).abs()), gradient)


@pytest.mark.parametrize("rows", [1, 6])
def test_packed_texts(ranks: Ranks, rows: int) -> None:
    assert max(ranks.run(2, packed, "llama", rows)) < 1e-5


def refused(name: str, settings: dict[str, Any], parallel: dict[str, Any]) -> None:
    join()
    config = DistributedConfig(pp_size=dist.get_world_size(), **parallel)
    kind = getattr(transept, name)
    Pipeline(kind(kind.config_class(**settings)), config.layout(dist.get_world_size()).mesh("cpu"), config)


@pytest.mark.parametrize(
    ("name", "settings", "parallel", "message"),
    [
        ("RNNForCausalLM", {"vocab_size": 50, "hidden_size": 8}, {}, "RNNForCausalLM do not run .*fsdp_size"),
        ("XLNetLMHeadModel", {"vocab_size": 50, "d_model": 8, "n_head": 2, "n_layer": 2, "d_inner": 8}, {}, "fsdp_size"),
        ("LlamaModel", TEXT, {}, "no loss by itself"),
        ("LlamaForCausalLM", TEXT | {"num_hidden_layers": 1}, {}, "2 stages needs as many layers, but LlamaForCausalLM has 1"),
        ("LlamaForCausalLM", TEXT | {"num_hidden_layers": 3}, {"pp_schedule": "LoopedBFS"}, "4 stages .* has 3"),
        ("LlamaForCausalLM", TEXT | {"output_hidden_states": True}, {}, "hidden_states of all layers"),
        ("MixtralForCausalLM", FAMILIES["mixtral"][1] | {"output_router_logits": True}, {}, "router_logits of all layers"),
        ("LlamaForCausalLM", TEXT, {"pp_schedule": "2F2B"}, "no `pp_schedule` '2F2B'.* GPipe, 1F1B"),
        ("LlamaForCausalLM", TEXT, {"pp_microbatches": 1}, "cannot order 1 micro-batches.*at least 2"),
        ("LlamaForCausalLM", TEXT, {"pp_schedule": "Interleaved1F1B", "pp_microbatches": 5}, "cannot order 5.* to 4 or 6"),
    ],
)
def test_what_cannot_be_is_refused_by_all(ranks: Ranks, name: str, settings: Any, parallel: Any, message: str) -> None:
    answers = ranks.ask(2, refused, name, settings, parallel)
    assert len({text for _, (_, text, _) in answers}) == 1
    for went_well, (_, text, _) in answers:
        assert not went_well
        assert re.search(message, text), text


def wrong(kind: str) -> str:
    rank = join()
    config = DistributedConfig(pp_size=2)
    pipeline = Pipeline(build("gpt2"), config.layout(2).mesh("cpu"), config)
    batch = make("gpt2", 4, 6, 0)
    given: dict[str, Any] = {
        "ids": batch | {"input_ids": batch["input_ids"] + 95},
        "rows": batch | {"labels": batch["labels"][:3]},
        "cache": batch | {"past_key_values": transept.DynamicCache()},
        "states": batch | {"output_hidden_states": True},
        "others": make("gpt2", 4 + 4 * rank, 6, 0),
        "one": batch if rank else batch | {"input_ids": batch["input_ids"] + 95},
        "nothing": {},
        "labels": batch | {"labels": batch["labels"] + 95},
    }[kind]
    try:
        pipeline.step(given)
    except transept.TranseptError as error:
        before = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError("it went well")
    assert pipeline.step(batch).isfinite()  # the next one does
    return before


@pytest.mark.parametrize(
    ("kind", "messages"),
    [
        ("ids", ["InputError: `input_ids` holds"] * 2),
        ("rows", ["InputError: `labels` has the shape"] * 2),
        ("cache", ["InputError: `past_key_values` cannot go"] * 2),
        ("states", ["UnsupportedError: `output_hidden_states` asks"] * 2),
        ("others", ["TrainingError: the processes of a pipeline were given batches of other shapes"] * 2),
        ("one", ["InputError: `input_ids` holds", "TrainingError: process 0 of the pipeline refused"]),
        ("labels", ["TrainingError: process 1 of the pipeline refused", "InputError: label 165 at [0, 0]"]),
        ("nothing", ["InputError: the batch holds no tensor `input_ids`"] * 2),
    ],
)
def test_inputs_that_cannot_be_are_refused_before_anything_is_sent(ranks: Ranks, kind: str, messages: list[str]) -> None:
    for found, message in zip(ranks.run(2, wrong, kind), messages, strict=True):
        assert found.startswith(message)


# --- parts, without processes ----------------------------------------------------------------------------------------------------


def test_layers_are_divided_by_cost() -> None:
    assert divide([1.0] * 6, 3) == (0, 2, 4, 6)
    assert divide([1.0, 1.0, 1.0, 4.0], 2) == (0, 3, 4)
    assert divide([5.0, 1.0, 1.0], 3) == (0, 1, 2, 3)
    for costs in (torch.rand(7).tolist() for _ in range(20)):
        best = min(max(sum(costs[:a]), sum(costs[a:b]), sum(costs[b:])) for a in range(1, 6) for b in range(a + 1, 7))
        bounds = divide(costs, 3)
        assert max(sum(costs[a:b]) for a, b in itertools.pairwise(bounds)) == pytest.approx(best)


def test_a_vocabulary_counts_as_many_layers() -> None:
    kind, ties = transept.LlamaForCausalLM, dict[str, str]()
    settings = TEXT | {"num_hidden_layers": 8}
    for vocabulary, expected in ((97, 4), (2000, 7)):
        model = kind._without_memory(kind.config_class(**settings | {"vocab_size": vocabulary}), {})
        assert partition(model, 2, ties).bounds == (0, expected, 8)


def test_rows_are_filled_up_by_the_last_one() -> None:
    batch, real = padded_rows({"input_ids": torch.arange(10).view(5, 2), "use_cache": False}, 4)
    assert batch["input_ids"][:, 0].tolist() == [0, 2, 4, 6, 8, 8, 8, 8]
    assert batch["part"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert real == [2, 2, 1, 0]


def test_texts_of_one_row_are_spread() -> None:
    lengths = [3, 4, 2, 5, 6]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    labels = torch.arange(20)[None].masked_fill(positions == 0, -100)
    batch = spread_texts(build("llama"), {"input_ids": torch.arange(20)[None], "position_ids": positions, "labels": labels}, 4)
    real = batch["attention_mask"] != 0
    assert len(real) == 4
    assert torch.equal(batch["input_ids"][real], torch.arange(20))
    assert torch.equal(batch["labels"][real], labels[0])
    assert batch["labels"][~real].eq(-100).all()
    kept = {"input_ids": torch.arange(20)[None], "position_ids": positions, "labels": torch.arange(20)[None]}
    spread = spread_texts(build("llama"), kept, 4)  # tokens at the beginning are predicted from the text before
    assert spread["input_ids"] is kept["input_ids"]
