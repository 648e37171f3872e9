"""A trainer in several processes gives the numbers of one: losses, weights, evaluations, and files."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import transept
from tests.thorough import crossed
from tests.training.small import SIZES, Head, head, ours, quiet, rows
from transept import DataCollatorWithFlattening, LoraConfig, Trainer, TrainerCallback, TrainingArguments, get_peft_model
from transept.errors import UnsupportedError
from transept.models.bert import BertConfig, BertModel
from transept.parallel.mesh import DistributedConfig
from transept.parallel.processes import join
from transept.parallel.sharded import Divided, Sharding
from transept.training.objective import task_of
from transept.training.trainers.pairs import SentenceTrainer

from .ranks import Ranks

MIXTRAL = {"num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2}
WHISPER = {
    "vocab_size": 60,
    "num_mel_bins": 8,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_source_positions": 10,
}
WHISPER |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
WHISPER |= {"max_target_positions": 16, "pad_token_id": 0, "decoder_start_token_id": 1, "dropout": 0.0, "init_std": 0.1}
FAMILIES = [
    *(head(name) for name in ("BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration")),
    head("ViTForImageClassification"),
    Head("MixtralForCausalLM", SIZES | MIXTRAL, "text"),
    Head("WhisperForConditionalGeneration", WHISPER, "spectrum"),
]
# 11 rows in batches of 2, two of which make an update in each process: the last update has fewer than the others.
ROWS, UPDATES = 11, 6


def learn(made: Head, folder: str, settings: dict[str, Any], *, packed: bool = False) -> dict[str, Any]:
    """What a run gives in this process; ``packed`` lays rows end to end."""
    model: Any = ours(made)
    settings = dict(settings)
    if lora := settings.pop("lora", None):
        model = get_peft_model(model, LoraConfig(**lora))
    more = {"per_device_train_batch_size": 2, "optim": "sgd", "learning_rate": 0.1, "max_steps": UPDATES} | settings
    arguments = TrainingArguments(**quiet(Path(folder), **more))
    sets = {"train_dataset": rows(made.rows, ROWS), "eval_dataset": rows(made.rows, 7, seed=1)}
    if packed:
        sets = {name: [unpadded(row) for row in found] for name, found in sets.items()}
    trainer = Trainer(model, arguments, data_collator=DataCollatorWithFlattening() if packed else None, **sets)
    trainer.train()
    history = [each for each in trainer.state.log_history if "loss" in each]
    evaluated = trainer.evaluate()["eval_loss"]
    weights = trainer.form.collect(model.state_dict())
    return {
        "losses": [each["loss"] for each in history],
        "norms": [each["grad_norm"] for each in history],
        "evaluated": evaluated,
        "weights": {name: each.numpy() for name, each in weights.items()},
        "kind": type(task_of(trainer.model_wrapped)).__name__,
    }


def unpadded(row: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: row[name][row["attention_mask"] == 1] for name in ("input_ids", "labels")}


def worst(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest difference of weights, relative to the largest change that a weight could have made."""
    pairs = ((found["weights"][name], each) for name, each in expected["weights"].items())
    return max(float(np.abs(one - other).max()) for one, other in pairs)


