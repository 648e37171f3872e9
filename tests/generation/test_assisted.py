"""Assisted generation writes what the model alone writes, in fewer calls where the guesses are good."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.generation.test_generate import COMPARED, NEW, USED, WRITERS, inputs, ready, written
from tests.models.families import Family
from tests.thorough import crossed
from transept.core.model import Model
from transept.errors import InputError
from transept.generation.assisted import Draft, ForeignDraft, PromptLookup
from transept.generation.prompt import Prompt

pytestmark = pytest.mark.reference

# Experts of NLLB take as many tokens of a pass as they have places for, so that guesses that are checked together have others.
OTHERS = ("reformer", "xlnet", "nllb-moe")
CASES = [case for case in COMPARED if not case.values[1]._is_stateful and case.values[0].model_type not in OTHERS]
GPT2 = next(case for case in WRITERS if case.values[1].__name__ == "GPT2LMHeadModel")
BART = next(case for case in WRITERS if case.values[1].__name__ == "BartForConditionalGeneration")
MAMBA = next(case for case in WRITERS if case.values[1].__name__ == "MambaForCausalLM")
ONE = [GPT2]


def row(given: dict[str, Tensor], number: int = 0) -> dict[str, Tensor]:
    return {name: value[number : number + 1] for name, value in given.items()}


def worse(model: Any, noise: float) -> Any:
    """A draft model that is often right: the same with other weights by some noise."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(
                noise
                * parameter.std(correction=min(1, parameter.numel() - 1))
                * torch.randn(parameter.shape, generator=generator)
            )
    draft.generation_config = copy.deepcopy(model.generation_config)
    draft.generation_config.update(num_assistant_tokens=4, assistant_confidence_threshold=0.0)
    return draft


class Counted:
    """Counts a model's forward passes."""

    def __init__(self, model: Any) -> None:
        self.calls = 0
        self.handle = model.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: Any) -> None:
        self.handle.remove()


# Rows of a batch, of which the last is padded, and how often three drafts are right; and processed logits.
PROCESSED = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "prefill_chunk_size": 3}
WAYS: dict[str, tuple[int, tuple[float, ...], dict[str, Any]]] = {
    "whole row": (0, (0.0, 0.05, 3.0), {}),
    "padded row": (2, (0.0, 0.05, 3.0), {}),
    "processed": (0, (0.05,), PROCESSED),
}


@pytest.mark.parametrize(("family", "cls", "way"), crossed(CASES, WAYS, 30, whole=USED))
def test_greedy_equals_greedy(family: Family, cls: type[Model], way: str) -> None:
    ours, _ = ready(family, cls)
    number, noises, settings = WAYS[way]
    one = row(inputs(family, cls), number)
    plain = written(ours, one, **settings)
    for draft in (worse(ours, noise) for noise in noises):
        assert torch.equal(written(ours, one, assistant_model=draft, **settings), plain)
    assert torch.equal(written(ours, one, prompt_lookup_num_tokens=5 if settings else 3, **settings), plain)
    if not settings:
        assert torch.equal(written(ours, one, assistant_model=worse(ours, 0.05), use_cache=False), plain)


