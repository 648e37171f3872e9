"""Figures of texts and tags, against values that their authors publish and against plain computations."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from transept.errors import InputError
from transept.metrics import get_metric
from transept.metrics.texts import edits, entities, normal_answer, words_13a

# The example of sacrebleu's README.
TEXTS = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [
    ["The dog bit the man.", "The dog had bit the man."],
    ["It was not unexpected.", "No one was surprised."],
    ["The man bit him first.", "The man had bitten the dog."],
]


def test_bleu_and_chrf_as_sacrebleu_publishes_them() -> None:
    bleu = get_metric("bleu")
    for text, references in zip(TEXTS, REFERENCES):
        bleu.update([text], [references])
    assert bleu.result()["bleu"] == pytest.approx(48.530827009929865, rel=1e-12)
    assert (bleu.length, bleu.reference) == (17, 18)
    assert get_metric("bleu")(TEXTS, REFERENCES) == bleu.result()
    assert get_metric("chrf")(TEXTS, REFERENCES)["chrf"] == pytest.approx(59.73, abs=0.005)


def test_bleu_by_definition() -> None:
    """Without any 4-gram that hits, its precision is half of one hit."""
    found = get_metric("bleu")(["the cat sat here now"], ["the cat sat there then"])["bleu"]
    assert found == pytest.approx(100 * (3 / 5 * 2 / 4 * 1 / 3 * 1 / (2 * 2)) ** 0.25)
    assert get_metric("bleu")(["a b c d e"], ["v w x y z"])["bleu"] == 0
    assert get_metric("bleu")(["a b c"], ["a b c"])["bleu"] == 0  # no 4-gram at all
    assert get_metric("bleu")(["a b c d"], ["a b c d"])["bleu"] == pytest.approx(100)
    assert get_metric("bleu")([""], ["a b"])["bleu"] == 0


def test_words_of_mteval() -> None:
    text = 'He said: "1,000.50 is (a) well-known 3-fold &amp; low-\ncost price," e.g. here.'
    expected = 'He said : " 1,000.50 is ( a ) well-known 3 - fold & lowcost price , " e . g . here .'
    assert words_13a(text) == expected.split()


def test_rouge_as_published() -> None:
    """The example of rouge_score's README."""
    found = get_metric("rouge")(["The quick brown dog jumps on the log."], ["The quick brown fox jumps over the lazy dog"])
    assert found["rouge1"] == pytest.approx(0.7058823529411765)
    assert found["rougeL"] == pytest.approx(0.5882352941176471)
    assert set(get_metric("rouge")(["hello there", "general kenobi"], ["hello there", "general kenobi"]).values()) == {1.0}
    assert set(get_metric("rouge")(["", "a"], ["b", ""]).values()) == {0.0}


def test_rouge_of_lines() -> None:
    """The example of Lin 2004, section 3.2: w1 ... w5 against two lines; the union has four of five words."""
    found = get_metric("rouge")(["w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5"], ["w1 w2 w3 w4 w5"])["rougeLsum"]
    assert found == pytest.approx(2 * 4 / (5 + 10))
    assert get_metric("rouge")(["b\na"], ["a\nb"])["rougeLsum"] == 1.0
    assert get_metric("rouge")(["b\na"], ["a\nb"])["rougeL"] == 0.5
    assert get_metric("rouge")(["a b"], [["x", "a b"]])["rouge2"] == 1.0


def test_error_rates_as_published() -> None:
    """The examples of the `wer` and `cer` of Hugging Face's evaluate."""
    texts, right = ["this is the prediction", "there is an other sample"], ["this is the reference", "there is another one"]
    assert get_metric("wer")(texts, right)["wer"] == 0.5
    assert get_metric("cer")(texts, right)["cer"] == pytest.approx(0.34146341463414637)


