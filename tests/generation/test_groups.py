"""Diverse beam search against its definition in plain Python: no tensors of beams, no cache, one prompt at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.generation.test_generate import NEW, WRITERS, inputs, ready, written
from tests.models.families import Family
from tests.thorough import crossed
from transept.core.model import Model
from transept.errors import ConfigError, InputError

pytestmark = pytest.mark.reference

NAMES = (
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "MambaForCausalLM",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
)
CASES = [case for case in WRITERS if case.values[1].__name__ in NAMES]
PLAIN = [case for case in CASES if case.values[1].__name__ in ("LlamaForCausalLM", "BartForConditionalGeneration")]
ENDS = (2, 50)
Beam = tuple[float, list[int]]


def chances(model: Any, new: list[int], ids: Tensor) -> Tensor:
    """Log-probabilities (V) of what follows."""
    if model.config.is_encoder_decoder:
        return (
            model(ids, attention_mask=torch.ones_like(ids), decoder_input_ids=torch.tensor([[1, *new]]))
            .logits[0, -1]
            .log_softmax(-1)
        )
    text = torch.cat([ids, torch.tensor([new], dtype=torch.long)], dim=1)
    return model(text, attention_mask=torch.ones_like(text)).logits[0, -1].log_softmax(-1)


class Searched:
    """One group of one prompt; complete beams are kept by their score per token."""

    def __init__(self, width: int, early: bool) -> None:
        self.width, self.early, self.over = width, early, False
        self.open: list[Beam] = [(0.0, [])]
        self.complete: list[Beam] = []

    def step(self, model: Any, ids: Tensor, penalty: dict[int, float]) -> list[int]:
        """Go on by one token; what the open beams got."""
        candidates: list[Beam] = []
        for score, new in self.open:
            scores = chances(model, new, ids)
            for token, lost in penalty.items():
                scores[token] -= lost
            values, tokens = scores.topk(4 * self.width)
            candidates += [(score + float(v), [*new, int(t)]) for v, t in zip(values, tokens, strict=True)]
        candidates.sort(reverse=True)
        candidates = candidates[: 3 * self.width]  # with two tokens that end, so many leave enough to go on with
        last = len(candidates[0][1]) == NEW
        for score, new in candidates[: self.width]:
            if new[-1] in ENDS or last:
                self.complete.append((score / len(new), new))
        self.complete = sorted(self.complete, reverse=True)[: self.width]
        self.open = [beam for beam in candidates if beam[1][-1] not in ENDS][: self.width]
        full = len(self.complete) == self.width
        best = self.open[0][0] / len(self.open[0][1])
        self.over = last or (full and (self.early or best <= self.complete[-1][0]))
        return [new[-1] for _, new in self.open]


@torch.no_grad()
def defined(model: Any, ids: Tensor, beams: int, groups: int, penalty: float, early: bool) -> list[Beam]:
    """All complete sequences, the best first."""
    searches = [Searched(beams // groups, early) for _ in range(groups)]
    while not all(search.over for search in searches):
        heard: list[int] = []
        for search in searches:
            if not search.over:
                lost = {token: penalty * heard.count(token) for token in heard}
                heard += search.step(model, ids, lost)
    return sorted((beam for search in searches for beam in search.complete), reverse=True)


# Beams, groups and penalty.
SEARCHES = [(4, 2, 0.7), (3, 3, 5.0), (6, 2, 1.5)]


@pytest.mark.parametrize(("search", "early"), crossed(SEARCHES, [False, True], 3))
@pytest.mark.parametrize(("family", "cls"), CASES)
def test_definition(family: Family, cls: type[Model], search: tuple[int, int, float], early: bool) -> None:
    beams, groups, penalty = search
    ours, _ = ready(family, cls)
    ours.generation_config.forced_eos_token_id = None
    given = inputs(family, cls)
    prompt = 1 if ours.config.is_encoder_decoder else given["input_ids"].shape[1]
    settings = {"num_beams": beams, "num_beam_groups": groups, "diversity_penalty": penalty, "early_stopping": early}
    found = written(ours, given, **settings, num_return_sequences=beams, return_dict_in_generate=True, output_scores=True)
    for row in range(3):
        ids = given["input_ids"][row][given["attention_mask"][row] == 1][None]
        best = defined(ours, ids, beams, groups, penalty, early)
        for place, (score, new) in enumerate(best):
            index = row * beams + place
            # Sums of some twelve float32 log-probabilities, in another order.
            assert float(found.sequences_scores[index]) == pytest.approx(score, rel=1e-4)
            written_ids = found.sequences[index, prompt:].tolist()
            assert written_ids == new + [2] * (len(written_ids) - len(new))


@pytest.mark.parametrize(("family", "cls"), PLAIN)
def test_without_a_penalty_each_group_is_a_beam_search(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given = inputs(family, cls)
    alone = written(ours, given, num_beams=2, num_return_sequences=2)
    settings = {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 1e-12, "num_return_sequences": 6}
    found = written(ours, given, **settings)
    assert torch.equal(found[::3], alone)  # each comes from three groups
    assert torch.equal(found[1::3], alone)
    assert torch.equal(found[2::3], alone)


@pytest.mark.parametrize(("family", "cls"), PLAIN)
def test_transition_scores_add_up_to_those_of_the_sequences(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    settings = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.9, "num_return_sequences": 4}
    shown = {"return_dict_in_generate": True, "output_scores": True, "length_penalty": 0.0, "repetition_penalty": 1.2}
    found = written(ours, inputs(family, cls), **settings, **shown)
    steps = ours.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    torch.testing.assert_close(steps.sum(dim=1), found.sequences_scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("family", "cls"), PLAIN[:1])
def test_what_groups_do_not_go_with(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given, groups = inputs(family, cls), {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
    with pytest.raises(ConfigError, match="`num_beam_groups`.*needs `diversity_penalty` to be above 0"):
        written(ours, given, num_beams=4, num_beam_groups=2)
    with pytest.raises(ConfigError, match="must divide `num_beams`"):
        written(ours, given, **groups | {"num_beam_groups": 3})
    with pytest.raises(ConfigError, match="`guidance_scale`.*num_beam_groups=1"):
        written(ours, given, **groups, guidance_scale=2.0)
    with pytest.raises(InputError, match="`assistant_model` has no part in group beam search"):
        written(ours, given, **groups, assistant_model=ours)
