"""Pipelines of users, who write the steps of a task: the same class on this library and on the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import transformers.pipelines

import transept
from transept import pipeline
from transept.errors import InputError, InputTypeError, UnsupportedError
from transept.pipelines import PIPELINE_REGISTRY
from transept.pipelines.datasets import KeyDataset, KeyPairDataset

from .text_models import TEXTS, SavedModel, check_close, reference

ROWS = [{"first": TEXTS[0], "second": "She works in Paris."}, {"first": "a", "second": "b"}]


def pairs_class(library: Any) -> Any:
    """A task of pairs of texts, as the reference's guide writes it, on either library."""

    class PairClassificationPipeline(library.Pipeline):  # type: ignore[misc,name-defined]
        def _sanitize_parameters(self, **kwargs: Any) -> Any:
            before = {"second_text": kwargs["second_text"]} if "second_text" in kwargs else {}
            return before, {}, {"digits": kwargs["digits"]} if "digits" in kwargs else {}

        def preprocess(self, text: str, second_text: str | None = None) -> Any:
            return self.tokenizer(text, text_pair=second_text, return_tensors="pt")

        def _forward(self, model_inputs: Any) -> Any:
            return self.model(**model_inputs, output_hidden_states=True)

        def postprocess(self, model_outputs: Any, digits: int = 5) -> dict[str, Any]:
            scores = model_outputs.logits[0].softmax(-1).numpy()
            best = int(scores.argmax())
            width = len(model_outputs.hidden_states[-1])
            return {"label": self.model.config.id2label[best], "score": round(float(scores[best]), digits), "rows": width}

    return PairClassificationPipeline


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIPELINE_REGISTRY, "registered", {})


@pytest.fixture(scope="module")
def directory(text_model: SavedModel) -> Path:
    return text_model("BertForSequenceClassification")


@pytest.mark.reference
@pytest.mark.usefixtures("registry")
def test_a_task_of_ones_own_answers_as_in_the_reference(directory: Path) -> None:
    made = []
    for library in (transept, transformers):
        library.pipelines.PIPELINE_REGISTRY.register_pipeline(
            "pair-classification", pairs_class(library), pt_model=library.AutoModelForSequenceClassification, type="text"
        )
        made.append(library.pipeline("pair-classification", model=str(directory), device="cpu", second_text="a"))
    ours, theirs = made
    texts = [text for text in TEXTS if text]
    for inputs, options in (texts[0], {}), (texts[:3], {"second_text": "b", "digits": 2}), (texts, {"batch_size": 2}):
        check_close(ours(inputs, **options), theirs(inputs, **options))
    check_close(list(ours(text for text in texts)), theirs(texts))
    assert (ours.task, ours.device, ours.dtype) == (theirs.task, theirs.device, theirs.dtype)
    assert "pair-classification" in PIPELINE_REGISTRY.get_supported_tasks()


@pytest.mark.usefixtures("registry")
def test_a_class_in_place_of_a_tasks_and_a_default_model(directory: Path, tmp_path: Path) -> None:
    cls = pairs_class(transept)
    pipe = pipeline(model=directory, pipeline_class=cls, device="cpu")
    assert type(pipe.model) is transept.BertForSequenceClassification  # as its config says
    assert not pipe.model.training
    PIPELINE_REGISTRY.register_pipeline("pairs", cls, default={"pt": (str(directory), None)})
    answer = pipeline("pairs")(TEXTS[0])
    check_close(answer, pipe(TEXTS[0]))
    check_close(cls(model=pipe.model, tokenizer=pipe.tokenizer)(TEXTS[0]), answer)
    pipe.save_pretrained(tmp_path)
    check_close(pipeline("pairs", tmp_path)(TEXTS[0]), answer)
    assert pipeline("text-classification", tmp_path)(TEXTS[0])[0]["label"] == answer["label"]


def test_rows_of_a_batch_are_padded_on_the_tokenizers_side(directory: Path) -> None:
    class Ids(pairs_class(transept)):  # type: ignore[misc]
        def _forward(self, model_inputs: Any) -> Any:
            return {"ids": model_inputs["input_ids"], "mask": model_inputs["attention_mask"]}

        def postprocess(self, model_outputs: Any, digits: int = 5) -> Any:
            return [model_outputs[name].tolist() for name in ("ids", "mask")]

    pipe = pipeline(model=directory, pipeline_class=Ids)
    pipe.tokenizer.padding_side = "left"
    wanted = pipe.tokenizer(["a", "a a a"], padding=True)
    found = pipe(["a", "a a a"], batch_size=2)
    assert [ids[0] for ids, _ in found] == wanted["input_ids"]
    assert [mask[0] for _, mask in found] == wanted["attention_mask"]
    pipe.tokenizer.pad_token = None
    with pytest.raises(InputError, match="a batch needs a padding token"):
        pipe(["a", "a a a"], batch_size=2)


