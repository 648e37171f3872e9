"""Trainers with other losses: each learns, and its first loss is that of a plain computation."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import transept
from transept import Trainer
from transept.errors import ConfigError, InputError, TranseptWarning, UnsupportedError
from transept.training.adversarial import Perturbation, moved
from transept.training.trainers.distillation import DistillationTrainer
from transept.training.trainers.pairs import DataCollatorForPreference, DPOTrainer, SentenceTrainer
from transept.training.trainers.semi_supervised import ConsistencyTrainer, SelfTrainer
from transept.training.update import Updates

TINY: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 40,
}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
EXACT = {"atol": 1e-6, "rtol": 1e-5}  # float32, the same operations in another order


def config(**settings: Any) -> transept.BertConfig:
    return transept.BertConfig(**TINY | STILL | {"num_labels": 2} | settings)


def arguments(folder: Path, **settings: Any) -> transept.TrainingArguments:
    given = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 5e-3, "lr_scheduler_type": "constant"}
    quiet = {"disable_tqdm": True, "save_strategy": "no", "report_to": "none", "logging_steps": 1, "logging_strategy": "steps"}
    return transept.TrainingArguments(str(folder), **given | quiet | settings)


def rows(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sequences of 5 tokens, whose class says which half of the vocabulary they are of."""
    draw = np.random.default_rng(seed)
    labels = np.arange(number) % 2
    return [{"input_ids": (5 + 17 * label + draw.integers(0, 17, 5)).tolist(), "labels": int(label)} for label in labels]


