"""What each objective for texts comes to: ``python examples/objectives_of_texts.py DATA [NAME ...]``.

DATA is a folder with ``ag_news/ag_news_first1000.csv`` (news with a class), ``stsb/stsb-en-train.csv`` and ``stsb-en-dev.csv``
(pairs of sentences with a score), and, for preferences and LoRA, ``stories260K``, a small Llama. Each line of the table is a
figure on held-out rows, before and after training.
"""

from __future__ import annotations

import copy
import csv
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch

import transept
from transept.metrics import get_metric

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
TOKENIZER = transept.pipeline("text-embedding").tokenizer
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
BERT = SIZES | {"vocab_size": len(TOKENIZER), "initializer_range": 0.05}


def table(name: str) -> list[list[str]]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        return [row for row in csv.reader(file) if row]


def news(**options: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """900 rows of 32 tokens to train on, and 100 more."""
    found = table("ag_news/ag_news_first1000.csv")
    texts = TOKENIZER([f"{title}. {text}" for _, title, text in found], truncation=True, max_length=32, **options)
    rows = [{name: values[row] for name, values in texts.items()} | {"labels": int(found[row][0]) - 1} for row in range(1000)]
    return rows[:900], rows[900:]


def fit(kind: Any, model: Any, updates: int, data: Any, collate: Any, **options: Any) -> tuple[Any, Any, Any]:
    """Figures of held-out rows before and after training, and the trainer."""
    settings = {"learning_rate": 2e-3, "per_device_train_batch_size": 32, "warmup_steps": 0.1} | options.pop("settings", {})
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "remove_unused_columns": False}
    args = transept.TrainingArguments(gettempdir(), max_steps=updates, **quiet | settings)
    trainer = kind(model, args=args, data_collator=collate, train_dataset=data[0], eval_dataset=data[1], **options)
    before = trainer.evaluate()
    trainer.train()
    return before, trainer.evaluate(), trainer


def restored(name: str, collate: Callable[[], Any], **settings: Any) -> Callable[[], tuple[str, float, float]]:
    """A model that restores texts of which something is hidden."""

    def run() -> tuple[str, float, float]:
        torch.manual_seed(0)
        kind, collator = getattr(transept, name), collate()
        model = kind(kind.config_class(vocab_size=len(collator.tokenizer), **settings))
        before, after, _ = fit(transept.Trainer, model, 60, bare(), collator)
        return "loss", before["eval_loss"], after["eval_loss"]

    return run


def bare() -> tuple[Any, ...]:
    """The news without their classes."""
    return tuple([{"input_ids": row["input_ids"]} for row in part] for part in news())


def replaced() -> tuple[str, float, float]:
    """Tokens that a generator of half the width has put in the place of others."""
    torch.manual_seed(0)
    sizes = BERT | {"embedding_size": 64}
    half = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    generator = transept.ElectraForMaskedLM(transept.ElectraConfig(**sizes | half))
    model = transept.ElectraForPreTraining(transept.ElectraConfig(**sizes))
    kind, collate = partial(transept.ReplacedTokensTrainer, generator=generator), transept.DataCollatorForLanguageModeling
    data, hide = bare(), collate(TOKENIZER, seed=0)
    torch.manual_seed(1)
    batch = hide(data[1])
    real, hidden = batch["attention_mask"] == 1, batch["labels"] != -100

    def area() -> float:
        with torch.no_grad():
            drawn = generator.eval()(batch["input_ids"]).logits[hidden].softmax(-1).multinomial(1)[:, 0]
            text = batch["input_ids"].masked_scatter(hidden, batch["labels"][hidden])
            given = text.masked_scatter(hidden, drawn)
            told = model.eval()(given, attention_mask=batch["attention_mask"]).logits
        return get_metric("roc_auc")(told[real], (given != text)[real].long())["roc_auc"]

    before = area()
    fit(kind, model, 60, data, hide)
    return "ROC AUC", before, area()


def default(name: str, **settings: Any) -> Any:
    """The default encoder with a new head."""
    embedder = transept.pipeline("text-embedding").model
    model = getattr(transept, name).from_config(embedder.config.with_settings(**settings))
    model.backbone.load_state_dict(embedder.backbone.state_dict(), strict=False)
    return model


def following() -> tuple[str, float, float]:
    """Whether a text follows a title, by the default encoder and a new head."""
    torch.manual_seed(0)
    rows = [{"first": title, "second": text} for _, title, text in table("ag_news/ag_news_first1000.csv")]
    collate = transept.DataCollatorForNextSentencePrediction(TOKENIZER, mlm=False, max_length=48)
    model, settings = default("BertForNextSentencePrediction"), {"learning_rate": 1e-4}
    data = (rows[:900], rows[900:])
    before, after, _ = fit(transept.Trainer, model, 80, data, collate, settings=settings, compute_metrics=accuracy)
    return "accuracy", before["eval_accuracy"], after["eval_accuracy"]


def accuracy(prediction: Any) -> dict[str, float]:
    return get_metric("accuracy")(prediction.predictions, prediction.label_ids)


def classified(**settings: Any) -> tuple[str, float, float]:
    """News by their class, by a small model or, with ``freeze``, by a new head of the default one."""
    torch.manual_seed(0)
    if "freeze" in settings:
        model = default("BertForSequenceClassification", num_labels=4)
    else:
        model = transept.BertForSequenceClassification(transept.BertConfig(**BERT, num_labels=4))
    train, test = news()
    data = (train[:200] if "freeze" in settings else train, test)
    collate, metric = transept.DataCollatorWithPadding(TOKENIZER), {"compute_metrics": accuracy}
    before, after, _ = fit(transept.Trainer, model, 120, data, collate, settings=settings, **metric)
    return "accuracy", before["eval_accuracy"], after["eval_accuracy"]


