"""What XLNet adds to the derived suite: two streams, memories, orders, backward texts, writing, beams of answers, old files."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from transept.errors import ConfigError, InputError, InputTypeError
from transept.layers.caches.cache import DynamicCache
from transept.models.xlnet import (
    XLNetConfig,
    XLNetForMultipleChoice,
    XLNetForQuestionAnswering,
    XLNetLMHeadModel,
    XLNetModel,
)

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, compare, error, gradients, pair

FAMILY = next(family for family in FAMILIES if family.model_type == "xlnet")
ROWS, LENGTH = 4, 7
SEEN = {"output_hidden_states": True, "output_attentions": True}


def tiny(cls: Any = XLNetModel, **more: Any) -> Any:
    torch.manual_seed(0)
    return cls(XLNetConfig(**FAMILY.tiny | more)).eval()


def ids(rows: int = ROWS, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(6, 99, (rows, length), generator=torch.Generator().manual_seed(seed))


def permuted(rows: int = ROWS, length: int = LENGTH, targets: int = 3) -> dict[str, Tensor]:
    """A random order for each row, and targets at the last places of the order; one row has a target fewer."""
    generator = torch.Generator().manual_seed(4)
    order = torch.rand(rows, length, generator=generator).argsort(dim=1)
    rank = order.argsort(dim=1)
    mapping = torch.nn.functional.one_hot(order[:, -targets:], length).float()
    mapping[rows // 2, 0] = 0
    return {"perm_mask": (rank[:, :, None] <= rank[:, None, :]).float(), "target_mapping": mapping}


def run(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.reference
@pytest.mark.parametrize("more", [{}, {"clamp_len": 2}, {"mem_len": 3}, {"mem_len": 0, "reuse_len": 4}, {"bi_data": True}])
def test_streams_and_memories_equal_the_reference(more: dict[str, Any]) -> None:
    ours, theirs = pair(FAMILY, XLNetLMHeadModel, attention="eager", **more)
    first = {"input_ids": ids(), "token_type_ids": (torch.arange(LENGTH) > 3).long().repeat(ROWS, 1)}
    first["attention_mask"] = (torch.arange(LENGTH) >= torch.tensor([[0], [1], [0], [3]])).long()
    mine, other = run(ours, **first, **SEEN), run(theirs, **first, **SEEN)
    compare(mine, other, SINGLE)
    second = permuted() | {"input_ids": ids(seed=1), "token_type_ids": first["token_type_ids"].flip(1)}
    second |= {"input_mask": 1 - first["attention_mask"], "labels": ids(length=3, seed=2)}
    compare(run(ours, **second, **SEEN), run(theirs, **second, **SEEN), SINGLE)
    found, expected = (run(model, **second, **SEEN, mems=out.mems) for model, out in ((ours, mine), (theirs, other)))
    compare(found, expected, SINGLE)
    assert len(found.hidden_states) == 6
    assert [len(streams) for streams in found.attentions] == [2, 2]
    # Kernels that show no weights give the same.
    ours.set_attn_implementation("sdpa")
    compare(run(ours, **second, mems=mine.mems), run(theirs, **second, mems=other.mems), SINGLE)


@pytest.mark.reference
@pytest.mark.parametrize("same", [False, True])
def test_looking_back_only_equals_the_reference(same: bool) -> None:
    """With a mask, the reference takes one row at a time."""
    ours, theirs = pair(FAMILY, XLNetModel, attention="eager", attn_type="uni", same_length=same, mem_len=5)
    mine, other = run(ours, input_ids=ids(), **SEEN), run(theirs, input_ids=ids(), **SEEN)
    compare(mine, other, SINGLE)
    more = {"input_ids": ids(seed=1), **SEEN}
    compare(run(ours, **more, mems=mine.mems), run(theirs, **more, mems=other.mems), SINGLE)
    alone = permuted(1) if same else {"target_mapping": permuted(1)["target_mapping"]}
    alone |= {"input_ids": ids(1), "attention_mask": (torch.arange(LENGTH) > 1).long()[None]}
    compare(run(ours, **alone, **SEEN), run(theirs, **alone, **SEEN), SINGLE)


@pytest.mark.reference
def test_gradients_of_both_streams_equal_the_reference() -> None:
    ours, theirs = pair(FAMILY, XLNetLMHeadModel)
    inputs = permuted() | {"input_ids": ids(), "labels": ids(length=3, seed=2)}
    inputs["token_type_ids"] = (torch.arange(LENGTH) > 3).long().repeat(ROWS, 1)
    mine, other = gradients(ours, ours(**inputs).loss), gradients(theirs, theirs(**inputs).loss)
    for name, gradient in mine.items():
        recipe = ours.checkpoint_names().keys.recipe(name)
        if recipe.stored in other:
            assert error(gradient, recipe.take(other[recipe.stored], [])) <= 1e-4, name
    assert {"transformer.mask_emb", "transformer.layer.0.rel_attn.seg_embed"} <= mine.keys()


@pytest.mark.reference
@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("more", [{}, {"use_mems": True, "seed": 1}, {"use_mems": False}, {"mem_len": 4}, {"mem_len": 1}])
def test_writes_what_the_reference_writes(more: dict[str, Any], beams: int, length: int) -> None:
    more = dict(more)
    inputs = {"inputs": ids(3, length, more.pop("seed", 0)), "max_new_tokens": 12, "num_beams": beams, "do_sample": False}
    inputs |= {"eos_token_id": 37} | ({"use_mems": more.pop("use_mems")} if "use_mems" in more else {})
    ours, theirs = pair(FAMILY, XLNetLMHeadModel, **more)
    assert torch.equal(ours.generate(**inputs), theirs.generate(**inputs))


def test_padding_and_other_rows_change_nothing_of_what_is_written() -> None:
    """The reference reads padding as it reads tokens."""
    model, prompt, settings = tiny(XLNetLMHeadModel), ids(1), {"max_new_tokens": 8, "eos_token_id": None}
    padded = torch.cat([torch.full((1, 3), 5), prompt], dim=1)
    mask = torch.cat([(padded != 5).long(), torch.ones(1, LENGTH + 3, dtype=torch.long)])
    for cached in (True, False):
        alone = model.generate(prompt, **settings, use_cache=cached)
        both = model.generate(torch.cat([padded, ids(1, LENGTH + 3, 1)]), attention_mask=mask, **settings, use_cache=cached)
        assert torch.equal(both[:1, 3:], alone)
        embeds = model.get_input_embeddings()(prompt)
        if cached:  # without memories, what is written behind embeddings has none itself
            assert torch.equal(model.generate(inputs_embeds=embeds, **settings), alone[:, LENGTH:])
        typed = model.generate(prompt, token_type_ids=torch.zeros_like(prompt), **settings, use_cache=cached)
        assert typed.shape == alone.shape
    assert "".join(str(piece.ids) for piece in _stream(model, prompt)) == "".join(f"[{i}]" for i in _written(model, prompt))


def _stream(model: Any, prompt: Tensor) -> Any:
    class Plain:
        def decode(self, tokens: Any, **options: Any) -> str:
            return " ".join(map(str, tokens))

    return model.stream(prompt, tokenizer=Plain(), max_new_tokens=4, eos_token_id=None)


def _written(model: Any, prompt: Tensor) -> list[int]:
    found: list[int] = model.generate(prompt, max_new_tokens=4, eos_token_id=None)[0, LENGTH:].tolist()
    return found


def test_memories_hold_what_is_read() -> None:
    """What sees only what came before is the same in one piece as in several, if nothing is forgotten."""
    model, whole = tiny(attn_type="uni", mem_len=0), ids()
    expected, mems, parts = run(model, input_ids=whole).last_hidden_state, None, []
    mask = torch.ones(ROWS, 0, dtype=torch.long)
    for start, end in ((0, 2), (2, 3), (3, 7)):
        mask = torch.cat([mask, torch.ones(ROWS, end - start, dtype=torch.long)], dim=1)
        out = run(model, input_ids=whole[:, start:end], mems=mems, attention_mask=mask)
        mems = out.mems
        parts.append(out.last_hidden_state)
    assert error(torch.cat(parts, dim=1), expected) <= SINGLE
    assert [tuple(memory.shape) for memory in mems] == [(LENGTH, ROWS, 32)] * 2
    assert run(model, input_ids=whole, use_mems=False).mems is None
    assert run(model.train(), input_ids=whole).mems is None
    # Padding among the memories is hidden by a mask that reaches over them.
    hidden, alone = torch.ones(1, 2 * LENGTH, dtype=torch.long), tiny()
    hidden[:, :3] = 0
    first = run(alone, input_ids=whole[:1], attention_mask=hidden[:, :LENGTH])
    short = run(alone, input_ids=whole[:1, 3:])
    long = run(alone, input_ids=ids(1, seed=1), mems=first.mems, attention_mask=hidden).last_hidden_state
    assert error(long, run(alone, input_ids=ids(1, seed=1), mems=short.mems).last_hidden_state) <= SINGLE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_targets_that_see_nothing_stay_finite(kernel: str, dtype: torch.dtype) -> None:
    model = tiny(attn_implementation=kernel).to(dtype)
    out = run(model, input_ids=ids(), perm_mask=torch.ones(ROWS, LENGTH, LENGTH), target_mapping=permuted()["target_mapping"])
    assert out.last_hidden_state.dtype is dtype
    assert torch.isfinite(out.last_hidden_state).all()


@pytest.mark.reference
def test_beams_of_answers_equal_the_reference() -> None:
    ours, theirs = pair(FAMILY, XLNetForQuestionAnswering, start_n_top=4, end_n_top=3)
    inputs = {"input_ids": ids(), "p_mask": torch.zeros(ROWS, LENGTH)}
    inputs["p_mask"][:, [0, 6]] = 1
    found = run(ours, **inputs)
    compare(found, run(theirs, **inputs), SINGLE)
    assert found.end_top_index.shape == (ROWS, 12)
    chosen = inputs | {"cls_index": torch.tensor([1, 2, 6, 0])}
    compare(run(ours, **chosen), run(theirs, **chosen), SINGLE)
    told = chosen | {"start_positions": torch.tensor([1, 2, 3, 4]), "end_positions": torch.tensor([2, 2, 5, 5])}
    compare(run(ours, **told), run(theirs, **told), SINGLE)
    told["is_impossible"] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    compare(run(ours, **told), run(theirs, **told), SINGLE)
    whole = run(ours, **told)
    assert error(whole.loss, run(ours, **told | {"is_impossible": told["is_impossible"].long()}).loss) == 0
    with pytest.raises(InputError, match=r"`start_n_top` is 4, but there are 3 positions"):
        run(ours, input_ids=ids(length=3))
    with pytest.raises(InputError, match=r"`cls_index` holds \[1, 2, 7, 0\]"):
        run(ours, **inputs, cls_index=torch.tensor([1, 2, 7, 0]))
    with pytest.raises(InputError, match=r"`p_mask` has the shape \(4, 6\)"):
        run(ours, input_ids=ids(), p_mask=torch.zeros(ROWS, 6))
    outside = told | {"start_positions": torch.tensor([99, 99, 99, 99])}
    assert torch.isfinite(run(ours, **told | {"start_positions": torch.tensor([99, 1, 1, 1])}).loss)
    assert int(run(ours, **outside).loss_terms["start"].count) == 0


@pytest.mark.reference
def test_choices_take_the_other_mask() -> None:
    ours, theirs = pair(FAMILY, XLNetForMultipleChoice)
    inputs = batch(FAMILY, XLNetForMultipleChoice)
    given = inputs | {"input_mask": 1 - inputs["attention_mask"]}
    del given["attention_mask"]
    compare(run(ours, **given), run(theirs, **given), SINGLE)
    assert error(run(ours, **given).logits, run(ours, **inputs).logits) == 0


def test_wrong_inputs_are_named() -> None:
    model = tiny()
    with pytest.raises(InputError, match="one of the two"):
        model(ids(), attention_mask=torch.ones(ROWS, LENGTH), input_mask=torch.zeros(ROWS, LENGTH))
    with pytest.raises(InputError, match=r"`perm_mask` has the shape \(4, 7\), but must be \(4, 7, 7\)"):
        model(ids(), perm_mask=torch.ones(ROWS, LENGTH))
    with pytest.raises(InputError, match=r"`target_mapping` has the shape \(4, 2, 6\), but must be \(4, targets, 7\)"):
        model(ids(), target_mapping=torch.ones(ROWS, 2, 6))
    with pytest.raises(InputError, match="Pass `perm_mask`"):
        model(ids(), attention_mask=torch.ones(ROWS, LENGTH, LENGTH))
    mems = model(ids()).mems
    for wrong in (mems[:1], [mems[0], mems[1][:3]], [memory[0] for memory in mems]):
        with pytest.raises(InputError, match="`mems` has the shapes"):
            model(ids(), mems=wrong)
    with pytest.raises(InputError, match="`mems` are of 2 rows"):
        model(ids(), mems=[memory[:, :2] for memory in mems])
    for kind in (torch.stack(mems), [None, None]):
        with pytest.raises(InputTypeError, match="a list of tensors"):
            model(ids(), mems=kind)
    with pytest.raises(InputError, match="Pass what an earlier call returned as `mems`"):
        model(ids(), past_key_values=DynamicCache())
    with pytest.raises(InputError, match="it has 3 rows"):
        tiny(bi_data=True)(ids(3))
    writer = tiny(XLNetLMHeadModel)
    with pytest.raises(InputError, match=r"`input_ids` holds 99 at \[1, 0\]"):
        writer.generate(torch.tensor([[7, 8], [99, 8]]), max_new_tokens=2)
    with pytest.raises(InputTypeError, match="keeps memories, which a StaticCache cannot"):
        writer.generate(ids(), cache_implementation="static", max_new_tokens=2)
    with pytest.raises(InputError, match="takes guesses back"):
        writer.generate(ids(1), prompt_lookup_num_tokens=2, max_new_tokens=4)
    with pytest.raises(InputError, match="one token at a time, not 3"):
        writer.generate(ids(1).repeat(1, 2), prompt_lookup_num_tokens=2, max_new_tokens=4, use_cache=False)


def test_weights_before_training() -> None:
    model = tiny(XLNetLMHeadModel, d_model=64, initializer_range=0.3)
    attention = model.backbone.layers[0].self_attn
    for drawn in (attention.segments, attention.content_bias, attention.r_proj.weight, model.backbone.mask_embed):
        assert 0.15 < float(drawn.detach().std()) < 0.45
    assert not model.lm_head.bias.detach().any()


@pytest.mark.reference
def test_files_of_the_older_layout() -> None:
    values = {"architectures": ["XLNetLMHeadModel"], "attn_type": "bi", "bi_data": False, "bos_token_id": 1, "clamp_len": -1}
    values |= {"d_head": 64, "d_inner": 3072, "d_model": 768, "dropout": 0.1, "end_n_top": 5, "eos_token_id": 2}
    values |= {"ff_activation": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, "mem_len": None, "n_head": 12}
    values |= {"model_type": "xlnet", "n_layer": 12, "pad_token_id": 5, "reuse_len": None, "same_length": False}
    values |= {"start_n_top": 5, "summary_activation": "tanh", "summary_last_dropout": 0.1, "summary_type": "last"}
    values |= {"summary_use_proj": True, "untie_r": True, "vocab_size": 32000}
    values |= {"task_specific_params": {"text-generation": {"do_sample": True, "max_length": 250}}}
    check_config_file(XLNetConfig, values)
    for wrong in ({"d_head": 9}, {"n_head": 5}, {"d_model": 33, "n_head": 3}, {"mem_len": -1}, {"summary_type": "attn"}):
        with pytest.raises(ConfigError):
            XLNetModel(XLNetConfig(**{**FAMILY.tiny, **wrong}))
