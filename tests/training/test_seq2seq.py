"""The trainer of models that write: predictions are what ``generate`` gives, as the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transept

from .small import head, ours, pair, quiet, reference_warnings, rows

CASE = head("T5ForConditionalGeneration")


@pytest.mark.reference
@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({"generation_max_length": 7}, {}),
        ({"generation_max_length": 5, "generation_num_beams": 2}, {}),
        ({}, {"max_length": 9}),
        ({"generation_max_length": 30}, {"max_new_tokens": 4, "num_beams": 2}),
    ],
)
def test_what_is_written_is_the_references(settings: dict[str, Any], given: dict[str, Any], tmp_path: Path) -> None:
    import transformers

    mine, theirs = pair(CASE, pad_token_id=0, eos_token_id=1)
    data, found = rows("pair", 7), []
    for library, model in ((transept, mine), (transformers, theirs)):
        seen: list[Any] = []
        with reference_warnings():
            args = library.Seq2SeqTrainingArguments(
                **quiet(tmp_path, per_device_eval_batch_size=3), predict_with_generate=True, **settings
            )
            trainer = library.Seq2SeqTrainer(
                model,
                args,
                eval_dataset=data,
                compute_metrics=lambda p, seen=seen: seen.append(p.predictions) or {"n": len(p.label_ids)},
            )
            metrics = trainer.evaluate(**given)
            output = trainer.predict(data, **given)
        found.append((output, metrics, seen))
    for one, other in zip(found[0][0][:2], found[1][0][:2], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found[0][2][0], found[1][2][0])
    assert found[0][1]["eval_n"] == found[1][1]["eval_n"] == 7


def test_the_loss_is_that_of_the_labels(tmp_path: Path) -> None:
    data = rows("pair", 5)
    args = transept.Seq2SeqTrainingArguments(**quiet(tmp_path), predict_with_generate=True, generation_max_length=4)
    trainer = transept.Seq2SeqTrainer(ours(CASE, pad_token_id=0), args, eval_dataset=data, compute_metrics=lambda found: {})
    plain = transept.Trainer(ours(CASE), transept.TrainingArguments(**quiet(tmp_path)), eval_dataset=data)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-6)


def test_settings_of_generate(tmp_path: Path) -> None:
    given = transept.GenerationConfig(max_new_tokens=3, decoder_start_token_id=0, pad_token_id=0)
    args = transept.Seq2SeqTrainingArguments(**quiet(tmp_path), predict_with_generate=True, generation_config=given)
    trainer = transept.Seq2SeqTrainer(ours(CASE, pad_token_id=0), args)
    assert trainer.model.generation_config.max_new_tokens == 3
    assert trainer.model.generation_config is not given
    output = trainer.predict([{"input_ids": row["input_ids"]} for row in rows("pair", 3)])
    assert output.predictions.shape == (3, 20)
    assert output.label_ids is None
    given.save_pretrained(tmp_path)
    assert transept.Seq2SeqTrainer.load_generation_config(tmp_path).max_new_tokens == 3