@pytest.mark.parametrize(("family", "cls"), [GPT2, BART])
def test_good_drafts_save_calls(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    ours.generation_config.eos_token_id = None
    given, draft = row(inputs(family, cls, "none")), worse(ours, 0.0)
    with Counted(ours) as plain, Counted(draft) as drafting:
        written(ours, given, max_new_tokens=20)
        assert (plain.calls, drafting.calls) == (20, 0)
        written(ours, given, max_new_tokens=20, assistant_model=draft)
    # Five tokens a call: four guesses and one more.
    assert (plain.calls - 20, drafting.calls) == (4, 16)
    draft.generation_config.num_assistant_tokens_schedule = "heuristic"
    with Counted(ours) as checking:
        written(ours, given, max_new_tokens=20, assistant_model=draft)
    assert checking.calls == 3  # four guesses, then six, then what is left


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_lookup_saves_calls_where_the_text_repeats_itself(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    ours.generation_config.eos_token_id = None
    given = row(inputs(family, cls, "none"))
    loop = {"sequence_bias": [[[7, 8], 99.0], [[8, 9], 99.0], [[9, 7], 99.0]]}  # 7 8 9 7 8 9 ...
    given = {"input_ids": torch.tensor([[5, 7, 8, 9, 7]]), "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    with Counted(ours) as plain:
        expected = written(ours, given, **loop)
    with Counted(ours) as looked:
        assert torch.equal(written(ours, given, **loop, prompt_lookup_num_tokens=3), expected)
    assert expected[0, 5:].tolist() == [8, 9, 7] * 4
    assert plain.calls == 12
    assert looked.calls == 3
    assert PromptLookup(3)(torch.tensor([[5, 7, 8, 9, 5, 7]]), 9).tolist() == [[8, 9, 5]]
    assert PromptLookup(3)(torch.tensor([[5, 7, 8, 9, 5, 7]]), 1).tolist() == [[8]]
    assert PromptLookup(3)(torch.tensor([[5, 7, 8]]), 9).shape == (1, 0)


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_sampling_keeps_the_distribution(family: Family, cls: type[Model]) -> None:
    """Chi-square of the second new token over seeds, against the exact distribution."""
    ours, _ = ready(family, cls)
    ours.generation_config.eos_token_id = None
    ids = row(inputs(family, cls, "none"))["input_ids"]
    allowed, draft = [10, 20, 30, 40], worse(ours, 0.3)
    banned = [token for token in range(99) if token not in allowed]
    settings: dict[str, Any] = {"do_sample": True, "suppress_tokens": banned, "temperature": 3.0, "max_new_tokens": 2}
    draft.generation_config.num_assistant_tokens = 2
    with torch.no_grad():
        first = (ours(ids).logits[0, -1, allowed] / 3).softmax(-1)
        after = torch.stack(
            [(ours(torch.cat([ids, torch.tensor([[token]])], 1)).logits[0, -1, allowed] / 3).softmax(-1) for token in allowed]
        )
    expected = first[:, None] * after  # (4, 4) of pairs
    counts, draws = torch.zeros(4, 4), 600
    lookup = torch.cat([ids, torch.tensor([[10, 20, 10]])], dim=1)
    for seed in range(draws):
        found = written(ours, {"input_ids": ids}, assistant_model=draft, seed=seed, **settings)[0, -2:].tolist()
        counts[allowed.index(found[0]), allowed.index(found[1])] += 1
    assert float((draws * expected).min()) > 5  # as the test needs it
    statistic = float(((counts - draws * expected) ** 2 / (draws * expected)).sum())
    assert statistic < 37.7  # 15 degrees of freedom, 99.9 %
    plain = written(ours, {"input_ids": lookup}, seed=3, **settings | {"max_new_tokens": 8})
    guessed = written(ours, {"input_ids": lookup}, seed=3, prompt_lookup_num_tokens=2, **settings | {"max_new_tokens": 8})
    assert torch.equal(plain, guessed)  # one draw for each token written, whoever guessed it


@pytest.mark.parametrize(("family", "cls"), [GPT2, BART])
def test_ends_inside_the_guesses(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    ours.generation_config.eos_token_id = ours.generation_config.forced_eos_token_id = None
    given, draft = row(inputs(family, cls, "none")), worse(ours, 0.0)
    draft.generation_config.num_assistant_tokens = 30
    start = 1 if ours.config.is_encoder_decoder else given["input_ids"].shape[1]
    plain = written(ours, given)
    for new in (1, 2, NEW):
        assert torch.equal(written(ours, given, max_new_tokens=new, assistant_model=draft), plain[:, : start + new])
    ends = [next(token for token in plain[0, start + 3 :].tolist() if token not in plain[0, start : start + 3].tolist())]
    ended = written(ours, given, eos_token_id=ends, return_dict_in_generate=True, assistant_model=draft)
    assert torch.equal(ended.sequences, written(ours, given, eos_token_id=ends))
    assert ended.sequences[0, -1] == ends[0]
    assert ended.sequences.shape[1] < plain.shape[1]
    assert ended.past_key_values.get_seq_length() <= ended.sequences.shape[1]


@pytest.mark.parametrize(("family", "cls"), [GPT2, BART])
def test_outputs_are_those_of_each_token(family: Family, cls: type[Model]) -> None:
    ours, theirs = ready(family, cls)
    ours.set_attn_implementation("eager")
    theirs.set_attn_implementation("eager")
    given, draft = row(inputs(family, cls, "none")), worse(ours, 0.05)
    shown = {"return_dict_in_generate": True, "output_scores": True, "output_hidden_states": True, "output_attentions": True}
    mine, other = written(ours, given, **shown, assistant_model=draft), written(theirs, given, **shown)
    assert torch.equal(mine.sequences, other.sequences)
    names = [name for name in other if "hidden_states" in name or "attentions" in name or name == "scores"]
    assert len(names) == (6 if ours.config.is_encoder_decoder else 3)
    for name in names:
        for one, two in zip(mine[name], other[name], strict=True):
            for a, b in zip(one, two, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_streams(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given, draft = row(inputs(family, cls, "none")), worse(ours, 0.05)
    pieces = list(ours.stream(**given, max_new_tokens=NEW, assistant_model=draft, tokenizer=Words()))
    assert [token for piece in pieces for token in piece.ids] == written(ours, given)[0, 9:].tolist()


class Words:
    """A tokenizer whose token ``i`` is a word for the number ``i + shift``, of which it reads those below ``most`` only."""

    all_special_ids: list[int] = []

    def __init__(self, shift: int = 0, most: int = 99) -> None:
        self.shift, self.most = shift, most

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(f"w{(int(index) + self.shift) % 99} " for index in ids)

    def encode(self, text: str, **_: Any) -> list[int]:
        numbers = [int(word[1:]) for word in text.split()]
        return [(number - self.shift) % 99 for number in numbers if number < self.most]


@pytest.mark.parametrize(("family", "cls"), [GPT2, BART])
def test_drafts_of_another_vocabulary_come_as_text(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    ours.generation_config.eos_token_id = ours.generation_config.forced_eos_token_id = None
    draft = worse(ours, 0.0)
    given = row(inputs(family, cls, "none"))
    table = draft.get_input_embeddings().weight
    with torch.no_grad():  # its token i is our token i + 3
        table.copy_(torch.cat([table[3:], table[:3]]))
    if not ours.config.is_encoder_decoder:
        draft.tie_weights()
    tokenizers = {"tokenizer": Words(), "assistant_tokenizer": Words(3)}
    plain = written(ours, given, max_new_tokens=20)
    with Counted(ours) as calls:
        found = written(ours, given, max_new_tokens=20, assistant_model=draft, **tokenizers)
    assert torch.equal(found, plain)
    if not ours.config.is_encoder_decoder:
        assert calls.calls < 10


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_text_that_does_not_come_back_is_not_guessed_at(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    ids = torch.tensor([[2, 30]])
    draft = Draft(ours, Prompt(ids), 3, 0.0)
    assert ForeignDraft(draft, Words(), Words())(ids, 2).shape == (1, 2)
    assert ForeignDraft(draft, Words(), Words(0, 20))(ids, 2).shape == (1, 0)


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_drafts_catch_up_with_any_text(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    draft = Draft(ours, Prompt(torch.tensor([[5, 6]])), 3, 0.0)
    for ids in ([[5, 6]], [[5, 6, 7]], [[5]], [[8]], [[8, 9, 10, 11]], [[5, 9, 10, 11]], [list(range(5, 60))]):
        text = torch.tensor(ids)
        guesses = draft(text, 2)
        assert torch.equal(
            torch.cat([text, guesses], dim=1), written(ours, {"input_ids": text}, max_new_tokens=2, eos_token_id=None)
        )
    assert draft(torch.tensor([list(range(5, 69))]), 9).shape == (1, 1)  # 64 positions
    assert draft(torch.tensor([list(range(5, 70))]), 9).shape == (1, 0)
    assert draft(torch.tensor([[5]]), 0).shape == (1, 0)


@pytest.mark.parametrize(("family", "cls"), ONE)
def test_what_cannot_be_assisted_is_told(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given = inputs(family, cls, "none")
    with pytest.raises(InputError, match=r"one row, but there are 3.*one by one"):
        written(ours, given, assistant_model=ours)
    with pytest.raises(InputError, match="one row, but there are 3"):
        written(ours, given, prompt_lookup_num_tokens=2)
    smaller = copy.deepcopy(ours)
    smaller.resize_token_embeddings(98)
    with pytest.raises(InputError, match=r"98 tokens, but the model's has 99.*`assistant_tokenizer`"):
        written(ours, row(given), assistant_model=smaller)
    mamba, bart = ready(*MAMBA.values)[0], ready(*BART.values)[0]
    for kind in ({"prompt_lookup_num_tokens": 2}, {"assistant_model": ours}):
        with pytest.raises(InputError, match="the states that MambaForCausalLM keeps"):
            written(mamba, row(given), **kind)
    with pytest.raises(InputError, match="the states that MambaForCausalLM keeps"):
        written(ours, row(given), assistant_model=mamba)
    with pytest.raises(InputError, match="BartForConditionalGeneration has an encoder"):
        written(ours, row(given), assistant_model=bart)
    with pytest.raises(InputError, match="GPT2LMHeadModel has no encoder"):
        written(bart, row(given), assistant_model=ours)
    with pytest.raises(InputError, match="`assistant_model` has no part in beam search"):
        written(ours, row(given), assistant_model=ours, num_beams=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(written(mamba, row(given), prompt_lookup_num_tokens=2, use_cache=False), written(mamba, row(given)))
