"""Logits processors give what the reference's give on random scores, and refuse what cannot be.

Equality with the reference is exact throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as reference

from transept.errors import GenerationError, InputError, InputTypeError, TranseptWarning
from transept.generation import logits_processors, logits_warpers, watermark
from transept.generation.logits_processors import FiniteLogitsCheck, LogitsProcessor, LogitsProcessorList

INF = math.inf
OURS = {
    name: value
    for module in (logits_processors, logits_warpers, watermark)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, LogitsProcessor) and not name.startswith("_")
}
SPEECH = ("Whisper", "AlternatingCodebooks", "Bark", "Dia")


def ids(rows: int = 4, length: int = 12, vocabulary: int = 50, seed: int = 0) -> Tensor:
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def scores(rows: int = 4, vocabulary: int = 50, seed: int = 1, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def same(name: str, *arguments: Any, given: Tensor | None = None, on: Tensor | None = None, **options: Any) -> Tensor:
    """Ours and the reference's of one name on the same input, which neither changes."""
    given, on = ids() if given is None else given, scores() if on is None else on
    before = on.clone()
    mine = OURS[name](*arguments, **options)(given, on)
    torch.testing.assert_close(on, before, rtol=0, atol=0, equal_nan=True)
    theirs = getattr(reference, name)(*arguments, **options)(given, on.clone())
    assert mine.shape == theirs.shape
    assert mine.dtype == theirs.dtype
    assert torch.equal(mine, theirs)
    return mine


def test_every_class_of_the_reference_is_here() -> None:
    theirs = {
        name
        for name, value in vars(reference).items()
        if isinstance(value, type) and issubclass(value, reference.LogitsProcessor) and not name.startswith(SPEECH)
    }
    assert theirs <= OURS.keys()


# --- truncation ------------------------------------------------------------------------------------------------------------

# Wide and narrow, with ties, with banned tokens, with a row of one possible token.
KINDS: dict[str, Callable[[], Tensor]] = {
    "small": scores,
    "large": lambda: scores(3, 20_000),
    "sharp": lambda: scores(3, 20_000, spread=12.0),
    "flat": lambda: scores(2, 5_000, spread=0.01),
    "tied": lambda: scores(3, 8_000).to(torch.bfloat16).float(),
    "few levels": lambda: scores(2, 4_000).round(),
    "banned": lambda: scores(3, 9_000).masked_fill(scores(3, 9_000, seed=2) < 2, -INF),
    "one left": lambda: torch.full((2, 300), -INF).index_fill(1, torch.tensor([7]), 1.5),
    "half": lambda: scores(2, 500).to(torch.bfloat16),
}
WARPERS: list[tuple[str, dict[str, Any]]] = [
    ("TemperatureLogitsWarper", {"temperature": 0.7}),
    ("TemperatureLogitsWarper", {"temperature": 1.9}),
    ("TopKLogitsWarper", {"top_k": 1}),
    ("TopKLogitsWarper", {"top_k": 50}),
    ("TopKLogitsWarper", {"top_k": 3, "min_tokens_to_keep": 5, "filter_value": -9.0}),
    ("TopKLogitsWarper", {"top_k": 10**6}),
    *(("TopPLogitsWarper", {"top_p": p}) for p in (0.0, 0.05, 0.3, 0.8, 0.9, 0.95, 0.999, 1.0)),
    ("TopPLogitsWarper", {"top_p": 0.5, "min_tokens_to_keep": 20, "filter_value": -7.0}),
    ("TopHLogitsWarper", {"top_h": 0.4}),
    ("TopHLogitsWarper", {"top_h": 1.0, "filter_value": -3.0}),
    ("MinPLogitsWarper", {"min_p": 0.0}),
    ("MinPLogitsWarper", {"min_p": 0.1}),
    ("MinPLogitsWarper", {"min_p": 1.0, "min_tokens_to_keep": 4}),
    ("TypicalLogitsWarper", {"mass": 0.2}),
    ("TypicalLogitsWarper", {"mass": 0.9, "min_tokens_to_keep": 3}),
    ("EpsilonLogitsWarper", {"epsilon": 0.0003}),
    ("EpsilonLogitsWarper", {"epsilon": 0.05, "min_tokens_to_keep": 3}),
    ("EtaLogitsWarper", {"epsilon": 0.0003}),
    ("EtaLogitsWarper", {"epsilon": 0.2, "min_tokens_to_keep": 2}),
]


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "options"), WARPERS)
def test_warpers_keep_the_same_tokens(name: str, options: dict[str, Any], kind: str) -> None:
    on = KINDS[kind]()
    same(name, on=on, given=ids(on.shape[0]), **options)