FORMS = {
    "ddp": {},
    "stage-1": {"zero_stage": 1},
    "stage-2": {"fsdp": "shard_grad_op"},
    "stage-3": {"fsdp": "full_shard"},
    "offload": {"fsdp": "full_shard offload"},
    "deepspeed": {"deepspeed": {"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}},
}


@pytest.mark.parametrize(("made", "form"), crossed(FAMILIES, FORMS, 9))
def test_two_processes_learn_as_one(made: Head, form: str, ranks: Ranks, tmp_path: Path) -> None:
    shared = {"max_grad_norm": 0.5}
    alone = learn(made, str(tmp_path / "alone"), shared | {"gradient_accumulation_steps": 4})
    both = ranks.run(2, learn, made, str(tmp_path / "both"), shared | FORMS[form] | {"gradient_accumulation_steps": 2})
    np.testing.assert_allclose(both[0]["losses"], alone["losses"], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(both[0]["norms"], alone["norms"], rtol=2e-5, atol=1e-6)
    assert both[0]["evaluated"] == pytest.approx(alone["evaluated"], abs=1e-5)
    assert [each["losses"] for each in both] == [both[0]["losses"]] * 2
    assert [each["evaluated"] for each in both] == [both[0]["evaluated"]] * 2
    assert worst(both[0], alone) < 1e-5


def pairs(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {f"{name}_input_ids": torch.stack([row[name] for row in features]) for name in ("anchor", "positive")}


def learn_sentences(folder: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Embeddings of sentences that are computed three at a time: 14 pairs in batches of 4, so that the last has 2."""
    torch.manual_seed(0)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertModel(BertConfig(**SIZES | still), add_pooling_layer=False)
    data = [{"anchor": row["input_ids"], "positive": row["input_ids"].flip(0)} for row in rows("class", 14)]
    given = {"per_device_train_batch_size": 4, "optim": "sgd", "learning_rate": 0.1, "num_train_epochs": 1} | settings
    trainer = SentenceTrainer(
        model,
        TrainingArguments(**quiet(Path(folder), **given)),
        mini_batch_size=3,
        data_collator=pairs,
        train_dataset=data,
    )
    trainer.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    weights = trainer.form.collect(model.state_dict())
    return {"losses": losses, "weights": {name: weight.numpy() for name, weight in weights.items()}}


@pytest.mark.parametrize("form", ["ddp", "stage-3"])
def test_sentences_that_are_embedded_in_parts_learn_as_in_one_process(form: str, ranks: Ranks, tmp_path: Path) -> None:
    alone = learn_sentences(str(tmp_path / "alone"), {"gradient_accumulation_steps": 2})
    both = ranks.run(2, learn_sentences, str(tmp_path / "both"), FORMS[form])
    np.testing.assert_allclose(both[0]["losses"], alone["losses"], atol=1e-5, rtol=1e-5)
    assert worst(both[0], alone) < 1e-5


CASES = {
    "recomputed": ("GPT2LMHeadModel", {"gradient_checkpointing": True}),
    "mean of weights": ("BertForSequenceClassification", {"ema_decay": 0.8}),
    "head that is not used": ("BertForSequenceClassification", {"freeze": "backbone"}),
    "adapter": ("GPT2LMHeadModel", {"lora": {"r": 2, "target_modules": ["c_attn", "c_fc"]}}),
    "smoothed": ("BertForTokenClassification", {"label_smoothing_factor": 0.1}),
    "by length": ("BertForMaskedLM", {"train_sampling_strategy": "group_by_length"}),
}


@pytest.mark.parametrize(("case", "form"), crossed(CASES, ["ddp", "stage-3"], 6))
def test_settings_hold_in_two_processes(case: str, form: str, ranks: Ranks, tmp_path: Path) -> None:
    name, settings = CASES[case]
    alone = learn(head(name), str(tmp_path / "alone"), settings | {"gradient_accumulation_steps": 4})
    both = ranks.run(2, learn, head(name), str(tmp_path), settings | FORMS[form] | {"gradient_accumulation_steps": 2})
    np.testing.assert_allclose(both[0]["losses"], alone["losses"], atol=1e-5, rtol=1e-5)
    assert both[0]["evaluated"] == pytest.approx(alone["evaluated"], abs=1e-5)
    assert worst(both[0], alone) < 1e-5


TWO = FORMS | {"tensor": {"tp_size": 2, "gradient_accumulation_steps": 2}}


@pytest.mark.parametrize("form", ["ddp", "stage-3", "tensor"])
def test_rows_end_to_end_are_learned_as_by_one(form: str, ranks: Ranks, tmp_path: Path) -> None:
    made = head("LlamaForCausalLM")
    alone = learn(made, str(tmp_path / "alone"), {"gradient_accumulation_steps": 2}, packed=True)
    both = ranks.run(2, learn_packed, made, str(tmp_path / "both"), TWO[form])[0]
    np.testing.assert_allclose(both["losses"], alone["losses"], atol=1e-5, rtol=1e-5)
    assert both["evaluated"] == pytest.approx(alone["evaluated"], abs=1e-5)
    assert worst(both, alone) < 1e-5


def learn_packed(made: Head, folder: str, settings: dict[str, Any]) -> dict[str, Any]:
    return learn(made, folder, settings, packed=True)


@pytest.mark.parametrize(("name", "form"), crossed(["adafactor", "adagrad", "rmsprop"], ["stage-1", "stage-3", "tensor"], 3))
def test_optimizers_update_parts_as_whole_weights(name: str, form: str, ranks: Ranks, tmp_path: Path) -> None:
    # A model without biases of keys, whose gradients are rounding errors around zero, and which these optimizers scale up.
    made, shared = head("LlamaForCausalLM"), {"optim": name, "learning_rate": 1e-2, "max_steps": 4}
    alone = learn(made, str(tmp_path / "alone"), shared | {"gradient_accumulation_steps": 2})
    both = ranks.run(2, learn, made, str(tmp_path / "both"), shared | TWO[form])[0]
    np.testing.assert_allclose(both["losses"], alone["losses"], atol=1e-5, rtol=1e-5)
    assert worst(both, alone) < 1e-5


class Halving(torch.optim.SGD):
    """An optimizer that mixes parts of weights with whole tensors."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.sub_(torch.ones(weight.shape) / 2)


def learn_by_another(what: str, folder: str, settings: dict[str, Any]) -> float:
    made = head("BertForSequenceClassification")
    model = ours(made)
    given: dict[str, Any] = {
        "optimizer_cls_and_kwargs": ({"halving": Halving, "lbfgs": torch.optim.LBFGS}.get(what), {"lr": 0.1})
    }
    if what == "made before":
        given = {"optimizers": (torch.optim.AdamW(model.parameters(), lr=0.1), None)}
    arguments = TrainingArguments(**quiet(Path(folder), max_steps=2, **settings))
    return Trainer(model, arguments, train_dataset=rows(made.rows, 8), **given).train().training_loss


OTHERS = {
    "halving": ("stage-3", "Halving cannot update weights of which each process has a part"),
    "lbfgs": ("ddp", "LBFGS cannot be made for this model"),
    "made before": ("stage-3", "the AdamW in `optimizers` has whole weights, of which each process is to have a part"),
}


@pytest.mark.parametrize(("what", "form"), [*((name, form) for name, (form, _) in OTHERS.items()), ("made before", "stage-1")])
def test_optimizers_that_cannot_be_divided_are_refused(what: str, form: str, ranks: Ranks, tmp_path: Path) -> None:
    for went_well, (kind, text, _) in ranks.ask(2, learn_by_another, what, str(tmp_path), FORMS[form]):
        assert not went_well
        assert kind == "UnsupportedError"
        assert OTHERS[what][1] in text


def test_an_optimizer_of_whole_weights_serves_whole_weights(ranks: Ranks, tmp_path: Path) -> None:
    alone = learn_by_another("made before", str(tmp_path / "one"), {"per_device_train_batch_size": 4})
    both = ranks.run(2, learn_by_another, "made before", str(tmp_path / "two"), {"per_device_train_batch_size": 2})
    assert both == pytest.approx([alone] * 2, abs=1e-5)


@pytest.mark.parametrize("settings", [{}, {"fsdp": "full_shard"}, {"fsdp": "hybrid_shard", "dp_replicate_size": 2}])
def test_four_processes_learn_as_one(settings: dict[str, Any], ranks: Ranks, tmp_path: Path) -> None:
    made = head("LlamaForCausalLM")
    alone = learn(made, str(tmp_path / "alone"), {"gradient_accumulation_steps": 4})
    found = ranks.run(4, learn, made, str(tmp_path / "four"), settings)
    np.testing.assert_allclose(found[0]["losses"], alone["losses"], atol=1e-5, rtol=1e-5)
    assert worst(found[0], alone) < 1e-5


class Bytes(TrainerCallback):
    """Counts what weights, gradients and the optimizer's state take in this process, before the third update."""

    def __init__(self) -> None:
        self.found = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            model, optimizer = kwargs["model"], kwargs["optimizer"]
            weights = [*model.parameters()]
            inner = getattr(optimizer, "optim", optimizer)
            kept = [each for entries in inner.state.values() for each in entries.values()]
            every = [*weights, *(weight.grad for weight in weights), *kept]
            self.found = sum(
                (each.to_local() if hasattr(each, "to_local") else each).nbytes for each in every if each is not None
            )


def weigh(folder: str, settings: dict[str, Any]) -> int:
    made, counted = head("LlamaForCausalLM"), Bytes()
    arguments = TrainingArguments(**quiet(Path(folder), per_device_train_batch_size=2, max_steps=3, **settings))
    Trainer(ours(made, hidden_size=32), arguments, train_dataset=rows(made.rows, ROWS), callbacks=[counted]).train()
    return counted.found


@pytest.mark.parametrize(
    ("world", "settings", "share"),
    [(2, {"zero_stage": 1}, 0.80), (2, {"fsdp": "full_shard"}, 0.6), (4, {"fsdp": "full_shard"}, 0.35)],
)
def test_shards_take_less_memory(world: int, settings: dict[str, Any], share: float, ranks: Ranks, tmp_path: Path) -> None:
    whole = weigh(str(tmp_path / "one"), {})
    assert max(ranks.run(world, weigh, str(tmp_path / "more"), settings)) <= share * whole


def peak_of_loading(folder: str, path: str) -> float:
    """The most memory that a process needs until a pipeline of two stages begins to train, as a share of the checkpoint."""

    def memory(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))

    class Measures(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            peaks.append(memory("VmHWM"))

    case, peaks, before = head("LlamaForCausalLM"), list[int](), 0
    for _ in range(2):  # the first time modules are imported
        args = TrainingArguments(**quiet(Path(folder), max_steps=1, pp_size=2, optim="sgd"))
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = memory("VmRSS")
        model = transept.LlamaForCausalLM.from_pretrained(path)
        Trainer(model, args, train_dataset=rows(case.rows, 8), callbacks=[Measures()]).train()
        del model
        gc.collect()
    return (peaks[-1] - before) / Path(path, "model.safetensors").stat().st_size


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell what memory was needed")
def test_a_stage_reads_its_own_layers_of_a_file(ranks: Ranks, tmp_path: Path) -> None:
    wide = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8}
    ours(head("LlamaForCausalLM"), **wide).save_pretrained(tmp_path / "model")
    peaks = ranks.run(2, peak_of_loading, str(tmp_path / "run"), str(tmp_path / "model"))
    assert max(peaks) < 0.75


REFUSED = {
    "layers": ({"pp_size": 2, "pp_schedule": "Interleaved1F1B"}, "a pipeline of 4 stages needs as many layers"),
    "schedule": ({"pp_size": 2, "pp_schedule": "2F2B"}, "there is no `pp_schedule` '2F2B'"),
    "smoothing": (
        {"pp_size": 2, "label_smoothing_factor": 0.1},
        "`label_smoothing_factor` cannot be honoured with 2 processes",
    ),
    "adapter": ({"pp_size": 2, "lora": {"r": 2, "target_modules": ["query"]}}, "PeftModel"),
    "zero_stage": ({"tp_size": 2, "zero_stage": 1}, "`zero_stage` cannot be honoured with 2 processes"),
    "unfreeze_schedule": ({"freeze": "backbone", "unfreeze_schedule": {1: "all"}}, "`unfreeze_schedule` cannot be honoured"),
    "find_batch_size": ({"auto_find_batch_size": True}, "`find_batch_size` cannot be honoured with 2 processes"),
    "sizes": ({"dp_replicate_size": 3}, "2 processes cannot be laid out as dp_replicate_size=3"),
    "words": ({"fsdp": "full_shart"}, "`fsdp` has the word 'full_shart'. Did you mean 'full_shard'"),
    "settings": ({"fsdp": "full_shard", "fsdp_config": {"cpu_offlad": True}}, "`fsdp_config` has no setting 'cpu_offlad'"),
    "version": ({"fsdp": "full_shard", "fsdp_config": {"version": 1}}, "version 1 of FSDP"),
    "stages": ({"fsdp": "full_shard", "zero_stage": 1}, "`zero_stage=1` contradicts `fsdp='full_shard'`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_all_before_anything_starts(case: str, ranks: Ranks, tmp_path: Path) -> None:
    settings, message = REFUSED[case]
    answers = ranks.ask(2, learn, head("BertForSequenceClassification"), str(tmp_path), settings)
    for went_well, (kind, text, _) in answers:
        assert not went_well
        assert kind in ("ConfigError", "UnsupportedError")
        assert message in text


def test_one_process_is_told_to_start_more(tmp_path: Path) -> None:
    arguments = TrainingArguments(**quiet(tmp_path, tp_size=2, pp_size=2))
    with pytest.raises(UnsupportedError, match=r"need 4 processes, but this is one. Start it by `torchrun --nproc-per-node 4"):
        Trainer(ours(head("BertForSequenceClassification")), arguments)


def learn_beside_cuda(folder: str, settings: dict[str, Any]) -> tuple[str, set[str]]:
    """A run on the processor of a machine that also has CUDA; its backend, and where its weights are."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        patched.setattr(torch.cuda, "device_count", lambda: 1)  # fewer than processes
        made = head("BertForSequenceClassification")
        arguments = TrainingArguments(**quiet(Path(folder), use_cpu=True, max_steps=2, **settings))
        trainer = Trainer(ours(made), arguments, train_dataset=rows(made.rows, 4))
        trainer.train()
        return dist.get_backend(), {weight.device.type for weight in trainer.model.parameters()}


@pytest.mark.parametrize("form", ["ddp", "stage-3"])
def test_the_processor_is_used_where_it_is_asked_for(form: str, ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, learn_beside_cuda, str(tmp_path), FORMS[form]) == [("gloo", {"cpu"})] * 2


IN_A_V = "stages in a V"
DIVIDED: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor": (2, {"tp_size": 2}),
    "sequence": (2, {"tp_size": 2, "enable_sequence_parallel": True}),
    "shards": (4, {"tp_size": 2, "fsdp": "full_shard"}),
    "whole rows": (4, {"tp_size": 2}),
    "stages": (2, {"pp_size": 2}),
    IN_A_V: (2, {"pp_size": 2, "pp_schedule": "ZBVZeroBubble"}),
    "stages and rows": (4, {"pp_size": 2}),
    "stages and shards": (4, {"pp_size": 2, "fsdp": "full_shard"}),
    "stages and matrices": (4, {"pp_size": 2, "tp_size": 2, "pp_schedule": "GPipe", "pp_microbatches": 2}),
}
DEEP = Head("LlamaForCausalLM", SIZES | {"num_key_value_heads": 1, "num_hidden_layers": 4}, "text")


@pytest.mark.parametrize(
    ("made", "form"),
    [*crossed(FAMILIES, [form for form in DIVIDED if form != IN_A_V], 5), pytest.param(DEEP, IN_A_V, id=IN_A_V)],
)
def test_parts_of_a_model_learn_as_the_whole(made: Head, form: str, ranks: Ranks, tmp_path: Path) -> None:
    world, settings = DIVIDED[form]
    shared = {"max_grad_norm": 0.5, "gradient_accumulation_steps": 2}
    alone = learn(made, str(tmp_path / "alone"), shared)
    read_other_rows = world // settings.get("tp_size", 1) // settings.get("pp_size", 1)
    each = {"gradient_accumulation_steps": 2 // read_other_rows}
    found = ranks.run(world, learn, made, str(tmp_path / "more"), shared | settings | each)
    np.testing.assert_allclose(found[0]["losses"], alone["losses"], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(found[0]["norms"], alone["norms"], rtol=2e-5, atol=1e-6)
    assert found[0]["evaluated"] == pytest.approx(alone["evaluated"], abs=1e-5)
    assert worst(found[0], alone) < 1e-5


class Recomputing(TrainerCallback):
    """Notes whether activations are recomputed in training."""

    def __init__(self) -> None:
        self.found: list[bool] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.found.append(kwargs["model"].is_gradient_checkpointing)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_config_of_fsdp_can_ask_to_recompute(wanted: bool, tmp_path: Path) -> None:
    noted, made = Recomputing(), head("GPT2LMHeadModel")
    settings = {"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": wanted}, "max_steps": 2}
    trainer = Trainer(
        ours(made), TrainingArguments(**quiet(tmp_path, **settings)), train_dataset=rows(made.rows, 4), callbacks=[noted]
    )
    trainer.train()
    assert noted.found == [wanted] * 2
    assert not trainer.model.is_gradient_checkpointing


def write(name: str, beams: int) -> tuple[Any, Any]:
    """What two processes write for other prompts, the second twice as much, with shards of the weights and with all of them."""
    rank = join()
    alone, model = ours(head(name)).eval(), ours(head(name)).eval()
    mesh = DistributedConfig(fsdp_size=2).layout(2).mesh("cpu")["dp_shard"]
    blocks = [layer for stack in model.stacks for layer in stack.layers]
    Divided(DistributedConfig(), Sharding(mesh, blocks)).wrap(model)
    ids, settings = torch.tensor([[5, 6, 7 + rank]]), {"max_new_tokens": 4 + 4 * rank, "num_beams": beams, "do_sample": False}
    return tuple(each.generate(input_ids=ids, **settings).tolist() for each in (model, alone))


@pytest.mark.parametrize(("name", "beams"), [("GPT2LMHeadModel", 1), ("T5ForConditionalGeneration", 2)])
def test_shards_of_weights_write_texts_of_other_lengths(name: str, beams: int, ranks: Ranks) -> None:
    for found, expected in ranks.run(2, write, name, beams):
        assert found == expected


def view(folder: str) -> dict[str, Any]:
    """What a loop of one's own asks of the accelerator, in one of two processes."""
    trainer = Trainer(ours(head("BertForSequenceClassification")), TrainingArguments(**quiet(Path(folder))))
    here, order = trainer.accelerator, []
    rank = here.process_index
    with here.main_process_first():
        path = Path(folder, "first")
        order.append(path.exists())
        path.touch()
    here.wait_for_everyone()
    with pytest.raises(UnsupportedError, match="not divided among processes"):
        here.prepare(torch.utils.data.DataLoader([1]))
    ids = torch.full((2, 2 + rank), rank)
    return {
        "order": order,
        "gathered": here.gather_for_metrics(torch.tensor(float(rank))).tolist(),
        "padded": here.gather(here.pad_across_processes(ids, dim=1, pad_index=-1)).tolist(),
        "mean": float(here.reduce(torch.tensor(float(rank)), "mean")),
        "objects": here.gather_for_metrics([rank], use_gather_object=True),
        "main": here.is_main_process,
    }


def test_processes_are_seen_through_the_accelerator(ranks: Ranks, tmp_path: Path) -> None:
    first, second = ranks.run(2, view, str(tmp_path))
    assert (first["order"], second["order"]) == ([False], [True])
    assert first["padded"] == [[0, 0, -1]] * 2 + [[1, 1, 1]] * 2
    assert (first["gathered"], first["mean"], first["objects"]) == ([0.0, 1.0], 0.5, [0, 1])
    assert (first.pop("main"), second.pop("main")) == (True, False)
    assert {**first, "order": 0} == {**second, "order": 0}