@pytest.mark.reference
def test_what_users_ask_of_every_pipeline(directory: Path, tmp_path: Path) -> None:
    ours, theirs = pipeline("text-classification", directory, device="cpu"), reference("text-classification", directory)
    for name in ("task", "device", "dtype", "torch_dtype", "feature_extractor", "image_processor", "processor"):
        assert getattr(ours, name) == getattr(theirs, name, getattr(theirs, "dtype", None)), name
    assert isinstance(ours, transept.Pipeline)
    texts = KeyDataset(ROWS, "first")
    check_close(list(ours(texts, num_workers=0)), list(theirs(transformers.pipelines.pt_utils.KeyDataset(ROWS, "first"))))
    check_close(
        list(ours(KeyPairDataset(ROWS, "first", "second"))),
        ours([{"text": r["first"], "text_pair": r["second"]} for r in ROWS]),
    )
    check_close(ours.predict(TEXTS[:2]), theirs(TEXTS[:2]))
    assert ours.transform(TEXTS[:1]) == ours(TEXTS[:1])
    with ours.device_placement():
        assert torch.zeros(1).device == ours.device
    assert list(ours.ensure_tensor_on_device(a=torch.zeros(1), b=[torch.ones(1)])) == ["a", "b"]
    ours.check_model_type({"bert": "BertForSequenceClassification"})
    with pytest.raises(InputTypeError, match="takes no BertForSequenceClassification"):
        ours.check_model_type([transept.BertModel])
    ours.save_pretrained(tmp_path)
    check_close(pipeline("text-classification", tmp_path)(TEXTS[:2]), theirs(TEXTS[:2]))
    from transept.pipelines.pt_utils import KeyDataset as named

    assert named is KeyDataset


def loud_classes(library: Any) -> list[Any]:
    """Tasks of a library of which a user has written single steps."""

    class Percent(library.TextClassificationPipeline):  # type: ignore[misc,name-defined]
        def postprocess(self, model_outputs: Any, **options: Any) -> Any:
            return [{**one, "score": one["score"] * 100} for one in super().postprocess(model_outputs, **options)]

    class Logits(library.TextClassificationPipeline):  # type: ignore[misc,name-defined]
        def _sanitize_parameters(self, second: str | None = None, **options: Any) -> Any:
            return {} if second is None else {"second": second}, {}, {}

        def preprocess(self, inputs: str, second: str | None = None) -> Any:
            return self.tokenizer(inputs, text_pair=second, return_tensors="pt")

        def postprocess(self, model_outputs: Any) -> Any:
            return {"score": model_outputs["logits"][0].tolist()}

    return [Percent, Logits]


@pytest.mark.reference
def test_a_task_of_the_library_of_which_some_steps_are_ones_own(directory: Path) -> None:
    for ours, theirs in zip(loud_classes(transept), loud_classes(transformers), strict=True):
        one, other = (library.pipeline("text-classification", str(directory), pipeline_class=kind)
                      for library, kind in ((transept, ours), (transformers, theirs)))  # fmt: skip
        options = {"top_k": 2} if ours.__name__ == "Percent" else {"second": "She works."}
        check_close(one(TEXTS[0], **options), other(TEXTS[0], **options))
        check_close(one(TEXTS[:3], **options), other(TEXTS[:3], **options))
        assert len(one(TEXTS[:3], batch_size=2, **options)) == 3


def test_a_pipeline_over_parts_of_an_input(directory: Path) -> None:
    from transept.pipelines.base import ChunkPipeline

    class Sentences(ChunkPipeline):
        def _sanitize_parameters(self, **options: Any) -> Any:
            return {}, {}, options

        def preprocess(self, text: str) -> Any:
            for sentence in text.split("."):
                yield self.tokenizer(sentence, return_tensors="pt")

        def _forward(self, model_inputs: Any) -> Any:
            return self.model(**model_inputs)

        def postprocess(self, outputs: Any, digits: int = 3) -> Any:
            return [round(float(output.logits[0, 0]), digits) for output in outputs]

    pipe = pipeline(model=directory, pipeline_class=Sentences)
    expected = [
        round(float(pipe.model(**pipe.tokenizer(text, return_tensors="pt")).logits[0, 0].detach()), 3)
        for text in ("One", " Two")
    ]
    assert pipe("One. Two") == expected
    assert pipe(["One. Two"] * 2, digits=1) == [[round(value, 1) for value in expected]] * 2


@pytest.mark.usefixtures("registry")
def test_what_is_refused(directory: Path) -> None:
    class Words(transept.TokenClassificationPipeline):
        def postprocess(self, model_outputs: Any, **options: Any) -> Any:
            return super().postprocess(model_outputs, **options)

    pipe = pipeline("text-classification", directory)
    with pytest.raises(UnsupportedError, match="'token-classification' need more than the model's logits"):
        Words(transept.AutoModelForTokenClassification.from_pretrained(directory, strict=False), pipe.tokenizer)("a")
    with pytest.raises(InputTypeError, match="is no class of pipelines"):
        pipeline(model=directory, pipeline_class=transept.BertModel)
    with pytest.raises(InputTypeError, match="is no class of pipelines"):
        PIPELINE_REGISTRY.register_pipeline("x", transept.BertModel)
    with pytest.raises(InputError, match="the task 'ner' is one of this library"):
        PIPELINE_REGISTRY.register_pipeline("ner", pairs_class(transept))
    with pytest.raises(InputTypeError, match="`model` must be a model"):
        pairs_class(transept)(str(directory))
    with pytest.raises(InputTypeError, match="takes one input or several, but got 2"):
        pipeline(model=directory, pipeline_class=pairs_class(transept))("a", "b")
    with pytest.raises(InputError, match="`num_workers` must be a whole number"):
        pipe("a", num_workers=-1)