def batched(features: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {name: torch.tensor([row[name] for row in features]) for name in features[0]}


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_student_learns_from_its_teacher(tmp_path: Path) -> None:
    torch.manual_seed(0)
    teacher, student = (transept.BertForSequenceClassification(config(initializer_range=0.3)) for _ in range(2))
    data = rows(8)
    before = copy.deepcopy(student).train()
    options: dict[str, Any] = {"temperature": 3.0, "soft_weight": 0.7, "hard_weight": 0.3, "hidden_weight": 0.1}
    args = arguments(tmp_path, max_steps=12, gradient_accumulation_steps=2)
    trainer = DistillationTrainer(student, args, teacher_model=teacher, data_collator=batched, train_dataset=data, **options)
    trainer.train()
    found = losses(trainer)
    assert found[-1] < 0.5 * found[0]
    inputs = batched(data)  # one update sees all rows
    with torch.no_grad():
        own, taught = (model(**inputs, output_hidden_states=True) for model in (before, teacher))
    p, q = ((each.logits / 3).softmax(-1) for each in (taught, own))
    soft = 9 * (p * (p / q).log()).sum(-1).mean()
    apart = 1 - nn.functional.cosine_similarity(own.hidden_states[-1], taught.hidden_states[-1], dim=-1)
    plain = 0.7 * soft + 0.3 * own.loss + 0.1 * apart.mean()
    assert found[0] == pytest.approx(float(plain), rel=1e-5)
    assert all(weight.grad is None for weight in teacher.parameters())
    with pytest.raises(InputError, match="teacher_model"):
        DistillationTrainer(student, args, data_collator=batched, train_dataset=data)


def test_a_language_model_is_distilled_at_labelled_tokens(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40, "n_positions": 16}
    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    teacher, student = (transept.GPT2LMHeadModel(transept.GPT2Config(**settings, **quiet)) for _ in range(2))
    data = [row | {"labels": [-100, *row["input_ids"][1:-1], -100]} for row in rows(4)]
    args = arguments(tmp_path, max_steps=1)
    trainer = DistillationTrainer(student, args, teacher_model=teacher, data_collator=batched, train_dataset=data)
    inputs = batched(data)
    terms = trainer.objective.terms(student, inputs)
    assert {name: float(term.count) for name, term in terms.items()} == trainer.objective.count(inputs)
    assert float(terms["soft_targets"].count) == 12  # tokens 1 to 3 of 4 rows
    with pytest.raises(UnsupportedError, match="no single loss"):
        answers = transept.BertForQuestionAnswering(config())
        places = {"start_positions": torch.zeros(2, dtype=torch.long), "end_positions": torch.ones(2, dtype=torch.long)}
        spans = places | {"input_ids": torch.ones(2, 4, dtype=torch.long)}
        DistillationTrainer(answers, args, teacher_model=answers, data_collator=batched, train_dataset=data).objective.count(
            spans
        )


class Words:
    """A tokenizer that knows letters."""

    eos_token_id, pad_token_id = 1, 0

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [2 + ord(letter) % 30 for letter in text]}

    def pad(self, rows: list[dict[str, list[int]]], return_tensors: str) -> dict[str, Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
        mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


PAIRS = [{"prompt": "to be", "chosen": "or not", "rejected": "xyz"}, {"prompt": "a", "chosen": "bc", "rejected": "zzzz"}] * 2


@pytest.mark.parametrize("kind", ["sigmoid", "ipo", "simpo"])
def test_preferred_answers_become_likelier(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    settings: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40, "n_positions": 32}
    model = transept.GPT2LMHeadModel(transept.GPT2Config(**settings, **quiet))
    trainer = DPOTrainer(
        model, args=arguments(tmp_path, max_steps=10), train_dataset=PAIRS, processing_class=Words(), loss_type=kind
    )
    batch = trainer.data_collator(PAIRS)
    before = [each.detach() for each in trainer.objective.scores(model, batch)]
    if kind == "sigmoid":
        assert float(trainer.objective.terms(model, batch)["preference"].mean.detach()) == pytest.approx(
            np.log(2)
        )  # no difference yet
    trainer.train()
    after = trainer.objective.scores(model, batch)
    assert ((after[0] - after[1]) > (before[0] - before[1])).all()
    assert losses(trainer)[-1] < losses(trainer)[0]


@pytest.mark.parametrize("loss_type", ["sigmoid", "simpo"])
def test_pairs_of_answers_are_divided_as_pairs(tmp_path: Path, loss_type: Any) -> None:
    """After running out of memory: each half has both answers of its pairs, so that the weights are the same."""
    settings: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40, "n_positions": 32}
    quiet = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    weights = []
    for most in (100, 4):
        torch.manual_seed(0)
        model = transept.GPT2LMHeadModel(transept.GPT2Config(**settings, **quiet)).double()
        args = arguments(tmp_path, max_steps=2, find_batch_size=True, per_device_train_batch_size=4, optim="sgd")
        trainer = DPOTrainer(model, args=args, train_dataset=PAIRS, processing_class=Words(), loss_type=loss_type)

        def end(module: nn.Module, given: Any, inputs: dict[str, Tensor], output: Any, most: int = most) -> None:
            if len(inputs["input_ids"]) > most:
                raise torch.OutOfMemoryError("out of memory")

        model.register_forward_hook(end, with_kwargs=True)
        with pytest.warns(TranseptWarning, match="at most 4") if most == 4 else contextlib.nullcontext():
            trainer.train()
        weights.append({name: weight.detach() for name, weight in model.named_parameters()})
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("loss", "why"),
    [("multiple_negatives", "the loss 'multiple_negatives' compares each row with all others"), ("triplet", None)],
)
def test_which_batches_of_sentences_are_divided(tmp_path: Path, loss: Any, why: str | None) -> None:
    trainer = SentenceTrainer(
        transept.BertModel(config()), arguments(tmp_path), loss=loss, data_collator=pairs, train_dataset=rows(2)
    )
    batch = pairs([{"anchor": [1, 2], "positive": [3, 4]}] * 4) | {"negative_input_ids": torch.ones(4, 2)}
    divided = trainer.objective.divide(batch)
    if why is not None:
        assert isinstance(divided, str)
        assert divided.startswith(why)
    else:
        assert [len(half["negative_input_ids"]) for half in divided] == [2, 2]


def test_views_are_divided_with_their_labelled_rows(tmp_path: Path) -> None:
    model = transept.BertForSequenceClassification(config()).double()
    objective = ConsistencyTrainer(model, arguments(tmp_path), threshold=0.0, train_dataset=rows(2)).objective
    labelled, views = batched(rows(3)), batched(rows(5, seed=1))
    batch = {**labelled, "weak_input_ids": views["input_ids"], "strong_input_ids": views["input_ids"].flip(1)}
    halves = objective.divide(batch)
    assert not isinstance(halves, str)
    whole = objective.terms(model.eval(), batch)
    for name, term in whole.items():
        parts = [objective.terms(model, half)[name] for half in halves]
        torch.testing.assert_close(sum(part.sum for part in parts), term.sum)
        assert sum(float(part.count) for part in parts) == float(term.count)