def test_edits_by_recursion() -> None:
    def plain(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(plain(a[1:], b) + 1, plain(a, b[1:]) + 1, plain(a[1:], b[1:]) + (a[0] != b[0]))

    draw = random.Random(0)
    for _ in range(60):
        a, b = ("".join(draw.choices("abc", k=draw.randint(0, 5))) for _ in range(2))
        assert edits(a, b) == plain(a, b)


# --- entities ---------------------------------------------------------------------------------------------------------------

RIGHT = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
FOUND = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]


def test_entities_as_seqeval_publishes_them() -> None:
    """The example of seqeval's README: F1 0.5, MISC 0, PER 1, accuracy 0.8."""
    found = get_metric("entity_f1", by_type=True)(FOUND, RIGHT)
    assert (found["precision"], found["recall"], found["f1"]) == (0.5, 0.5, 0.5)
    assert (found["MISC_f1"], found["PER_f1"]) == (0.0, 1.0)
    assert found["accuracy"] == 0.8


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-PER I-PER O B-LOC", {("PER", 0, 1), ("LOC", 3, 3)}),  # seqeval's own example
        ("I-A I-A O", {("A", 0, 1)}),  # not strict
        ("B-A I-B", {("A", 0, 0), ("B", 1, 1)}),
        ("B-A B-A I-A", {("A", 0, 0), ("A", 1, 2)}),
        ("S-A E-A B-B E-B I-B", {("A", 0, 0), ("A", 1, 1), ("B", 2, 3), ("B", 4, 4)}),
        ("O O", set()),
        ("", set()),
        ("I-A O I-A", {("A", 0, 0), ("A", 2, 2)}),
        ("B-x-y I-x-y", {("x-y", 0, 1)}),
        ("B-A I-A L-A U-B U-B", {("A", 0, 2), ("B", 3, 3), ("B", 4, 4)}),
    ],
)
def test_spans_of_tags(tags: str, spans: Any) -> None:
    assert entities(tags.split()) == spans


def test_entities_of_numbers_and_padding() -> None:
    names = {0: "O", 1: "B-A", 2: "I-A"}
    labels = torch.tensor([[-100, 1, 2, 0, -100], [1, -100, 0, -100, -100]])
    predictions = torch.tensor([[2, 1, 2, 0, 1], [1, 2, 1, 0, 0]])
    metric = get_metric("entity_f1", names=names)
    found = metric(predictions, labels)
    assert (found["precision"], found["recall"]) == (2 / 3, 1.0)
    logits = torch.nn.functional.one_hot(predictions, 3).float()
    assert metric(logits, labels) == found
    with pytest.raises(InputError, match=r"tags are numbers, such as 1, but have no names\. Pass `names`"):
        get_metric("entity_f1")([[1]], [[1]])
    with pytest.raises(InputError, match="row 0 has 1 predicted tags for 2 labels"):
        metric([["O"]], [["O", "O"]])
    with pytest.raises(InputError, match="the tag 'PER' at 0 is none of"):
        metric([["PER"]], [["O"]])


# --- answers ----------------------------------------------------------------------------------------------------------------


def test_answers_as_squad_compares_them() -> None:
    assert normal_answer(" The  Cat's, an  hat! ") == "cats hat"
    metric = get_metric("squad")
    metric.update(["the Denver Broncos"], [["Denver Broncos", "The Denver Broncos"]])
    assert metric.result() == {"exact_match": 100.0, "f1": 100.0}
    metric.update(["in the year 1976"], [{"text": ["1976", "year 1977"], "answer_start": [3, 4]}])
    assert metric.result() == {"exact_match": 50.0, "f1": pytest.approx((100 + 50) / 2)}
    metric.update(["", "something"], [[], []])
    assert metric.result() == {"exact_match": 50.0, "f1": pytest.approx((100 + 50 + 100 + 0) / 4)}


def test_texts_that_cannot_be() -> None:
    for name in ("bleu", "chrf", "rouge", "wer", "cer"):
        for predictions, labels in ((["a"], [[]]), ([1], ["a"]), (["a"], [[1]]), (["a", "b"], ["a"]), ("ab", "ab")):
            with pytest.raises(InputError):
                get_metric(name).update(predictions, labels)
