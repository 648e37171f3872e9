"""Questions about a text, answered in the model's own words (Raffel et al. 2020).

Shapes: R answers of all questions, T tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from transept.generation.decoding import pick_rows
from transept.generation.prompt import end_tokens
from transept.pipelines.base import check_count
from transept.pipelines.batching import Sample
from transept.pipelines.questions import Questions, read_question
from transept.pipelines.text import Text
from transept.pipelines.text2text_generation import Text2TextGenerationPipeline, Text2TextOptions


@dataclass(frozen=True)
class WrittenAnswerOptions(Text2TextOptions):
    """Options of ``question-answering`` with a model that writes; see also :class:`Text2TextOptions`.

    Args:
        top_k: how many answers to give, the most likely first; for more than one, as many beams are searched at least.
        max_answer_len: tokens of an answer at most.
    """

    top_k: int = 1
    max_answer_len: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("top_k", self.top_k)
        check_count("max_answer_len", self.max_answer_len, optional=True)


class WrittenAnswerPipeline(Questions, Text2TextGenerationPipeline):
    """For ``{"question": str, "context": str}``, ``{"score", "start", "end", "answer"}``, or a list where there are several.

    The score is the probability that the model gives to the answer and its end. ``start`` and ``end`` are the characters of the
    context where it first stands, in whatever case and spacing, and ``None`` where it does not. A question and its context are
    a pair, or what the family was trained on.
    """

    task = "question-answering"
    options_class: ClassVar[type[Text2TextOptions]] = WrittenAnswerOptions

    def cutting(self, options: Text2TextOptions) -> tuple[str | None, int]:
        """Contexts are cut, where that is asked for."""
        return ("only_second" if options.truncation else None), self.max_length

    def read(self, item: Any, options: Text2TextOptions) -> list[Text]:
        """The question with its context."""
        question, context = read_question(item)
        prefix, layout = options.prefix or "", getattr(self.model.backbone, "question_layout", None)
        return [(prefix + question, context) if layout is None else (prefix + layout.format(question, context), None)]

    def settings(self, options: Text2TextOptions) -> dict[str, Any]:
        """With the number and the length of answers."""
        assert isinstance(options, WrittenAnswerOptions)
        found = super().settings(options)
        if options.max_answer_len is not None:
            found["max_new_tokens"] = options.max_answer_len
        if options.top_k > 1:
            beams = max(self.resolved(options).num_beams or 1, options.top_k)
            found |= {"num_return_sequences": options.top_k, "num_beams": beams}
        return found

    def forward(self, samples: Sequence[Sample], options: Text2TextOptions) -> Sequence[Any]:
        """For each row, the ids of each of its answers and how likely that is."""
        batch, model = self.collate(samples), cast(Any, self.model)
        states = model.get_encoder()(**batch, return_dict=True)
        mask = {"attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {}
        written = self.write({"input_ids": batch["input_ids"], "encoder_outputs": states, **mask}, options)
        device, copies = model.device, len(written[0])
        rows = torch.arange(len(written), device=device).repeat_interleave(copies)
        given = {name: pick_rows(value, rows) for name, value in (mask | {"encoder_outputs": states}).items()}
        flat = torch.tensor([ids for answers in written for ids in answers], device=device)
        chances = iter(self.chances(given, flat, end_tokens(self.resolved(options))))
        return [[(ids, next(chances)) for ids in answers] for answers in written]

    def chances(self, given: dict[str, Any], ids: Tensor, ends: list[int]) -> list[float]:
        """How likely answers (R, T) are: the product over their text and, where they have one, the token that ends them."""
        logits = self.model(**given, decoder_input_ids=ids[:, :-1], use_cache=False, return_dict=True).logits
        ids = ids[:, 1:]
        each = logits.float().log_softmax(dim=-1).gather(2, ids[:, :, None])[:, :, 0]
        end = torch.isin(ids, ids.new_tensor(ends))
        text = ~torch.isin(ids, ids.new_tensor(self.tokenizer.all_special_ids)) | end
        counts = text & (end.cumsum(dim=1) - end.long() == 0)
        found: list[float] = each.masked_fill(~counts, 0).sum(dim=1).exp().tolist()
        return found

    def answer(self, item: Any, samples: Sequence[Sample], results: Sequence[Any], options: Text2TextOptions) -> Any:
        """What was written, with its place in the context; the scores of answers that read alike are added up."""
        found: dict[str, dict[str, Any]] = {}
        for ids, chance in results[0]:
            text = self.text(ids, options).strip()
            place = locate(text, item["context"])
            start, end = (None, None) if place is None else place
            known = found.setdefault(text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text})
            known["score"] += chance
        answers = sorted(found.values(), key=lambda answer: -answer["score"])
        return answers[0] if len(answers) == 1 else answers


def locate(answer: str, context: str) -> tuple[int, int] | None:
    """Where a text first stands in another, in whatever case and spacing; ``None`` where it does not.

    No answer at all, (0, 0), is how extracting models say that there is none.
    """
    (sought, _), (text, places) = _folded(answer.strip()), _folded(context)
    if not sought:
        return 0, 0
    start = text.find(sought)
    return None if start < 0 else (places[start], places[start + len(sought) - 1] + 1)


def _folded(text: str) -> tuple[str, list[int]]:
    """A text without case and with single spaces, and where each of its characters stands."""
    found: list[tuple[str, int]] = []
    for place, letter in enumerate(text):
        if not letter.isspace():
            found += [(part, place) for part in letter.casefold()]
        elif place == 0 or not text[place - 1].isspace():
            found.append((" ", place))
    return "".join(letter for letter, _ in found), [place for _, place in found]