def test_a_batch_of_preferences() -> None:
    batch = DataCollatorForPreference(Words(), max_length=6)(PAIRS[:2])
    assert batch["input_ids"].shape == (4, 6)
    assert [(row != -100).sum().item() for row in batch["labels"]] == [5, 3, 4, 5]
    assert (batch["labels"][1] != -100).nonzero()[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="row 1 has no text 'rejected'"):
        DataCollatorForPreference(Words())([PAIRS[0], {"prompt": "a", "chosen": "b"}])


def pairs(features: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {f"{name}_input_ids": torch.tensor([row[name] for row in features]) for name in ("anchor", "positive")}


def learn(trainer: Trainer, batch: dict[str, Tensor]) -> None:
    """The passes of a micro-batch that is the whole update."""
    saved: Any = None  # nothing is written
    updates = Updates(trainer._make_run(trainer.get_train_dataloader(), None), trainer, saved)
    updates.items = trainer.objective.count(batch)
    updates.passes(batch, trainer.objective.passes(batch))


def test_sentences_come_near_and_parts_give_the_gradient_of_the_whole(tmp_path: Path) -> None:
    data = [{"anchor": row["input_ids"], "positive": row["input_ids"][::-1]} for row in rows(8)]
    torch.manual_seed(0)
    model = transept.BertModel(transept.BertConfig(**TINY), add_pooling_layer=False)  # with dropout
    found: list[dict[str, Tensor]] = []
    for size in (None, 3):
        own = copy.deepcopy(model)
        args = arguments(tmp_path, per_device_train_batch_size=8)
        trainer = SentenceTrainer(
            own, args, mini_batch_size=size, data_collator=pairs, train_dataset=data, options={"scale": 5.0}
        )
        trainer.create_optimizer_and_scheduler(2)
        own.apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, nn.Dropout) else None)
        for layer in own.layers:
            layer.self_attn.dropout = 0.0
        learn(trainer, pairs(data))
        found.append({name: weight.grad for name, weight in own.named_parameters() if weight.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, **EXACT)
    args = arguments(tmp_path, per_device_train_batch_size=8, max_steps=15)
    trainer = SentenceTrainer(model, args, mini_batch_size=4, data_collator=pairs, train_dataset=data)
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0]


def test_dropout_is_repeated_in_the_second_pass(tmp_path: Path) -> None:
    data = [{"anchor": row["input_ids"], "positive": row["input_ids"]} for row in rows(4)]
    model = transept.BertModel(transept.BertConfig(**TINY | {"hidden_dropout_prob": 0.5}), add_pooling_layer=False)
    trainer = SentenceTrainer(model, arguments(tmp_path), mini_batch_size=2, data_collator=pairs, train_dataset=data)
    trainer.create_optimizer_and_scheduler(1)
    seen: list[Tensor] = []
    embed = trainer.objective.embed
    trainer.objective.embed = lambda *given: seen.append(embed(*given)) or seen[-1]
    learn(trainer, pairs(data))
    assert len(seen) == 8
    for first, second in zip(seen[:4], seen[4:]):
        assert torch.equal(first, second)


def test_wrong_sentences(tmp_path: Path) -> None:
    model = transept.BertModel(config())
    given: dict[str, Any] = {"data_collator": pairs, "train_dataset": rows(2)}
    with pytest.raises(InputError, match="no loss 'cosin'"):
        SentenceTrainer(model, arguments(tmp_path), loss="cosin", **given)  # type: ignore[arg-type]
    trainer = SentenceTrainer(model, arguments(tmp_path), loss="cosine", **given)
    with pytest.raises(InputError, match="needs labels"):
        trainer.objective.terms(model, pairs([{"anchor": [1], "positive": [2]}]))
    with pytest.raises(InputError, match="such as anchor_input_ids"):
        trainer.objective.count(batched(rows(2)))


@pytest.mark.parametrize("kind", ["fgm", "pgd", "free", "virtual"])
def test_the_loss_at_moved_embeddings_is_worse(kind: Any) -> None:
    torch.manual_seed(0)
    model = transept.BertForSequenceClassification(config(initializer_range=0.5))
    inputs = batched(rows(6))
    perturb = Perturbation(kind, epsilon=0.5, steps=3)
    clean = float(model(**inputs).loss.detach())
    worst = perturb(model, inputs, lambda network, given: network(**given).loss)
    worst.backward()
    assert model.backbone.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
    assert float(worst.detach()) > (0 if kind == "virtual" else clean)
    assert not model.backbone.embed_tokens._forward_hooks  # nothing is left on the model