@pytest.mark.reference
def test_nucleus_by_likely_tokens_is_the_whole_sorts() -> None:
    """The short way is taken for most rows, and gives the same tokens over many distributions."""
    short = 0
    for seed in range(60):
        on = torch.cat([scores(1, 4_000, seed=seed, spread=4.0 + seed % 5), scores(1, 4_000, seed=seed + 100, spread=6.0)])
        warper = logits_warpers.TopPLogitsWarper(0.1 + 0.85 * (seed % 7) / 6)
        likely = warper._count_likely(on)
        if likely is not None:
            short += 2 - int(warper._among_likely(on, *likely)[1].sum())
        assert torch.equal(warper(ids(2), on), reference.TopPLogitsWarper(warper.top_p)(ids(2), on))
    assert short > 60


# --- what came before ------------------------------------------------------------------------------------------------------


@pytest.mark.reference
@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
@pytest.mark.parametrize("ignored", [None, 5, torch.tensor([0, 3, 12, 7]), torch.zeros(4, dtype=torch.long)])
def test_repetition_penalty(penalty: float, ignored: Any) -> None:
    same("RepetitionPenaltyLogitsProcessor", penalty, prompt_ignore_length=ignored)


@pytest.mark.reference
def test_repetition_penalty_passes_over_ids_beyond_the_vocabulary() -> None:
    same("RepetitionPenaltyLogitsProcessor", 1.5, given=ids(vocabulary=90))


@pytest.mark.reference
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_encoder_repetition_penalty(rows: int) -> None:
    same("EncoderRepetitionPenaltyLogitsProcessor", 1.7, ids(rows, 9, seed=4))


@pytest.mark.reference
@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 13])
@pytest.mark.parametrize("vocabulary", [3, 50])
def test_no_ngram_twice(size: int, vocabulary: int) -> None:
    found = same("NoRepeatNGramLogitsProcessor", size, given=ids(4, 12, vocabulary), on=scores(4, 50))
    assert size > 2 or vocabulary > 3 or found.isinf().any()


@pytest.mark.reference
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("length", [1, 2, 12])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_no_ngram_of_the_encoder(size: int, length: int, rows: int) -> None:
    source = ids(rows, 7, 3, seed=5)
    same("EncoderNoRepeatNGramLogitsProcessor", size, source, given=ids(4, length, 3))
    same("EncoderNoRepeatNGramLogitsProcessor", size, source[0], given=ids(4, length, 3))


BIASES: list[Any] = [
    {(3,): 2.0, (4,): -INF},
    {(3,): 2.0, (1, 2): 5.0, (2, 2): -INF, (0, 1, 2): -1.0, (1, 1, 2): 7.5},
    [[[3], 2.0], [[1, 2], -4.0], [[0] * 20, 1.0]],
]


@pytest.mark.reference
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sequence_bias(bias: Any, dtype: torch.dtype) -> None:
    same("SequenceBiasLogitsProcessor", bias, given=ids(4, 12, 3), on=scores(4).to(dtype))


@pytest.mark.reference
@pytest.mark.parametrize("eos", [None, 7, [7, 8], torch.tensor([7])])
def test_bad_words(eos: Any) -> None:
    same("NoBadWordsLogitsProcessor", [[7], [9], [1, 2], [2, 0, 1], [1, 1]], eos, given=ids(4, 12, 3))


