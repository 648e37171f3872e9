"""What models of text do with inputs and labels that cannot be."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.families import Family
from tests.models.harness import EVERY, USED, batch, settings
from tests.models.seq2seq import reads_only
from tests.thorough import crossed
from transept import BertConfig, BertForQuestionAnswering, BertForSequenceClassification, BertForTokenClassification, BertModel
from transept.core.model import Model
from transept.errors import InputError, InputTypeError
from transept.layers.tensors import check_tensors
from transept.models.bert import BertForMaskedLM
from transept.models.t5 import T5Config, T5ForConditionalGeneration

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
DECODERS = [case for case in EVERY if "decoder_attention_mask" in inspect.signature(case.values[1].forward).parameters]
DECODERS = [case for case in DECODERS if not reads_only(case.values[1])]
IDS = torch.arange(27).view(3, 9) + 5
ONES = torch.ones_like(IDS)


def build(cls: Any = BertModel) -> Any:
    torch.manual_seed(0)
    return cls(BertConfig(**SIZES, max_position_embeddings=16)).eval()


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        ({"input_ids": IDS.bool()}, InputError, "must be (batch, positions) of int64 or int32, but is (3, 9) of torch.bool"),
        ({"input_ids": IDS[:, :0]}, InputError, "`input_ids` is empty: its shape is (3, 0)"),
        ({"input_ids": IDS[:0]}, InputError, "`input_ids` is empty: its shape is (0, 9)"),
        ({"inputs_embeds": torch.zeros(1, 3, 7)}, InputError, "has vectors of 7, but the model's embeddings are of 32"),
        ({"attention_mask": ONES.tolist()}, InputTypeError, "`attention_mask` must be a tensor, but is list"),
        ({"attention_mask": torch.ones(3, 7, 9, 9)}, InputError, "(3, 7, 9, 9): for 7 heads, but the model has 4"),
        (
            {"position_ids": 20 * ONES},
            InputError,
            "`position_ids` holds 20 at [0, 0], but the table of positions has the rows 0 to 15",
        ),
        ({"position_ids": -ONES}, InputError, "`position_ids` holds -1 at [0, 0]"),
    ],
)
def test_inputs_that_cannot_be(inputs: dict[str, Any], kind: type[Exception], message: str) -> None:
    given = inputs if "inputs_embeds" in inputs else {"input_ids": IDS} | inputs
    with pytest.raises(kind) as caught:
        build()(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "labels"),
    [
        (BertForSequenceClassification, {"labels": [0, 1, 0]}),
        (BertForTokenClassification, {"labels": [[0] * 9] * 3}),
        (BertForQuestionAnswering, {"start_positions": [1, 2, 3], "end_positions": torch.tensor([1, 2, 3])}),
    ],
)
def test_labels_must_be_a_tensor(cls: Any, labels: dict[str, Any]) -> None:
    with pytest.raises(InputTypeError, match=f"`{next(iter(labels))}` must be a tensor, but is list"):
        build(cls)(IDS, **labels)


@pytest.mark.parametrize("items", [-1, float("nan"), float("inf"), "6", torch.tensor([6.0, 6.0])])
def test_numbers_of_items_that_cannot_be(items: Any) -> None:
    with pytest.raises(InputError, match="`num_items_in_batch` must be a number of items"):
        build(BertForSequenceClassification)(IDS, labels=torch.tensor([0, 1, 0]), num_items_in_batch=items)


def test_a_number_of_items_is_one_of_any_kind() -> None:
    model, labels = build(BertForSequenceClassification), torch.tensor([0, 1, 0])
    expected = model(IDS, labels=labels).loss / 2
    for items in (6, 6.0, np.int64(6), torch.tensor(6), torch.tensor([6])):
        found = model(IDS, labels=labels, num_items_in_batch=items).loss
        assert found.shape == ()
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("family", "cls", "shape"), crossed(DECODERS, [(2, 3), (3, 77), (9,)], 17, whole=USED))
def test_a_decoders_mask_has_the_callers_name(family: Family, cls: type[Model], shape: tuple[int, ...]) -> None:
    model, mask = cls(cls.config_class(**settings(family, cls))).eval(), torch.ones(shape, dtype=torch.long)
    with pytest.raises(InputError) as caught:
        model(**batch(family, cls) | {"decoder_attention_mask": mask})
    assert f"`decoder_attention_mask` has the shape {shape}, but" in str(caught.value)


def test_what_a_decoder_reads_has_the_callers_name() -> None:
    model = T5ForConditionalGeneration(T5Config(vocab_size=99, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)).eval()
    given = {"input_ids": IDS, "decoder_input_ids": IDS}
    encoded = model.get_encoder()(IDS, return_dict=True)
    for wrong, message in (
        ({"decoder_input_ids": IDS + 99}, "`decoder_input_ids` holds 130 at"),
        (
            {"decoder_input_ids": None, "decoder_inputs_embeds": torch.zeros(3, 9, 5)},
            "`decoder_inputs_embeds` has vectors of 5",
        ),
        ({"attention_mask": ONES[:, :4]}, "`attention_mask` has the shape (3, 4)"),
        ({"attention_mask": ONES[:, :4], "encoder_outputs": encoded}, "`attention_mask` has the shape (3, 4)"),
        ({"encoder_outputs": (encoded.last_hidden_state[:2],)}, "`encoder_outputs` has 2 rows, but the batch has 3"),
    ):
        with pytest.raises(InputError) as caught:
            model(**given | wrong)
        assert message in str(caught.value)
    with pytest.raises(InputError, match=r"`decoder_attention_mask` must be \(3, 9\) .* but is \(2, 3\)"):
        model.generate(
            IDS, decoder_start_token_id=0, decoder_input_ids=IDS, decoder_attention_mask=torch.ones(2, 3), max_new_tokens=1
        )


def test_an_encoders_mask_has_its_own_name() -> None:
    model = BertForMaskedLM(BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)).eval()
    with pytest.raises(InputError, match=r"`encoder_attention_mask` has the shape \(3, 2\), but the batch needs \(3, 5\)"):
        model(IDS, encoder_hidden_states=torch.zeros(3, 5, 32), encoder_attention_mask=torch.ones(3, 2))


# --- tensors that nothing is computed with ---------------------------------------------------------------------------------

ODD: dict[str, tuple[Any, str]] = {
    "nested": (
        lambda x: torch.nested.nested_tensor([*x]),
        r"must be a dense tensor, but is nested\. Pass torch\.nested\.to_padded",
    ),
    "ragged": (
        lambda x: torch.nested.nested_tensor([*x[:, None]], layout=torch.jagged),
        "must be a dense tensor, but is nested",
    ),
    "sparse": (lambda x: x.to_sparse(), r"must be a dense tensor, but is torch\.sparse_coo\. Pass \w+\.to_dense"),
    "rows": (lambda x: x.reshape(len(x), -1).to_sparse_csr(), r"must be a dense tensor, but is torch\.sparse_csr"),
    "complex": (lambda x: x.to(torch.complex64), r"is of torch\.complex64, which models do not compute with"),
    "unsigned": (lambda x: x.to(torch.uint32), r"is of torch\.uint32"),
    "quantized": (lambda x: torch.quantize_per_tensor(x.float(), 1.0, 0, torch.quint8), r"is of torch\.quint8.*dequantize"),
    "nowhere": (lambda x: x.to("meta"), r"has no values \(it is on the meta device\)"),
}
LISTED = {"class_labels": torch.zeros(2).long(), "boxes": torch.rand(2, 4)}
READERS: list[tuple[str, dict[str, Any]]] = [
    ("BertForSequenceClassification", {"input_ids": IDS, "attention_mask": ONES, "labels": torch.tensor([0, 1, 1])}),
    ("LlamaForCausalLM", {"input_ids": IDS, "attention_mask": ONES, "position_ids": ONES, "labels": IDS}),
    ("T5ForConditionalGeneration", {"input_ids": IDS, "decoder_input_ids": IDS, "labels": IDS, "attention_mask": ONES}),
    ("ViTForImageClassification", {"pixel_values": torch.rand(2, 3, 30, 30), "labels": torch.tensor([0, 1])}),
    ("Wav2Vec2ForCTC", {"input_values": torch.rand(2, 400), "labels": torch.ones(2, 2).long()}),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "inputs"), READERS, ids=lambda value: value if isinstance(value, str) else "")
def test_odd_tensors_are_named_whatever_they_are_passed_as(name: str, inputs: dict[str, Any]) -> None:
    family, cls = next(case.values for case in EVERY if case.values[1].__name__ == name)
    model = cls(cls.config_class(**settings(family, cls))).eval()
    for argument, right in inputs.items():
        for kind, (make, message) in ODD.items():
            with pytest.raises(InputError, match=f"`{argument}` {message}"):
                model(**inputs | {argument: make(right)})
            if argument != "labels" and kind != "unsigned" and hasattr(model, "generate"):
                with pytest.raises(InputError, match=f"`{argument}` {message}"):
                    model.generate(**{key: each for key, each in inputs.items() if key != "labels"} | {argument: make(right)})


def test_tensors_in_lists_are_looked_at() -> None:
    with pytest.raises(InputError, match="`labels` must be a dense tensor"):
        check_tensors({"labels": [LISTED, LISTED | {"boxes": LISTED["boxes"].to_sparse()}]})
    check_tensors({"labels": [LISTED], "pixel_values": None, "return_dict": True})


def test_a_model_without_values_takes_tensors_without_values() -> None:
    model = build().to("meta")
    assert model(IDS.to("meta"), attention_mask=None, position_ids=None).last_hidden_state.shape == (3, 9, 32)
