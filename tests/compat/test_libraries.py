"""Libraries that import the reference do their main job on this package, from their own published packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.thorough import in_turn

COMMON = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, BertConfig, BertForSequenceClassification, BertModel, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast

torch.manual_seed(0)
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
WORDS = {word: place for place, word in enumerate([*SPECIAL.values(), *"a good bad film book very was".split()])}
SIZES = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
made = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=32, eos_token="[SEP]", **SPECIAL)
tokenizer.save_pretrained("model")
ids = torch.tensor([[5, 6, 7, 8, 9]])


def save(kind, config, **settings):
    model = kind(config(**SIZES, max_position_embeddings=64, **settings))
    model.save_pretrained("model")
    return model


"""
PROGRAMS = {
    "peft": """
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

model = save(LlamaForCausalLM, LlamaConfig).eval()
before = model(ids).logits
adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
assert torch.equal(adapted(ids).logits, before)
optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.05)
losses = []
for _ in range(3):
    loss = adapted(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[2] < losses[0]
adapted.save_pretrained("adapter")
again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("model"), "adapter").eval()
torch.testing.assert_close(again(ids).logits, adapted.eval()(ids).logits)
torch.testing.assert_close(again.merge_and_unload()(ids).logits, adapted(ids).logits)
assert adapted.generate(input_ids=ids, max_new_tokens=2).shape[0] == 1
# GPT-2's `Conv1D` is the reference's here.
GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=2, n_head=2, n_positions=64)).save_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2").eval()
before = model(ids).logits
settings = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False, task_type="CAUSAL_LM")
adapted = get_peft_model(model, settings).eval()
after = adapted(ids).logits
assert not torch.allclose(after, before)
adapted.save_pretrained("conv")
again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("gpt2"), "conv").eval()
torch.testing.assert_close(again(ids).logits, after)
torch.testing.assert_close(again.merge_and_unload()(ids).logits, after)
""",
    "accelerate": """
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import get_scheduler

save(LlamaForCausalLM, LlamaConfig)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = AutoModelForCausalLM.from_pretrained("model")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader([{"input_ids": ids[0], "labels": ids[0]}] * 8, batch_size=2)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, get_scheduler("linear", optimizer, 0, 20))
losses = []
for _ in range(2):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather_for_metrics(loss.detach()).mean().item())
assert losses[-1] < losses[0]
whole = accelerator.unwrap_model(model)
whole.save_pretrained("out", save_function=accelerator.save, state_dict=accelerator.get_state_dict(model))
accelerator.save_state("state")
accelerator.load_state("state")
assert torch.equal(AutoModelForCausalLM.from_pretrained("out")(ids).logits, model.eval()(ids).logits)
""",
    "sentence_transformers": """
import numpy as np
from sentence_transformers import SentenceTransformer, models

save(BertModel, BertConfig)
encoder = models.Transformer("model")
pooling = models.Pooling(encoder.get_word_embedding_dimension())
model = SentenceTransformer(modules=[encoder, pooling], device="cpu")
vectors = model.encode(["a good film", "bad"])
with torch.no_grad():
    states = BertModel.from_pretrained("model").eval()(**tokenizer("a good film", return_tensors="pt")).last_hidden_state
np.testing.assert_allclose(vectors[0], states[0].mean(dim=0), atol=1e-6)
model.save_pretrained("saved")
np.testing.assert_allclose(SentenceTransformer("saved", device="cpu").encode(["a good film", "bad"]), vectors, atol=1e-6)
""",
    "sentence_transformers datasets": """
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers import losses, models
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

save(BertModel, BertConfig, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
encoder = models.Transformer("model")
model = SentenceTransformer(modules=[encoder, models.Pooling(16)], device="cpu")
one, other, score = ["a good film", "bad book"] * 4, ["very good", "was bad"] * 4, [1.0, 0.2] * 4
rows = Dataset.from_dict({"one": one, "other": other, "score": score})
arguments = SentenceTransformerTrainingArguments(
    "run", num_train_epochs=4, per_device_train_batch_size=8, learning_rate=0.002, report_to="none", use_cpu=True, logging_steps=1,
    eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True
)
data = {"train_dataset": rows, "eval_dataset": rows, "evaluator": EmbeddingSimilarityEvaluator(one, other, score)}
trainer = SentenceTransformerTrainer(model, arguments, loss=losses.CosineSimilarityLoss(model), **data)
trainer.train()
history = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
assert history[3] < history[0]
assert any("eval_spearman_cosine" in entry for entry in trainer.state.log_history)
saved = SentenceTransformer(trainer.state.best_model_checkpoint, device="cpu")
assert (saved.encode(one) == model.encode(one)).all()
before = trainer.state.log_history[:-1]
trainer.train(resume_from_checkpoint="run/checkpoint-2")
timed = ("runtime", "per_second")
for entry, again in zip(before, trainer.state.log_history):
    assert all(abs(entry[name] - again[name]) < 1e-5 for name in entry if not any(word in name for word in timed)), (entry, again)
""",
    "datasets": """
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments, pipeline
from transformers.pipelines.pt_utils import KeyDataset

model = save(LlamaForCausalLM, LlamaConfig)
texts = Dataset.from_dict({"text": ["a good film", "bad book was very bad"] * 4})
rows = texts.map(lambda batch: tokenizer(batch["text"]), batched=True, remove_columns=["text"])
arguments = TrainingArguments("run", max_steps=2, report_to="none", use_cpu=True, save_strategy="no")
collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
assert Trainer(model, arguments, data_collator=collator, train_dataset=rows).train().global_step == 2
written = list(pipeline("text-generation", model="model")(KeyDataset(texts, "text"), max_new_tokens=2))
assert len(written) == 8
""",
    "evaluate": '''
from pathlib import Path

import evaluate
from datasets import Dataset

Path("share.py").write_text("""
import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=kinds)

    def _compute(self, predictions, references):
        return {"share": sum(a == b for a, b in zip(predictions, references)) / len(references)}
""")
model = save(BertForSequenceClassification, BertConfig).eval()
data = Dataset.from_dict({"text": ["a good film", "bad"], "label": [0, 1]})
with torch.no_grad():
    best = [model(**tokenizer(text, return_tensors="pt")).logits.argmax().item() for text in data["text"]]
names = {"LABEL_0": 0, "LABEL_1": 1}
score = evaluate.evaluator("text-classification").compute(
    model_or_pipeline=model, tokenizer=tokenizer, data=data, metric=evaluate.load("share.py"), label_mapping=names
)
assert score["share"] == sum(a == b for a, b in zip(best, data["label"])) / 2
''',
    "trl": """
from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

save(LlamaForCausalLM, LlamaConfig)
common = {"max_steps": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 0.02}
common |= {"logging_steps": 1, "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
common |= {"report_to": "none", "use_cpu": True, "bf16": False}


def losses(trainer):
    assert trainer.train().global_step == 4
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


rows = Dataset.from_dict({"text": ["a good film", "bad book was very bad"] * 4})
data = {"train_dataset": rows, "eval_dataset": rows, "processing_class": tokenizer}
for name, adapter, settings in (("all", None, {}), ("lora", LoraConfig(target_modules=["q_proj"]), {"packing": True, "max_length": 16})):
    trainer = SFTTrainer("model", SFTConfig(f"sft-{name}", **common, **settings), **data, peft_config=adapter)
    first, *_, last = losses(trainer)
    assert last < first
    assert "mean_token_accuracy" in trainer.state.log_history[0]
    trainer.save_model(f"tuned-{name}")
tuned = AutoModelForCausalLM.from_pretrained("tuned-all")
assert not torch.equal(tuned.lm_head.weight, AutoModelForCausalLM.from_pretrained("model").lm_head.weight)

rows = Dataset.from_dict({"prompt": ["a film was", "book"] * 4, "chosen": [" good", " very good"] * 4, "rejected": [" bad", " was bad"] * 4})
data = {"train_dataset": rows, "eval_dataset": rows, "processing_class": tokenizer}
for name, adapter in (("all", None), ("lora", LoraConfig(target_modules=["q_proj"]))):
    trainer = DPOTrainer("model", args=DPOConfig(f"dpo-{name}", **common), **data, peft_config=adapter)
    first, *_, last = losses(trainer)
    assert abs(first - 0.6931) < 1e-3  # that of a model that is its reference model
    assert last < first
assert trainer.state.log_history[-1]["step"] == 4
""",
    "setfit": """
from datasets import Dataset, Value
from sentence_transformers import SentenceTransformer, models
from setfit import SetFitModel, Trainer, TrainingArguments

save(BertModel, BertConfig)
encoder = models.Transformer("model")
SentenceTransformer(modules=[encoder, models.Pooling(16)], device="cpu").save("encoder")
texts, labels = ["a good film", "bad book", "very good", "book was bad"], ["yes", "no", "yes", "no"]
rows = Dataset.from_dict({"text": texts, "label": [label == "yes" for label in labels]}).cast_column("label", Value("int64"))


def share(predicted, wanted):
    return {"share": sum(int(a == b) for a, b in zip(predicted, wanted)) / len(wanted)}


for head in (False, True):  # scikit-learn's, or one that is trained by gradients
    model = SetFitModel.from_pretrained("encoder", labels=["no", "yes"], device="cpu", use_differentiable_head=head)
    before = torch.cat([weight.flatten() for weight in model.model_body.parameters()]).clone()
    settings = {"max_steps": 6, "batch_size": 4, "num_epochs": 1, "report_to": "none", "body_learning_rate": 1e-3}
    trainer = Trainer(model=model, args=TrainingArguments("run", **settings), train_dataset=rows, eval_dataset=rows, metric=share)
    trainer.train()
    assert not torch.equal(torch.cat([weight.flatten() for weight in model.model_body.parameters()]), before)
    assert head or trainer.evaluate() == {"share": 1.0}
    model.save_pretrained("saved")
    assert list(SetFitModel.from_pretrained("saved", device="cpu").predict(texts)) == list(model.predict(texts))
    assert head or list(model.predict(texts)) == labels
""",
}


@pytest.mark.parametrize("library", in_turn(PROGRAMS, 3))
def test_a_library_does_its_main_job(library: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(COMMON + PROGRAMS[library])
    command = [sys.executable, "-m", "transept", "--as-transformers", "program.py"]
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