def test_groups_of_beams_keep_from_each_others_tokens() -> None:
    prompts, beams, groups, vocabulary, penalty = 3, 6, 3, 11, 0.5
    chosen = torch.randint(0, vocabulary, (prompts * beams,))
    processor = logits_warpers.HammingDiversityLogitsProcessor(penalty, beams, groups)
    for group in range(groups):
        on = scores(prompts * beams // groups, vocabulary, seed=group)
        expected = on.clone()
        for row in range(on.shape[0]):
            prompt = row // (beams // groups)
            for token in chosen[prompt * beams : prompt * beams + group * 2].tolist():
                expected[row, token] -= penalty
        found = LogitsProcessorList([processor])(ids(6), on, current_tokens=chosen, beam_group_idx=group)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)  # one product in place of several differences


# --- lengths, forced and banned tokens ---------------------------------------------------------------------------------------


@pytest.mark.reference
@pytest.mark.parametrize("least", [0, 11, 12, 13, 40])
@pytest.mark.parametrize("eos", [4, [4, 9], [4, 90], torch.tensor([2])])
def test_lengths(least: int, eos: Any) -> None:
    same("MinLengthLogitsProcessor", least, eos)
    same("MinNewTokensLengthLogitsProcessor", 5, least - min(least, 5), eos)


@pytest.mark.reference
@pytest.mark.parametrize("length", [1, 2, 12])
def test_forced_tokens(length: int) -> None:
    same("ForcedBOSTokenLogitsProcessor", 3, given=ids(length=length))
    same("ForcedEOSTokenLogitsProcessor", 13, [3, 4], given=ids(length=length))
    same("ForcedEOSTokenLogitsProcessor", 2, 3, given=ids(length=length))


@pytest.mark.reference
def test_banned_tokens() -> None:
    same("SuppressTokensLogitsProcessor", [1, 2, 70])
    same("SuppressTokensAtBeginLogitsProcessor", [1, 2], 12)
    same("SuppressTokensAtBeginLogitsProcessor", [1, 2], 11)


@pytest.mark.reference
@pytest.mark.parametrize("start", [0, 5, 7, 8])
def test_exponential_decay(start: int) -> None:
    on = scores()
    on[0, 3] = -INF
    same("ExponentialDecayLengthPenalty", (start, 1.2), [3, 4], 5, on=on)


@pytest.mark.reference
def test_normalization_and_replacement() -> None:
    on = scores()
    on[0, :3] = torch.tensor([math.nan, INF, -INF])
    same("LogitNormalization")
    for dtype in (torch.float32, torch.float16):
        same("InfNanRemoveLogitsProcessor", on=on.to(dtype))


@pytest.mark.reference
@pytest.mark.parametrize("beams", [1, 2])
def test_allowed_prefixes(beams: int) -> None:
    def allowed(prompt: int, so_far: Tensor) -> list[int]:
        return [prompt, int(so_far[-1]), 5]

    on = scores()
    on[0] = -INF  # banned before, in one beam of two or in the only one
    same("PrefixConstrainedLogitsProcessor", allowed, beams, on=on)


# --- guidance --------------------------------------------------------------------------------------------------------------


@pytest.mark.reference
def test_guidance_in_one_batch() -> None:
    same("ClassifierFreeGuidanceLogitsProcessor", 3.0, on=scores(8))


