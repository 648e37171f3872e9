"""What models write equals what the reference's write, token for token, for every family that can write."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.families import Family
from tests.models.harness import TASKS, USED, batch, pair
from tests.thorough import crossed, in_turn
from transept.core.model import Model
from transept.errors import InputError
from transept.layers.caches.cache import DynamicCache

pytestmark = pytest.mark.reference

# Models that hear or see have their own tests: what they read is no ids alone.
WRITERS = [case for case in TASKS if hasattr(case.values[1], "generate") and case.values[0].modality in ("text", "seq2seq")]
# The reference writes with RoBERTa and its kin from position 0 on, where they were trained from behind the padding id.
BEHIND_PADDING = ("roberta", "xlm_roberta", "roberta_prelayernorm", "xlm_roberta_xl", "xmod")
COUNTED = [case for case in WRITERS if case.values[0].model_type in BEHIND_PADDING]
# Of these the reference reads padding as if it were text.
READING_PADDING = ("reformer", "xlnet", "recurrent_gemma", "rwkv")
SEEING_PADDING = ("ProphetNetForCausalLM",)  # and of these classes where there is a cache
# With hashed attention, the reference lets all rows read what it keeps of the first; it bounds no steps of decoding.
ALONE: dict[str, Any] = {"reformer": {"attn_layers": ["local", "local"]}, "zamba2": {"time_step_min": 1e-6}}
COMPARED = [case for case in WRITERS if case not in COUNTED]
# Of these the reference keeps states on the model, and does not pick those of beams.
SEARCHED = [case for case in COMPARED if case.values[0].model_type != "recurrent_gemma"]
DECODERS = [case for case in WRITERS if case.values[0].modality != "seq2seq"]
NEW = 12
GREEDY: dict[str, dict[str, Any]] = {
    "plain": {},
    "no cache": {"use_cache": False},
    "repetition": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    "banned": {"bad_words_ids": [[7], [8, 9]], "suppress_tokens": [11, 12], "forced_eos_token_id": 2},
    "chunks": {"prefill_chunk_size": 4},
}
BEAMS: dict[str, dict[str, Any]] = {
    "two": {"num_beams": 2},
    "four": {"num_beams": 4, "num_return_sequences": 3, "early_stopping": True, "length_penalty": 2.0},
    "never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.6, "no_repeat_ngram_size": 2},
    "sampled": {"num_beams": 3, "do_sample": True, "temperature": 1.3, "top_k": 20},
}
SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {"top_k": 0},
    "narrow": {"temperature": 0.7, "top_k": 10, "top_p": 0.9},
    "several": {"num_return_sequences": 3, "min_p": 0.05},
}


def inputs(family: Family, cls: type[Model], pad: str = "left") -> dict[str, Tensor]:
    """Prompts of three lengths."""
    decoder = family.modality != "seq2seq" or cls.__name__.endswith("CausalLM")
    pad = "none" if family.model_type in READING_PADDING or cls.__name__ in SEEING_PADDING else pad
    found = batch(family, cls, pad=pad if decoder else "right")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def written(model: Any, given: dict[str, Any], **settings: Any) -> Any:
    """What a model writes, with the same seed each time."""
    torch.manual_seed(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(**given, **({"max_new_tokens": NEW, "do_sample": False} | settings))


def ready(family: Family, cls: type[Model]) -> tuple[Any, Any]:
    """Ours and theirs, with an id for what ends a sequence that is met now and then."""
    ours, theirs = pair(family, cls, **ALONE.get(family.model_type, {}))
    both: tuple[Any, ...] = (ours, theirs)
    for model in both:
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = [2, 50]
        if family.modality == "seq2seq":
            # Where positions count real tokens, padding that begins a text would shift what is read in one pass.
            model.generation_config.decoder_start_token_id = 3 if family.model_type in ("fsmt", "m2m_100") else 1
        if family.model_type == "fsmt":
            model.generation_config.use_cache = True  # without one, the reference's tokens see later ones
    return ours, theirs


@pytest.mark.parametrize(("family", "cls", "kind"), crossed(COMPARED, GREEDY, 80, whole=USED))
def test_greedy_equals_reference(family: Family, cls: type[Model], kind: str) -> None:
    ours, theirs = ready(family, cls)
    # The reference's chunks give some families other tokens than it gives without them, and others an error.
    asked = {name: value for name, value in GREEDY[kind].items() if name != "prefill_chunk_size"}
    if family.model_type == "xlnet" and kind == "no cache":  # the reference keeps memories unless they are named
        asked["use_mems"] = False
    if family.model_type == "fsmt":  # see `ready`
        asked.pop("use_cache", None)
    for pad in ("left", "none"):
        given = inputs(family, cls, pad)
        assert torch.equal(written(ours, given, **GREEDY[kind]), written(theirs, given, **asked))


@pytest.mark.parametrize(("family", "cls", "kind"), crossed(COMPARED, SAMPLING, 60, whole=USED))
def test_sampling_equals_reference(family: Family, cls: type[Model], kind: str) -> None:
    ours, theirs = ready(family, cls)
    settings, given = {"do_sample": True} | SAMPLING[kind], inputs(family, cls)
    assert torch.equal(written(ours, given, **settings), written(theirs, given, **settings))


@pytest.mark.parametrize(("family", "cls", "kind"), crossed(SEARCHED, BEAMS, 60, whole=USED))
def test_beams_equal_reference(family: Family, cls: type[Model], kind: str) -> None:
    ours, theirs = ready(family, cls)
    settings = BEAMS[kind] | {"return_dict_in_generate": True, "output_scores": True}
    given = inputs(family, cls)
    mine, other = written(ours, given, **settings), written(theirs, given, **settings)
    assert torch.equal(mine.sequences, other.sequences)
    assert torch.equal(mine.beam_indices, other.beam_indices)
    # Sums of some twelve float32 log-probabilities.
    torch.testing.assert_close(mine.sequences_scores, other.sequences_scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("family", "cls"), in_turn(DECODERS, 25, whole=USED))
def test_embeddings_and_caches_go_on_like_ids(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given = inputs(family, cls, "none")
    ids = given["input_ids"]
    whole = written(ours, given)
    embeds = ours.get_input_embeddings()(ids)
    cached = {"use_cache": True}
    assert torch.equal(written(ours, {"inputs_embeds": embeds}, **cached), whole[:, ids.shape[1] :])
    both = written(ours, {"input_ids": ids, "inputs_embeds": embeds}, **cached)
    assert torch.equal(both, whole)
    first = written(ours, given, max_new_tokens=3, return_dict_in_generate=True, **cached)
    # Without a mask what looks like padding would be taken for it, and a model may write that.
    go_on = {"input_ids": first.sequences, "attention_mask": torch.ones_like(first.sequences)}
    more = written(ours, go_on | {"past_key_values": first.past_key_values}, max_new_tokens=NEW - 3, **cached)
    ended = torch.isin(first.sequences[:, ids.shape[1] :], torch.tensor([2, 50])).any(dim=1)
    assert not bool(ended.all())
    width = min(more.shape[1], whole.shape[1])
    assert torch.equal(more[~ended, :width], whole[~ended, :width])


@pytest.mark.parametrize(("family", "cls"), in_turn(WRITERS, 25, whole=USED, start=1))
def test_rows_alone_equal_rows_together(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    given = inputs(family, cls, "none")
    together = written(ours, given, seed=[3, 4, 5], do_sample=True)
    for row in range(together.shape[0]):
        one = written(ours, {name: value[row : row + 1] for name, value in given.items()}, seed=[3 + row], do_sample=True)
        assert torch.equal(one[0], together[row, : one.shape[1]])


@pytest.mark.parametrize(("family", "cls"), COUNTED)
def test_counted_positions_go_on_where_the_prompt_ends(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    pad = ours.config.pad_token_id
    ours.generation_config.eos_token_id = None
    ours.generation_config.pad_token_id = pad
    given = inputs(family, cls, "left")
    found = written(ours, given)
    for row in range(3):
        ids = given["input_ids"][row][given["attention_mask"][row] == 1][None]
        for _ in range(NEW):
            counted = torch.arange(ids.shape[1])[None] + pad + 1
            logits = ours(ids, attention_mask=torch.ones_like(ids), position_ids=counted).logits
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(found[row, -NEW:], ids[0, -NEW:])


@pytest.mark.parametrize(("family", "cls"), in_turn(COMPARED, 25, whole=USED, start=2))
def test_outputs_equal_reference(family: Family, cls: type[Model]) -> None:
    ours, theirs = ready(family, cls)
    shown = {"output_scores": True, "output_logits": True, "output_hidden_states": True, "return_dict_in_generate": True}
    given = inputs(family, cls, "none")
    names = {"past_key_values", "past_buckets_states", "mems", "cache_params", "state"}
    caches = names & inspect.signature(type(theirs).forward).parameters.keys()
    cached = {} if caches else {"use_cache": False}
    mine, other = written(ours, given, **shown, **cached), written(theirs, given, **shown)
    assert torch.equal(mine.sequences, other.sequences)
    for name in ("scores", "logits"):
        assert len(mine[name]) == len(other[name])
        for one, two in zip(mine[name], other[name], strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    states = "decoder_hidden_states" if ours.config.is_encoder_decoder else "hidden_states"
    for one, two in zip(mine[states], other[states], strict=True):
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("family", "cls"), DECODERS[:1])
def test_what_cannot_be_written_is_told(family: Family, cls: type[Model]) -> None:
    ours, _ = ready(family, cls)
    ids = inputs(family, cls, "none")["input_ids"]
    for given, told in (
        ({"inputs": "Hello"}, "Turn text into ids"),
        ({"inputs": ids.float()}, "must be (batch, positions) of integers"),
        ({"inputs": ids[:, :0]}, "nothing to go on from"),
        ({"inputs": ids, "input_ids": ids}, "passed twice"),
        ({"inputs": ids, "attention_mask": torch.ones(3, 4)}, "as the prompt is"),
        ({"inputs": ids, "seed": [1]}, "1 seeds for 3 rows"),
        ({"inputs": ids, "max_length": 4}, "no room to write"),
        ({"inputs": ids, "past_key_values": "cache"}, "must be a transept Cache"),
    ):
        with pytest.raises(InputError) as error:
            ours.generate(**given)
        assert told in str(error.value)
    cache = DynamicCache()
    ours(ids, past_key_values=cache)
    with pytest.raises(InputError, match="nothing to go on from"):
        ours.generate(ids, past_key_values=cache)