def adversarial(kind: str, steps: int = 1) -> Callable[[], tuple[str, float, float]]:
    return lambda: classified(adversarial={"kind": kind, "epsilon": 0.01, "steps": steps})


def sentences(loss: str, same: bool = False) -> tuple[str, float, float]:
    """Embeddings of pairs of sentences: the rank correlation of their cosines with people's scores."""
    torch.manual_seed(0)
    pairs, held_out = table("stsb/stsb-en-train.csv")[:3000], table("stsb/stsb-en-dev.csv")[:500]
    backbone = transept.BertModel(transept.BertConfig(**BERT))
    embed = transept.pipeline("text-embedding", model=backbone, tokenizer=TOKENIZER)

    def correlation() -> float:
        one, other = (torch.from_numpy(embed([row[side] for row in held_out])) for side in (0, 1))
        scores = torch.nn.functional.cosine_similarity(one, other)
        return get_metric("spearmanr")(scores, [float(row[2]) for row in held_out])["spearmanr"]

    if loss == "cosent":
        rows = [{"anchor": one, "positive": other, "label": float(score)} for one, other, score in pairs]
    else:
        rows = [{"anchor": one, "positive": one if same else other} for one, other, score in pairs if same or float(score) >= 4]
    before, collate = correlation(), transept.DataCollatorForPairs(TOKENIZER)
    fit(transept.SentenceTrainer, backbone, 150, (rows, rows[:32]), collate, loss=loss)
    return "Spearman's rank", before, correlation()


def preferences() -> tuple[str, float, float]:
    """The words of a text in their order are preferred to the same words turned round."""
    torch.manual_seed(0)
    model = transept.AutoModelForCausalLM.from_pretrained(FOLDER / "stories260K")
    reader = transept.AutoTokenizer.from_pretrained(FOLDER / "stories260K")
    reader.pad_token = reader.eos_token
    found = [(title, text[:80]) for _, title, text in table("ag_news/ag_news_first1000.csv")]
    turned = (" ".join(text.split()[::-1]) for _, text in found)
    rows = [{"prompt": f"{title}: ", "chosen": text, "rejected": other} for (title, text), other in zip(found, turned)]
    settings = {"learning_rate": 1e-4, "per_device_train_batch_size": 8}
    before, after, _ = fit(
        transept.DPOTrainer, model, 60, (rows[:900], rows[900:]), None, processing_class=reader, settings=settings
    )
    return "loss", before["eval_loss"], after["eval_loss"]


def ended(kind: Any) -> Callable[[], Any]:
    """A collator of a tokenizer with the ends and marks that encoder–decoders need."""
    TOKENIZER.add_special_tokens({"eos_token": "[SEP]", "bos_token": "[CLS]"})
    return lambda: kind(TOKENIZER)


def spans() -> Any:
    reader = copy.deepcopy(TOKENIZER)
    reader.add_special_tokens({"eos_token": "[SEP]", "additional_special_tokens": [f"<extra_id_{i}>" for i in range(20)]})
    return transept.DataCollatorForSpanCorruption(reader)


SEQ2SEQ = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
SEQ2SEQ |= {"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "pad_token_id": 0, "decoder_start_token_id": 102}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4}
OBJECTIVES = {
    "masked tokens": restored("BertForMaskedLM", lambda: transept.DataCollatorForLanguageModeling(TOKENIZER), **SIZES),
    "whole words": restored("BertForMaskedLM", lambda: transept.DataCollatorForWholeWordMask(TOKENIZER), **SIZES),
    "replaced tokens (ELECTRA)": replaced,
    "next sentence": following,
    "the next token": restored(
        "GPT2LMHeadModel", lambda: transept.DataCollatorForLanguageModeling(TOKENIZER, mlm=False), **GPT
    ),
    "denoising (BART)": restored("BartForConditionalGeneration", ended(transept.DataCollatorForDenoising), **SEQ2SEQ),
    "span corruption (T5)": restored("T5ForConditionalGeneration", spans, **T5),
    "permutation (XLNet)": restored(
        "XLNetLMHeadModel",
        lambda: transept.DataCollatorForPermutationLanguageModeling(TOKENIZER),
        d_model=64,
        n_layer=2,
        n_head=4,
        d_inner=128,
    ),
    "news": classified,
    "news, FGM": adversarial("fgm"),
    "news, PGD": adversarial("pgd", steps=3),
    "news, FreeLB": adversarial("free", steps=3),
    "news, virtual": adversarial("virtual"),
    "news, frozen backbone": lambda: classified(freeze="backbone", precompute=True),
    "pairs, CoSENT": lambda: sentences("cosent"),
    "pairs, in-batch negatives": lambda: sentences("multiple_negatives"),
    "SimCSE": lambda: sentences("multiple_negatives", same=True),
    "preferences (DPO)": preferences,
}

if __name__ == "__main__":
    found = []
    for name in sys.argv[2:] or OBJECTIVES:
        began = time.process_time()
        figure, before, after = OBJECTIVES[name]()
        found.append(f"{name:26} {figure:18} {before:7.3f} -> {after:7.3f}   {time.process_time() - began:4.0f} s")
        print(found[-1], file=sys.stderr, flush=True)
    print("\n".join(found))