class Toy:
    """A model of few words: logits from the ids, with a cache that is the sum of those seen."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = []

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool, past_key_values: Any) -> Any:
        self.calls.append((tuple(input_ids.shape), tuple(attention_mask.shape), past_key_values is not None))
        state = input_ids.sum(1, keepdim=True) + (0 if past_key_values is None else past_key_values)
        found: Any = type("Output", (dict,), {"__getattr__": dict.__getitem__})()
        logits = torch.sin(state[:, :, None] + torch.arange(50.0)).expand(-1, input_ids.shape[1], -1)
        found.update(logits=logits, past_key_values=state if use_cache else None)
        return found


@pytest.mark.reference
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("scale", [1.5, 0.3, 1.0])
def test_guidance_by_another_prompt(use_cache: bool, given: bool, scale: float) -> None:
    other = {"unconditional_ids": ids(4, 3, seed=8), "unconditional_attention_mask": torch.ones(4, 3)} if given else {}
    models = Toy(), Toy()
    mine = logits_warpers.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, models[0], use_cache=use_cache, **other)
    theirs = reference.UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, models[1], use_cache=use_cache, **other)
    for step in range(3):
        on, so_far = scores(seed=step), ids(length=12 + step, seed=9)
        assert torch.equal(mine(so_far, on), theirs(so_far, on))
    assert models[0].calls == models[1].calls


# --- lists -----------------------------------------------------------------------------------------------------------------


class Shift(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + 1


class Scale(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor, factor: float, offset: float = 0.0) -> Tensor:  # type: ignore[override]
        return scores * factor + offset


def test_a_list_runs_in_order_and_passes_what_is_asked_for() -> None:
    chain = LogitsProcessorList(
        [Shift(), Scale(), lambda input_ids, scores: scores - 3, lambda i, s, **more: s + more["factor"]]
    )
    expected = (scores() + 1) * 2 - 3 + 2
    assert torch.equal(chain(ids(), scores(), factor=2), expected)
    assert torch.equal(chain(ids(), scores(), factor=2, unused=1), expected)
    with pytest.raises(InputError, match="Scale needs `factor`"):
        chain(ids(), scores())
    with pytest.raises(NotImplementedError):
        LogitsProcessor()(ids(), scores())


def test_the_callers_own_take_the_place_of_the_same_class() -> None:
    made, own, other = Shift(), Shift(), Scale()
    with pytest.warns(TranseptWarning, match="Shift passed in replaces"):
        chain = LogitsProcessorList([other, made]).with_custom([own, max])
    assert [*chain] == [other, own, max]
    assert [*LogitsProcessorList([made]).with_custom(None)] == [made]
    with pytest.raises(InputTypeError, match="cannot be called"):
        LogitsProcessorList([made]).with_custom([3])  # type: ignore[list-item]


class Returns:
    """A processor of the caller's own."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        self.change = change

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Any:
        return self.change(scores)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("change", "returned"),
    [
        (lambda x: None, "returned None"),
        (lambda x: x.numpy(), r"returned ndarray of float32 and the shape \(4, 50\)"),
        (lambda x: x.tolist(), "returned list"),
        (lambda x: 0.0, "returned float"),
        (lambda x: x[:1], r"returned Tensor of torch.float32 and the shape \(1, 50\)"),
        (lambda x: x[0], r"and the shape \(50,\)"),
        (lambda x: x[None], r"and the shape \(1, 4, 50\)"),
        (lambda x: x[:, :7], r"and the shape \(4, 7\)"),
        (lambda x: x.long(), "returned Tensor of torch.int64"),
        (lambda x: x > 0, "returned Tensor of torch.bool"),
        (lambda x: x.to_sparse(), "torch.sparse_coo"),
        (lambda x: torch.nested.nested_tensor([*x]), "returned a nested tensor"),
        (lambda x: x.to("meta"), "returned Tensor"),
    ],
)
def test_what_a_processor_returns_is_checked(change: Callable[[Tensor], Any], returned: str) -> None:
    chain = LogitsProcessorList([Returns(torch.clone), Returns(change), Returns(torch.clone)])
    with pytest.raises(InputTypeError, match=rf"processor Returns must return .* \(4, 50\) \(rows, vocabulary\).*{returned}"):
        chain(ids(), scores())


def test_processors_of_other_forms() -> None:
    def greedy(ids: Tensor) -> Tensor:
        return ids

    with pytest.raises(InputTypeError, match=r"The logits processor greedy takes .*, but is called with ids and scores"):
        LogitsProcessorList([greedy])(ids(), scores())  # type: ignore[list-item]
    chain = LogitsProcessorList([torch.maximum, lambda ids, scores: scores.half()])  # no signature; another type of floats
    assert chain(scores(), scores()).dtype is torch.float16