def test_fast_gradient_is_the_plain_one() -> None:
    torch.manual_seed(0)
    model = transept.BertForSequenceClassification(config(initializer_range=0.5)).double()
    inputs = batched(rows(3))
    found = Perturbation("fgm", epsilon=0.3)(model, inputs, lambda network, given: network(**given).loss)
    embeds = model.backbone.embed_tokens(inputs["input_ids"]).detach().requires_grad_()
    labels = inputs["labels"]
    (gradient,) = torch.autograd.grad(model(inputs_embeds=embeds, labels=labels).loss, embeds)
    moved = embeds + 0.3 * gradient / gradient.flatten(1).norm(dim=1)[:, None, None]
    torch.testing.assert_close(found, model(inputs_embeds=moved, labels=labels).loss, atol=1e-12, rtol=1e-10)
    with pytest.raises(ConfigError, match="no kind"):
        Perturbation("fgsm")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be positive"):
        Perturbation(epsilon=0)
    with pytest.raises(UnsupportedError, match="no embeddings"):
        Perturbation()(nn.Linear(2, 2), inputs, lambda network, given: torch.ones(()))


def test_only_the_first_call_of_a_table_is_moved() -> None:
    table = nn.Embedding(3, 2)
    with moved(table, torch.ones(1, 2, 2)) as leaves:
        first, second = table(torch.tensor([[0, 1]])), table(torch.tensor([[0, 1, 2]]))
    torch.testing.assert_close(first, table.weight[None, :2] + 1)
    assert torch.equal(second, table.weight[None])
    assert leaves[0].requires_grad


def test_a_model_teaches_itself(tmp_path: Path) -> None:
    data, more, held = rows(8), [{"input_ids": row["input_ids"]} for row in rows(80, seed=1)], rows(40, seed=2)

    def accurate(prediction: Any) -> dict[str, float]:
        return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}

    def make(training: Any) -> Any:
        torch.manual_seed(0)
        model = transept.BertForSequenceClassification(config(initializer_range=0.1))
        args = arguments(tmp_path, max_steps=40)
        return transept.Trainer(model, args, batched, training, held, compute_metrics=accurate)

    trainer = SelfTrainer(make, data, more, threshold=0.8, rounds=2)
    found = trainer.train()
    first, last = (each.metrics["eval_accuracy"] for each in (found[0], found[-1]))
    assert last > first
    lines = [json.loads(line) for line in (tmp_path / "round-1.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == found[0].rows
    assert all(line["score"] >= 0.8 for line in lines)
    share = SelfTrainer(make, data, more, top_share=0.25).choose(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]]))
    assert share.rows == [0, 2]
    by_class = SelfTrainer(make, data, more, threshold={0: 0.65, 1: 0.9})
    assert by_class.choose(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]])).rows == [0, 3]
    with pytest.raises(InputError, match="rows of both kinds"):
        SelfTrainer(make, [], more)


def test_consistency(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transept.BertForSequenceClassification(config(initializer_range=0.5))
    data = [
        {**label, "weak_input_ids": other["input_ids"], "strong_input_ids": other["input_ids"][::-1]}
        for label, other in zip(rows(4), rows(4, seed=1))
    ]
    trainer = ConsistencyTrainer(model, arguments(tmp_path), threshold=0.6, data_collator=batched, train_dataset=data)
    inputs = batched(data)
    terms = trainer.objective.terms(model.eval(), inputs)
    assert {name: float(term.count) for name, term in terms.items()} == trainer.objective.count(inputs)
    shares = model(inputs["weak_input_ids"]).logits.softmax(-1)
    strong = model(inputs["strong_input_ids"]).logits.log_softmax(-1)
    plain = sum(-strong[i, shares[i].argmax()] for i in range(4) if shares[i].max() >= 0.6)
    torch.testing.assert_close(terms["consistency"].sum, plain, **EXACT)
    trainer.train()
    with pytest.raises(InputError, match="both views"):
        trainer.objective.count(batched(rows(2)))
