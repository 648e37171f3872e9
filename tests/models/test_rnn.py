"""Recurrent networks against plain `torch.nn` modules, and what every family must do that needs no reference.

Errors are max|difference| / max|reference| in float32: 1e-6 where one cell computes the same twice, 1e-5 over several steps.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import transept
from tests.thorough import crossed
from transept.errors import ConfigError, InputError
from transept.layers.caches.cache import DynamicCache
from transept.models.rnn import RNNConfig, RNNForCausalLM, RNNForSequenceClassification, RNNForTokenClassification, RNNModel

from .harness import SINGLE, check_same, error, gradients

CELLS = ("lstm", "gru", "rnn")
IDS = torch.randint(1, 50, (3, 9), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(9) < torch.tensor([9, 7, 4])[:, None]).long()
TASKS = (RNNForCausalLM, RNNForSequenceClassification, RNNForTokenClassification)


def make(cls: Any = RNNModel, **more: Any) -> Any:
    torch.manual_seed(0)
    tiny: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "pad_token_id": 0, "num_labels": 3}
    return cls(RNNConfig(**tiny | more)).eval()


def labels(cls: Any) -> Tensor:
    if cls is RNNForCausalLM:
        return IDS.masked_fill(MASK == 0, -100)
    if cls is RNNForTokenClassification:
        return (IDS % 3).masked_fill(MASK == 0, -100)
    return torch.tensor([2, 0, 1])


def run(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_equals_plain_modules(cell: str, both: bool) -> None:
    model = make(cell=cell, bidirectional=both, embedding_size=12)
    plain: Any = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[cell](
        12, 8 if both else 16, 2, batch_first=True, bidirectional=both
    )
    for name, parameter in plain.named_parameters():
        kind, _, layer = name.removesuffix("_reverse").rpartition("_l")
        reverse = "_reverse" * name.endswith("_reverse")
        parameter.data = model.get_parameter(f"layers.{layer}.cell.{kind}_l0{reverse}").data.clone()
    for row in range(3):
        length = int(MASK[row].sum())
        expected = plain(model.embed_tokens(IDS[row : row + 1, :length]))[0]
        assert error(run(model, input_ids=IDS, attention_mask=MASK).last_hidden_state[row : row + 1, :length], expected) <= 1e-6
    mine = gradients(model, model(IDS).last_hidden_state.square().sum())
    plain.zero_grad()
    plain(model.embed_tokens(IDS).detach())[0].square().sum().backward()
    found = mine["layers.1.cell.weight_hh_l0"]
    assert error(found, plain.weight_hh_l1.grad) <= SINGLE


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_changes_nothing(cell: str, both: bool) -> None:
    model = make(cell=cell, bidirectional=both)
    for mask in (MASK, MASK.flip(1), MASK * torch.tensor([1, 1, 0, 1, 1, 1, 0, 1, 1])):
        states = run(model, input_ids=IDS * mask, attention_mask=mask).last_hidden_state
        for row in range(3):
            real = mask[row] == 1
            alone = run(model, input_ids=IDS[row : row + 1, real]).last_hidden_state
            assert error(states[row : row + 1, real], alone) <= SINGLE
            assert not states[row, ~real].any()


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("both", [False, True])
def test_classifiers_of_padded_rows(both: bool, pooling: str) -> None:
    model = make(RNNForSequenceClassification, bidirectional=both, pooling=pooling)
    for mask in (MASK, MASK.flip(1)):
        together = run(model, input_ids=IDS * mask, attention_mask=mask).logits
        for row in range(3):
            alone = run(model, input_ids=IDS[row : row + 1, mask[row] == 1]).logits
            assert error(together[row : row + 1], alone) <= SINGLE
    if pooling == "last" and both:  # PyTorch's own last states
        hidden = model.backbone.layers[1].cell(model.backbone.layers[0].cell(model.backbone.embed_tokens(IDS))[0])[1][0]
        expected = model.head(torch.cat([hidden[0], hidden[1]], dim=1))
        assert error(run(model, input_ids=IDS).logits, expected) <= 1e-6


@pytest.mark.parametrize("cls", [RNNModel, *TASKS])
def test_round_trip_and_twins(cls: Any, tmp_path: Path) -> None:
    model = make(cls, cell="gru", embedding_size=16, hidden_size=16)
    model.save_pretrained(tmp_path)
    again = cls.from_pretrained(tmp_path)
    call = lambda each: run(each, input_ids=IDS, attention_mask=MASK, use_cache=False)  # noqa: E731
    for twin in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        check_same(twin, model, call)
    assert type(transept.AutoModel.from_pretrained(tmp_path)) is RNNModel
    assert all(name.startswith(("embed", "layers", "rnn.", "classifier.", "lm_head")) for name, _ in model.named_parameters())
    again.half().float()
    assert error(call(again)[0], call(model)[0]) <= 1e-2


@pytest.mark.parametrize("cls", TASKS)
@pytest.mark.parametrize("cell", CELLS)
def test_losses_micro_batches_and_gradients(cls: Any, cell: str) -> None:
    model = make(cls, cell=cell).double()
    given = {"input_ids": IDS, "attention_mask": MASK, "labels": labels(cls)}
    whole = model(**given)
    logits, target = whole.logits, labels(cls)
    if cls is RNNForCausalLM:
        logits, target = logits[:, :-1], target[:, 1:]
    assert error(whole.loss, F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))) <= 1e-6
    expected = gradients(model, whole.loss)
    assert expected.keys() == dict(model.named_parameters()).keys()
    count = next(iter(whole.loss_terms.values())).count
    model.zero_grad()
    for row in range(3):
        model(**{name: value[row : row + 1] for name, value in given.items()}, num_items_in_batch=count).loss.backward()
    assert all(error(p.grad, expected[name]) <= SINGLE for name, p in model.named_parameters())
    model.gradient_checkpointing_enable()
    again = gradients(model.train(), model(**given).loss)
    assert all(error(again[name], gradient) <= SINGLE for name, gradient in expected.items())


@pytest.mark.parametrize("cell", CELLS)
def test_cached_equals_uncached(cell: str) -> None:
    model = make(RNNForCausalLM, cell=cell)
    whole = run(model, input_ids=IDS).logits
    cache, parts = None, []
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        output = run(model, input_ids=IDS[:, start:end], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    assert isinstance(cache, DynamicCache)
    assert cache.get_seq_length() == 9
    assert error(torch.cat(parts, dim=1), whole) <= SINGLE
    left = MASK.flip(1)
    prompt = IDS.where(left == 1, 0)
    for options in ({"do_sample": False}, {"num_beams": 3}):
        written = model.generate(prompt, attention_mask=left, max_new_tokens=5, **options)
        assert torch.equal(written, model.generate(prompt, attention_mask=left, max_new_tokens=5, use_cache=False, **options))
        alone = model.generate(prompt[2:, 5:], max_new_tokens=5, **options)
        assert torch.equal(written[2:, 9:], alone[:, 4:])


@pytest.mark.parametrize("cell", CELLS)
def test_packed_rows_begin_anew(cell: str) -> None:
    model = make(RNNForCausalLM, cell=cell)
    lengths = [int(length) for length in MASK.sum(dim=1)]
    packed = torch.cat([IDS[row, :length] for row, length in enumerate(lengths)])[None]
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    together = run(model, input_ids=packed, seq_idx=numbers).logits
    alone = [run(model, input_ids=IDS[row : row + 1, :length]).logits for row, length in enumerate(lengths)]
    assert error(together, torch.cat(alone, dim=1)) <= SINGLE


def test_states_are_handed_on() -> None:
    model, plain = make(RNNForCausalLM, stateful=True).train(), make(RNNForCausalLM)
    stream = torch.randint(1, 50, (2, 12), generator=torch.Generator().manual_seed(1))
    parts = [model(piece, labels=piece) for piece in stream.split(4, dim=1)]
    whole = run(plain, input_ids=stream).logits
    assert error(torch.cat([part.logits for part in parts], dim=1), whole) <= SINGLE
    # No gradient flows into an earlier piece.
    model.backbone.reset_states()
    inputs = model.backbone.embed_tokens(stream[:, :4]).requires_grad_()
    one = model(inputs_embeds=inputs)
    other = model(stream[:, 4:8])
    assert torch.autograd.grad(other.logits.sum(), inputs, allow_unused=True)[0] is None
    assert one.logits.requires_grad
    # It begins anew: in evaluation, with another number of rows, and for a cache of its own.
    assert error(run(model.eval(), input_ids=stream).logits, whole) <= SINGLE
    assert error(run(model, input_ids=stream[:1]).logits, whole[:1]) <= SINGLE
    assert torch.equal(model.generate(stream, max_new_tokens=3), plain.generate(stream, max_new_tokens=3))
    copied = pickle.loads(pickle.dumps(model))
    assert error(run(copied, input_ids=stream[:, :3]).logits, run(model, input_ids=stream[:, :3]).logits) <= 1e-6


def test_dropout_between_layers_is_shared_by_positions() -> None:
    model = make(dropout=0.5, embedding_dropout=0.5).train()
    dropped = model.dropout(torch.ones(4, 7, 16))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert model.layers[0].dropout.p == 0.5
    assert model.layers[1].dropout.p == 0.0
    assert not torch.equal(model(IDS).last_hidden_state, model(IDS).last_hidden_state)


def test_tied_weights_and_resizing() -> None:
    model = make(RNNForCausalLM)
    assert model.lm_head.weight is model.backbone.embed_tokens.weight
    assert model.resize_token_embeddings(60).num_embeddings == 60
    assert run(model, input_ids=IDS).logits.shape[-1] == 60
    apart = make(RNNForCausalLM, tie_word_embeddings=False, embedding_size=8)
    assert apart.lm_head.weight.shape == (50, 16)


def test_hidden_states_and_parts() -> None:
    output = run(make(), input_ids=IDS, output_hidden_states=True)
    assert [tuple(state.shape) for state in output.hidden_states] == [(3, 9, 16)] * 3
    groups = transept.layer_groups(make(RNNForSequenceClassification))
    assert [len(group) for group in groups] == [1, 4, 4, 2]


def test_it_learns() -> None:
    torch.manual_seed(0)
    config = RNNConfig(vocab_size=20, hidden_size=32, num_hidden_layers=1)
    model = RNNForCausalLM(config).train()
    text = torch.arange(40).remainder(7)[None] + 3
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for _ in range(60):
        loss = model(text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(
    ("cls", "settings", "words"),
    [
        (RNNModel, {"cell": "qrnn"}, "cell"),
        (RNNModel, {"hidden_size": 15, "bidirectional": True}, "even"),
        (RNNModel, {"num_hidden_layers": 0}, "num_hidden_layers"),
        (RNNModel, {"dropout": 1.5}, "dropout"),
        (RNNModel, {"stateful": True, "bidirectional": True}, "stateful"),
        (RNNForCausalLM, {"bidirectional": True}, "bidirectional"),
        (RNNForCausalLM, {"embedding_size": 8}, "embedding_size"),
    ],
)
def test_settings_that_cannot_be(cls: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(cls, **settings)


def test_calls_that_cannot_be() -> None:
    with pytest.raises(InputError, match="both directions"):
        make(bidirectional=True)(IDS, past_key_values=DynamicCache())
    with pytest.raises(InputError, match="pairs of positions"):
        make()(IDS, attention_mask=torch.ones(3, 1, 9, 9))
    with pytest.raises(InputError, match="several texts"):
        make()(IDS, seq_idx=torch.arange(9).expand(3, -1) // 4, past_key_values=DynamicCache())
    with pytest.raises(InputError, match="counts positions itself"):
        make()(IDS, position_ids=torch.arange(9).remainder(4).expand(3, -1))


@pytest.mark.filterwarnings("ignore:The tensor attributes self:UserWarning")  # of PyTorch's own views of its weights
@pytest.mark.filterwarnings("ignore:.*:UserWarning:torch._dynamo")
@pytest.mark.parametrize(
    ("cls", "cell"),
    [*crossed([RNNModel], CELLS, 3), *crossed(TASKS, ["lstm"], 1)],
)
def test_compiles_and_exports(cls: Any, cell: str) -> None:
    """PyTorch's compiler takes recurrent cells where it is let, and leaves packing out of graphs; exports are unpadded."""
    model = make(cls, cell=cell)
    inputs: dict[str, Any] = {"input_ids": IDS, "use_cache": False}
    key = "last_hidden_state" if cls is RNNModel else "logits"
    wanted, padded = run(model, **inputs)[key], run(model, **inputs, attention_mask=MASK)[key]
    exported = torch.export.export(model, (), inputs).module()
    assert error(run(exported, **inputs)[key], wanted) <= SINGLE
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        whole = torch.compile(model, fullgraph=True, backend="eager")
        assert error(run(whole, **inputs)[key], wanted) <= SINGLE
    torch._dynamo.reset()
    assert error(run(torch.compile(model, backend="eager"), **inputs, attention_mask=MASK)[key], padded) <= SINGLE