@pytest.mark.parametrize("left", [[0, 2, 3], [3, 1]])
def test_rows_that_leave_the_batch_change_nothing_for_the_others(left: list[int]) -> None:
    rows, source = torch.tensor(left), ids(4, 7, 5, seed=3)

    def make() -> LogitsProcessorList:
        return LogitsProcessorList(
            [
                logits_warpers.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, Toy(), source, use_cache=False),
                logits_warpers.RepetitionPenaltyLogitsProcessor(1.4, torch.tensor([0, 2, 5, 1])),
                logits_warpers.EncoderRepetitionPenaltyLogitsProcessor(1.2, source),
                logits_processors.EncoderNoRepeatNGramLogitsProcessor(2, source),
                logits_processors.PrefixConstrainedLogitsProcessor(lambda prompt, _: range(prompt, 40), 1),
                FiniteLogitsCheck(12),
            ]
        )

    whole, part = make(), make()
    assert torch.equal(whole(ids(), scores()), part(ids(), scores()))
    part.select(rows)
    longer = ids(length=13, seed=6)
    assert torch.equal(whole(longer, scores(seed=7))[rows], part(longer[rows], scores(seed=7)[rows]))
    broken = scores().masked_fill(torch.tensor([[False], [False], [False], [True]]), math.nan)
    with pytest.raises(GenerationError, match="row 3"):
        part(longer[rows], broken[rows])


# --- numbers that are none -------------------------------------------------------------------------------------------------


def spoilt(row: int, value: float | Tensor) -> Tensor:
    on = scores()
    on[row] = value
    return on


def test_scores_that_are_no_numbers_are_an_error_that_names_the_step() -> None:
    check = FiniteLogitsCheck(10)
    on = scores()
    on[1, 3:] = -INF
    assert check(ids(), on) is on
    one = scores()
    one[2, 5] = math.nan
    with pytest.raises(GenerationError, match="new token 3 of row 2 hold NaN.*remove_invalid_values"):
        check(ids(), one)
    one[2, 5] = INF
    with pytest.raises(GenerationError, match="new token 3 of row 2 hold infinity"):
        check(ids(), one)
    with pytest.raises(GenerationError, match="Every token is banned as new token 3 of row 3.*Loosen"):
        check(ids(), spoilt(3, -INF))
    assert FiniteLogitsCheck(10, num_beams=2)(ids(), spoilt(3, -INF)).shape == (4, 50)
    both = spoilt(3, -INF)
    both[2] = -INF
    with pytest.raises(GenerationError, match="row 1"):
        FiniteLogitsCheck(10, num_beams=2)(ids(), both)


@pytest.mark.parametrize("name", [name for name, _ in WARPERS])
def test_no_warper_hides_what_is_no_number(name: str) -> None:
    options = next(options for other, options in WARPERS if other == name)
    on = scores()
    on[1, 4] = math.nan
    with pytest.raises(GenerationError, match="row 1 hold NaN"):
        LogitsProcessorList([OURS[name](**options), FiniteLogitsCheck(12)])(ids(), on)


