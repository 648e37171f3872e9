"""Contrastive search against its definition: no cache, one row at a time, one candidate at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.generation.test_assisted import Words
from tests.generation.test_generate import NEW, WRITERS, inputs, ready, written
from tests.models.families import Family
from transept.core.model import Model
from transept.errors import InputError

pytestmark = pytest.mark.reference

# One of each kind: learned positions, rotary ones, relative ones, a state, and both sorts of encoder–decoders.
NAMES = ("GPT2LMHeadModel", "LlamaForCausalLM", "BloomForCausalLM", "MambaForCausalLM", "Gemma2ForCausalLM")
CASES = [
    case
    for case in WRITERS
    if case.values[1].__name__ in (*NAMES, "BartForConditionalGeneration", "T5ForConditionalGeneration")
]
ENDS = (2, 50)


def read(model: Any, ids: Tensor, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Logits (V) after the last id, and the last hidden states (T, D) of all."""
    names = (
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if not model.config.is_encoder_decoder
        else {"decoder_input_ids": ids} | given
    )
    output = model(**names, use_cache=False, output_hidden_states=True)
    states = output.decoder_hidden_states if model.config.is_encoder_decoder else output.hidden_states
    return output.logits[0, -1], states[-1][0]


@torch.no_grad()
def defined(model: Any, ids: list[int], given: dict[str, Any], alpha: float, most: int) -> list[int]:
    """What contrastive search writes after one row of real ids."""
    new: list[int] = []
    while len(new) < NEW and not set(new) & set(ENDS):
        logits, before = read(model, torch.tensor([ids + new]), given)
        chances = logits.softmax(dim=-1)
        ranked = []
        for token in chances.topk(most)[1].tolist():
            _, states = read(model, torch.tensor([[*ids, *new, token]]), given)
            likeness = max(float(torch.cosine_similarity(states[-1], state, dim=0)) for state in before)
            ranked.append(((1 - alpha) * float(chances[token]) - alpha * likeness, token))
        new.append(max(ranked)[1])
    return new


def expected(model: Any, given: dict[str, Tensor], row: int, alpha: float, most: int) -> list[int]:
    real = given["attention_mask"][row] == 1
    ids = given["input_ids"][row][real]
    if model.config.is_encoder_decoder:
        return defined(model, [1], {"input_ids": ids[None]}, alpha, most)
    return defined(model, ids.tolist(), {}, alpha, most)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(("family", "cls"), CASES)
def test_definition(family: Family, cls: type[Model], cached: bool) -> None:
    ours, _ = ready(family, cls)
    ours.generation_config.forced_eos_token_id = None
    given = inputs(family, cls)
    prompt = 1 if ours.config.is_encoder_decoder else given["input_ids"].shape[1]
    found = written(ours, given, penalty_alpha=0.6, top_k=4, use_cache=cached)
    plain = written(ours, given)
    assert found.shape != plain.shape or not torch.equal(found, plain)  # else alpha would prove nothing
    for row in range(found.shape[0]):
        new = expected(ours, given, row, 0.6, 4)
        assert found[row, prompt:].tolist() == new + [0] * (found.shape[1] - prompt - len(new))


@pytest.mark.parametrize(("family", "cls"), [case for case in CASES if "Llama" in case.values[1].__name__])
def test_without_a_penalty_it_is_greedy_and_reads_chunks_and_embeddings(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given = inputs(family, cls, "none")
    assert torch.equal(written(ours, given, penalty_alpha=1e-9, top_k=3), written(ours, given))
    whole = written(ours, given, penalty_alpha=0.5, top_k=5)
    assert torch.equal(written(ours, given, penalty_alpha=0.5, top_k=5, prefill_chunk_size=4), whole)
    embeds = ours.get_input_embeddings()(given["input_ids"])
    found = written(ours, {"inputs_embeds": embeds}, penalty_alpha=0.5, top_k=5)
    assert torch.equal(found, whole[:, given["input_ids"].shape[1] :])


@pytest.mark.parametrize(("family", "cls"), CASES)
def test_outputs_belong_to_the_tokens_and_the_cache_goes_on(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    ours.generation_config.eos_token_id = ours.generation_config.forced_eos_token_id = None
    given, settings = inputs(family, cls, "none"), {"penalty_alpha": 0.6, "top_k": 4, "return_dict_in_generate": True}
    found = written(ours, given, **settings, output_scores=True, output_hidden_states=True, max_new_tokens=5)
    assert torch.equal(found.sequences, written(ours, given, penalty_alpha=0.6, top_k=4, max_new_tokens=5))
    states = found.decoder_hidden_states if ours.config.is_encoder_decoder else found.hidden_states
    assert len(states) == len(found.scores) == 5
    name = "decoder_input_ids" if ours.config.is_encoder_decoder else "input_ids"
    mask = given["attention_mask"] if ours.config.is_encoder_decoder else torch.ones_like(found.sequences)
    with torch.no_grad():
        whole = ours(**given | {name: found.sequences, "attention_mask": mask}, use_cache=False)
    for place, scores in enumerate(found.scores):
        torch.testing.assert_close(scores, whole.logits[:, place - 6], rtol=1e-4, atol=1e-4)  # one more float32 summation order
    assert all(step[-1].shape[:2] == (3, 1) for step in states[1:])
    if cls.__name__ == "MambaForCausalLM":
        assert found.past_key_values is None
    else:
        assert found.past_key_values.get_seq_length() == found.sequences.shape[1] - 1
        assert found.past_key_values.layers[0].keys.shape[0] == 3


@pytest.mark.parametrize(("family", "cls"), CASES[:1])
def test_banned_tokens_are_never_taken(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given = inputs(family, cls, "none")
    found = written(ours, given, penalty_alpha=0.9, top_k=90, suppress_tokens=list(range(5, 99)))
    assert int(found[:, given["input_ids"].shape[1] :].max()) < 5


@pytest.mark.parametrize(("family", "cls"), CASES[:1])
def test_cached_beginnings_are_refused(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    first = written(ours, inputs(family, cls, "none"), max_new_tokens=2, return_dict_in_generate=True)
    with pytest.raises(InputError, match=r"those of 10 are only cached.*without `past_key_values`"):
        written(ours, {"input_ids": first.sequences, "past_key_values": first.past_key_values}, penalty_alpha=0.6, top_k=4)


@pytest.mark.parametrize(("family", "cls"), CASES[:1])
def test_streams(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given = {name: value[:1] for name, value in inputs(family, cls, "none").items()}
    settings = {"penalty_alpha": 0.6, "top_k": 4, "max_new_tokens": NEW}
    pieces = list(ours.stream(**given, **settings, tokenizer=Words()))
    whole = written(ours, given, **settings)[0, 9:].tolist()
    assert [token for piece in pieces for token in piece.ids] == whole
    assert "".join(piece.text for piece in pieces) == Words().decode(whole)


@pytest.mark.parametrize(("family", "cls"), CASES[:1])
def test_the_last_token_is_read_too_and_must_have_a_position(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)  # 64 positions
    ours.generation_config.eos_token_id = None
    ids = torch.full((1, 60), 7)
    assert written(ours, {"input_ids": ids}, penalty_alpha=0.6, top_k=4, max_new_tokens=4).shape == (1, 64)
    with pytest.raises(InputError, match="`max_new_tokens` to 4 at most"):
        written(ours, {"input_ids": ids}, penalty_alpha=0.6, top_k=4, max_new_tokens=5)
    assert written(ours, {"input_ids": ids}, max_new_tokens=5).shape == (1, 65)