# --- errors ----------------------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("TemperatureLogitsWarper", (0.0,), r"`temperature` must be a number above 0, but is '0.0'. .*do_sample=False"),
    ("TemperatureLogitsWarper", (-1,), "`temperature`"),
    ("TemperatureLogitsWarper", ("hot",), "`temperature`"),
    ("TopKLogitsWarper", (0,), "`top_k` must be a whole number at least 1"),
    ("TopKLogitsWarper", (2.5,), "`top_k`"),
    ("TopPLogitsWarper", (1.2,), r"`top_p` must be a number in \[0, 1\]"),
    ("TopPLogitsWarper", (-0.1,), "`top_p`"),
    ("TopPLogitsWarper", (0.5, "x"), "`filter_value`"),
    ("TopPLogitsWarper", (0.5, -INF, 0), "`min_tokens_to_keep` must be a whole number at least 1"),
    ("TopHLogitsWarper", (0.0,), r"`top_h` must be a number in \(0, 1\]"),
    ("MinPLogitsWarper", (1.1,), "`min_p`"),
    ("TypicalLogitsWarper", (1.0,), r"`typical_p` must be a number in \(0, 1\)"),
    ("EpsilonLogitsWarper", (0.0,), "`epsilon_cutoff`"),
    ("EtaLogitsWarper", (1.0,), "`eta_cutoff`"),
    ("RepetitionPenaltyLogitsProcessor", (0.0,), "`repetition_penalty` must be a number above 0.*1.0"),
    ("RepetitionPenaltyLogitsProcessor", (1.5, -1), "`prompt_ignore_length`"),
    ("RepetitionPenaltyLogitsProcessor", (1.5, torch.ones(2, 2)), "one dimension"),
    ("EncoderRepetitionPenaltyLogitsProcessor", (-1.0, ids()), "`encoder_repetition_penalty`"),
    ("NoRepeatNGramLogitsProcessor", (0,), "`ngram_size`"),
    ("EncoderNoRepeatNGramLogitsProcessor", (-2, ids()), "`encoder_ngram_size`"),
    ("SequenceBiasLogitsProcessor", ({},), "`sequence_bias` must be of the form"),
    ("SequenceBiasLogitsProcessor", ({(): 1.0},), "non-empty"),
    ("SequenceBiasLogitsProcessor", ({(1, -2): 1.0},), "from 0 on"),
    ("SequenceBiasLogitsProcessor", ({(1,): math.nan},), "numbers as biases"),
    ("SequenceBiasLogitsProcessor", ([[[1], "much"]],), "numbers as biases"),
    ("SequenceBiasLogitsProcessor", ([[[1]]],), "of the form"),
    ("NoBadWordsLogitsProcessor", ([],), "`bad_words_ids` must be a non-empty list"),
    ("NoBadWordsLogitsProcessor", ([1, 2],), "non-empty lists"),
    ("NoBadWordsLogitsProcessor", ([["x"]],), "token id"),
    ("NoBadWordsLogitsProcessor", ([[7]], 7), "only the end of the sequence.*min_new_tokens"),
    ("MinLengthLogitsProcessor", (-1, 2), "`min_length`"),
    ("MinLengthLogitsProcessor", (3, -2), "`eos_token_id`"),
    ("MinNewTokensLengthLogitsProcessor", (-1, 3, 2), "`prompt_length_to_skip`"),
    ("MinNewTokensLengthLogitsProcessor", (1, 3.5, 2), "`min_new_tokens`"),
    ("ForcedBOSTokenLogitsProcessor", (-1,), "`forced_bos_token_id`"),
    ("ForcedEOSTokenLogitsProcessor", (9, [1.5]), "`forced_eos_token_id`"),
    ("SuppressTokensLogitsProcessor", (["x"],), "`suppress_tokens`"),
    ("ExponentialDecayLengthPenalty", ((1.5, 1.1), 2, 0), "`exponential_decay_length_penalty`"),
    ("PrefixConstrainedLogitsProcessor", (max, 0), "`num_beams`"),
    ("HammingDiversityLogitsProcessor", (0.0, 4, 2), "`diversity_penalty`"),
    ("HammingDiversityLogitsProcessor", (0.5, 1, 1), "`num_beams`"),
    ("HammingDiversityLogitsProcessor", (0.5, 4, 3), r"`num_beam_groups` \(3\) must divide"),
    ("ClassifierFreeGuidanceLogitsProcessor", (1.0,), "`guidance_scale` must be a number above 1"),
    ("UnbatchedClassifierFreeGuidanceLogitsProcessor", (math.nan, max), "`guidance_scale`"),
]


@pytest.mark.parametrize(("name", "arguments", "said"), WRONG)
def test_what_cannot_be_is_an_error(name: str, arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        OURS[name](*arguments)


def test_inputs_that_do_not_fit_are_errors() -> None:
    with pytest.raises(InputError, match="two rows of scores"):
        logits_warpers.ClassifierFreeGuidanceLogitsProcessor(2.0)(ids(), scores())
    with pytest.raises(InputError, match=r"beyond the 50 of the model: \[\(1, 77\)\]"):
        logits_processors.SequenceBiasLogitsProcessor({(1, 77): 1.0})(ids(), scores())
    with pytest.raises(InputError, match="`encoder_input_ids` has 3 rows"):
        logits_warpers.EncoderRepetitionPenaltyLogitsProcessor(1.5, ids(3))(ids(), scores())
    with pytest.raises(InputError, match="allows no token, for prompt 0.*at least one"):
        logits_processors.PrefixConstrainedLogitsProcessor(lambda prompt, row: [], 1)(ids(), scores())
    with pytest.raises(InputError, match="allows the token 50, but the model has 50, for prompt 1"):
        logits_processors.PrefixConstrainedLogitsProcessor(lambda prompt, row: [49 + prompt], 2)(ids(), scores())
