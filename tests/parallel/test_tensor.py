"""Tensor parallelism: two and four processes compute what one does, and read and write its files."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import transept
from tests.thorough import crossed, in_turn
from transept.errors import ConfigError, FileError, InputError, TrainingError, UnsupportedError
from transept.heads.task import loss_alone
from transept.parallel.mesh import DistributedConfig
from transept.parallel.processes import join
from transept.parallel.tensor.plan import Plan

from .ranks import Ranks

LOSSES, GRADIENTS = 1e-5, 2e-5  # sums of the processes' parts are in another order than those of one
TEXT = {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TEXT |= {"max_position_embeddings": 32, "initializer_range": 0.2}
GROUPED = TEXT | {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SPEECH = {"vocab_size": 99, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24, "init_std": 0.2}
SPEECH |= {"decoder_ffn_dim": 24, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8}
SPEECH |= {"max_source_positions": 10, "max_target_positions": 32, "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1}
SPEECH |= {"eos_token_id": 2, "decoder_start_token_id": 3, "begin_suppress_tokens": None}
SOUND = ("num_mel_bins", "max_source_positions", "max_target_positions", "begin_suppress_tokens")
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", TEXT | NO_DROPOUT),
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 99, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "initializer_range": 0.2}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    ),
    "llama": ("LlamaForCausalLM", GROUPED),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 99, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
        | {"decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"},
    ),
    "vit": (
        "ViTForImageClassification",
        {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "initializer_range": 0.2}
        | {"image_size": 8, "patch_size": 4, "num_labels": 3}
        | NO_DROPOUT,
    ),
    "mixtral": ("MixtralForCausalLM", GROUPED | {"num_local_experts": 4, "output_router_logits": True}),
    "whisper": ("WhisperForConditionalGeneration", SPEECH),
    "bloom": ("BloomForCausalLM", {"vocab_size": 99, "hidden_size": 16, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}),
    "qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 4, "tie_word_embeddings": True}),
    "marian": (
        "MarianMTModel",
        {name: value for name, value in SPEECH.items() if name not in SOUND}
        | {"forced_eos_token_id": None, "max_position_embeddings": 32},
    ),
}
KIN = {
    "gemma4_text": (
        "Gemma4ForCausalLM",
        {"head_dim": 4, "global_head_dim": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
        | {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "sliding_window": 4, "hidden_size_per_layer_input": 4}
        | {"vocab_size_per_layer_input": 99},
    ),
    "gemma3_text": ("Gemma3ForCausalLM", {"head_dim": 4, "query_pre_attn_scalar": 4}),
    "phi": ("PhiForCausalLM", {"qk_layernorm": True}),
    "phi3": ("Phi3ForCausalLM", {"num_key_value_heads": 4}),
    "granite": ("GraniteForCausalLM", {"residual_multiplier": 0.5}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 4}),
    "cohere": ("CohereForCausalLM", {"use_qk_norm": True}),
    "cohere2": ("Cohere2ForCausalLM", {}),
    "stablelm": ("StableLmForCausalLM", {"qk_layernorm": True, "partial_rotary_factor": 0.5}),
    "starcoder2": ("Starcoder2ForCausalLM", {}),
    "nemotron": ("NemotronForCausalLM", {}),
    "persimmon": ("PersimmonForCausalLM", {"num_key_value_heads": 4}),
    "apertus": ("ApertusForCausalLM", {}),
    "hunyuan_v1_dense": ("HunYuanDenseV1ForCausalLM", {}),
    "ministral3": ("Ministral3ForCausalLM", {"head_dim": 4}),
    "modernbert-decoder": ("ModernBertDecoderForCausalLM", {"cls_token_id": 1, "sep_token_id": 2}),
}
KINDS |= {name: (kind, GROUPED | settings) for name, (kind, settings) in KIN.items()}
FAMILIES = ["bert", "gpt2", "llama", "t5", "vit", "mixtral", "whisper"]


def build(name: str, **more: Any) -> Any:
    """A family's model with weights that are the same everywhere."""
    kind, settings = KINDS[name]
    cls: Any = getattr(transept, kind)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cls(cls.config_class(**settings | more))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and norms begin as constants, which would hide sums
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def batch(name: str, rows: int = 3, length: int = 7, labels: bool = True) -> dict[str, Tensor]:
    """Inputs with padding, and labels of which some are ignored."""
    torch.manual_seed(1)
    ids = torch.randint(4, 99, (rows, length))
    ids[0, 1] = 0  # a real token with the padding's id, whose embedding has a gradient or not as in one process
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    targets = ids.masked_fill(mask == 0, -100)
    targets[2, 3] = -100
    if name == "vit":
        given: dict[str, Tensor] = {"pixel_values": torch.randn(rows, 3, 8, 8)}
        targets = torch.tensor([0, 2, 1])
    elif name == "whisper":
        given = {"input_features": torch.randn(rows, 8, 20)}
    else:
        given = {"input_ids": ids, "attention_mask": mask}
    return given | ({"labels": targets} if labels else {})


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


def divided(model: Any, *, sequence: bool = False, **more: Any) -> Any:
    """A copy of a model that is split between all processes."""
    from transept.parallel.tensor.apply import tensor_parallel

    mesh = DistributedConfig(tp_size=dist.get_world_size()).layout(dist.get_world_size()).mesh("cpu")["tp"]
    other = copy.deepcopy(model)
    tensor_parallel(other, mesh, sequence=sequence, **more)
    return other


def bytes_here(model: nn.Module) -> int:
    tensors: Any = {id(p): p for p in model.parameters()}.values()
    return sum((p.to_local() if hasattr(p, "to_local") else p).nbytes for p in tensors)


def learn(model: Any, inputs: dict[str, Tensor], updates: int, alone: bool) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of updates by gradient descent, and the gradients of the first."""
    model.train()
    optimizer, losses, first = torch.optim.SGD(model.parameters(), lr=0.05), [], {}
    for update in range(updates):
        with loss_alone() if alone else contextlib.nullcontext():
            loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        if update == 0:
            first = {name: whole(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, first


def compared(name: str, sequence: bool, alone: bool, updates: int, settings: dict[str, Any]) -> tuple[float, float, float]:
    """The greatest differences of losses and of gradients between one process and all, and the share of the bytes here."""
    join()
    model, inputs = build(name, **settings), batch(name)
    other = divided(model, sequence=sequence)
    share = bytes_here(other) / bytes_here(model)
    one, ours = learn(model, inputs, updates, False), learn(other, inputs, updates, alone)
    assert one[1].keys() == ours[1].keys()
    greatest = max(float(gradient.abs().max()) for gradient in one[1].values())
    gradients = max(float((one[1][key] - ours[1][key]).abs().max()) for key in one[1]) / greatest
    for key, parameter in other.named_parameters():
        if hasattr(parameter.grad, "placements"):
            assert parameter.grad.placements == parameter.placements, key
    return max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(*(each[0] for each in (one, ours)), strict=True)), gradients, share


def check(found: list[tuple[float, float, float]], share: float) -> None:
    for losses, gradients, here in found:
        assert losses <= LOSSES
        assert gradients <= GRADIENTS
        assert here <= share


@pytest.mark.parametrize(
    ("name", "apart"), [*crossed([*FAMILIES, "qwen3"], [False, True], 8), ("bloom", False), ("marian", False)]
)
def test_two_processes_learn_what_one_does(ranks: Ranks, name: str, apart: bool) -> None:
    """``apart``: positions are split, seven of which cannot be split evenly, and so are the logits of a loss."""
    check(ranks.run(2, compared, name, apart, apart, 3 if apart else 5, {}), 0.6)


@pytest.mark.parametrize("name", in_turn(KIN, 3))
def test_kin_of_llama_learn_what_one_process_does(ranks: Ranks, name: str) -> None:
    check(ranks.run(2, compared, name, False, False, 2, {}), 0.9)


NOT_DIVISIBLE: dict[str, tuple[int, str, dict[str, Any]]] = {
    "two heads of keys for four processes": (4, "llama", {}),
    "heads": (4, "t5", {}),
    "one head of keys and experts": (4, "mixtral", {"num_key_value_heads": 1}),
    "heads 0, 0, 1 and 1, 2, 2": (2, "llama", {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4}),
    "one head of keys": (2, "qwen3", {"num_key_value_heads": 1}),
    "tokens": (2, "marian", {"vocab_size": 129}),
}


@pytest.mark.parametrize(
    ("world", "name", "settings"), in_turn([pytest.param(*case, id=what) for what, case in NOT_DIVISIBLE.items()], 3)
)
def test_heads_and_tokens_that_are_not_divisible(ranks: Ranks, world: int, name: str, settings: dict[str, Any]) -> None:
    check(ranks.run(world, compared, name, False, True, 3, settings), 0.7)


def _smoothed() -> list[float]:
    join()
    from transept.objectives.classification import Unscored, cross_entropy

    model = build("bert")
    states, labels = torch.randn(3, 5, 16, requires_grad=True), batch("bert", length=5)["labels"]
    found = []
    for each in (model, divided(model)):
        each.zero_grad()
        states.grad = None
        (term := cross_entropy(Unscored(each.lm_head, states), labels, smoothing=0.1)).sum.backward()
        assert states.grad is not None
        found += [float(term.sum.detach()), float(states.grad.norm()), float(whole(each.lm_head.decoder.bias.grad).norm())]
    return found


def test_a_smoothed_loss(ranks: Ranks) -> None:
    for found in ranks.run(2, _smoothed):
        assert found[3:] == pytest.approx(found[:3], rel=1e-5)


def _kept(name: str) -> list[Any]:
    """The places of the logits that a loss alone is made of, and of others."""
    join()
    other, found = divided(build(name)), []
    layer = other.get_output_embeddings()
    layer.register_forward_hook(lambda module, inputs, output: found.append(getattr(output, "placements", None)))
    with loss_alone():
        other(**batch(name))
    alone = {str(each) for each in found}
    found.clear()
    other(**batch(name))
    return [alone, set(found)]


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_no_process_makes_all_logits_for_a_loss_alone(ranks: Ranks, name: str) -> None:
    assert ranks.run(2, _kept, name) == [[{"(Shard(dim=1),)"}, {None}]] * 2


def _counted(sequence: bool, alone: bool) -> dict[str, int]:
    """How often the processes talk to each other in a forward and a backward pass, by kind."""
    from torch.distributed.tensor.debug import CommDebugMode

    join()
    model, inputs = divided(build("llama"), sequence=sequence), batch("llama", length=8)
    with CommDebugMode() as seen, loss_alone() if alone else contextlib.nullcontext():
        model(**inputs).loss.backward()
    return {str(kind).rpartition(".")[2]: count for kind, count in seen.get_comm_counts().items()}


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        # Two layers of two parts, forwards and backwards; the embeddings and the head once.
        (False, {"all_reduce": 2 * 2 * 2 + 2, "all_gather_into_tensor": 1}),
        # Sums are scattered and gathered again; the last state is whole, and norms' gradients are added up.
        (True, {"all_reduce": 2 + 2 * 2, "all_gather_into_tensor": 11, "reduce_scatter_tensor": 8}),
    ],
)
def test_processes_talk_no_more_than_they_must(ranks: Ranks, sequence: bool, expected: dict[str, int]) -> None:
    assert ranks.run(2, _counted, sequence, False) == [expected, expected]


# --- what is drawn ---------------------------------------------------------------------------------------------------------


def _with_dropout(name: str, settings: dict[str, Any], sequence: bool) -> tuple[list[float], list[float], int]:
    join()
    model, inputs = build(name, **settings), batch(name)
    other = divided(model, sequence=sequence)
    torch.manual_seed(5)
    one = learn(model, inputs, 3, False)[0]
    torch.manual_seed(5)
    ours = learn(other, inputs, 3, True)[0]
    return one, ours, int(torch.randint(2**40, ()))


def test_dropout_of_whole_states_is_that_of_one_process(ranks: Ranks) -> None:
    for one, ours, _ in ranks.run(2, _with_dropout, "bert", {"hidden_dropout_prob": 0.3}, False):
        assert ours == pytest.approx(one, rel=LOSSES)


@pytest.mark.parametrize("sequence", [False, True])
def test_dropout_of_parts_differs_and_all_go_on_alike(ranks: Ranks, sequence: bool) -> None:
    settings = {"dropout": 0.2, "attention_dropout": 0.2, "activation_dropout": 0.2}
    first, second = ranks.run(2, _with_dropout, "whisper", settings, sequence)
    assert first[1:] == second[1:]
    assert first[1] != first[0]


def _masks() -> Tensor:
    join()
    from transept.parallel.tensor.apply import PartDropout

    mesh = DistributedConfig(tp_size=2).layout(2).mesh("cpu")["tp"]
    torch.manual_seed(3)
    return PartDropout(nn.Dropout(0.5), mesh)(torch.ones(64))


def test_masks_of_parts_are_drawn_apart(ranks: Ranks) -> None:
    first, second = ranks.run(2, _masks)
    assert not torch.equal(first, second)


# --- what is shown, and what is written ------------------------------------------------------------------------------------


def _shown(name: str, sequence: bool) -> list[float]:
    join()
    model, inputs = build(name).eval(), batch(name)
    other = divided(model, sequence=sequence)
    asked: Any = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        one, ours = model(**inputs, **asked), other(**inputs, **asked)
    found = []
    assert one.keys() == ours.keys()
    for key in one:
        values, others = (each[key] if isinstance(each[key], tuple) else (each[key],) for each in (one, ours))
        for value, another in zip(values, others, strict=True):
            if isinstance(value, Tensor):
                assert not hasattr(another, "placements")
                assert value.shape == another.shape
                found.append(float((value - another).abs().max()))
    return found


@pytest.mark.parametrize("name", ["t5", "mixtral"])
@pytest.mark.parametrize("sequence", [False, True])
def test_states_and_attentions_are_shown_whole(ranks: Ranks, name: str, sequence: bool) -> None:
    for found in ranks.run(2, _shown, name, sequence):
        assert len(found) > 5
        assert max(found) < 1e-4


def _passes(name: str, sequence: bool) -> tuple[list[float], list[float]]:
    """Losses and a gradient with recomputed layers, two texts in a row, and two batches for an update."""
    join()
    model, inputs, found = build(name, num_hidden_layers=3).train(), batch(name), []
    packed = {"input_ids": inputs["input_ids"][:1], "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2]])}
    packed["labels"] = inputs["labels"][:1]
    for each in (model, divided(model, sequence=sequence)):
        each.gradient_checkpointing_enable()
        values = []
        for given in (inputs, packed):
            with loss_alone():
                loss = each(**given).loss
            loss.backward()
            values.append(float(loss.detach()))
        values += [float(whole(p.grad).norm()) for p in each.parameters()]
        found.append(values)
    return found[0], found[1]


@pytest.mark.parametrize("sequence", [False, True])
def test_recomputed_layers_packed_texts_and_several_batches(ranks: Ranks, sequence: bool) -> None:
    for one, ours in ranks.run(2, _passes, "llama", sequence):
        assert ours == pytest.approx(one, rel=1e-4, abs=1e-5)


WAYS: list[dict[str, Any]] = [
    {"max_new_tokens": 6, "do_sample": False},
    {"max_new_tokens": 5, "num_beams": 3, "do_sample": False},
    {"max_new_tokens": 6, "do_sample": True, "top_k": 20},
    {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"},
]


def _written(name: str, sequence: bool) -> list[tuple[Any, Any]]:
    join()
    model, inputs = build(name).eval(), batch(name, labels=False)
    other, found = divided(model, sequence=sequence), []
    for way in WAYS if name != "t5" else WAYS[:3]:
        texts = []
        for each in (model, other):
            torch.manual_seed(7)
            texts.append(each.generate(**inputs, **way).tolist())
        found.append((texts[0], texts[1]))
    return found


TEXTS = [("gpt2", 2, False), ("llama", 4, False), ("t5", 2, False), ("whisper", 2, False), ("bloom", 2, False)]
TEXTS += [("gpt2", 2, True)]


@pytest.mark.parametrize(
    ("name", "world", "sequence"), in_turn([pytest.param(*case, id="-".join(map(str, case))) for case in TEXTS], 3)
)
def test_the_same_tokens_are_written(ranks: Ranks, name: str, world: int, sequence: bool) -> None:
    for found in ranks.run(world, _written, name, sequence):
        for one, ours in found:
            assert one == ours


# --- files -----------------------------------------------------------------------------------------------------------------


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def _read_and_write(folder: str, names: list[str]) -> list[float]:
    shares = []
    for name in names:
        path, options = Path(folder), {"max_shard_size": "8KB"} if name == "mixtral" else {}
        model = getattr(transept, KINDS[name][0]).from_pretrained(path / name, tp_plan="auto")
        model.save_pretrained(path / f"{name}-again", **options)
        shares.append(bytes_here(model) / bytes_here(build(name)))
        assert not model.training
    return shares


def test_files_are_read_in_parts_and_written_as_by_one_process(ranks: Ranks, tmp_path: Path) -> None:
    names = [*FAMILIES, "bloom", "marian"]  # fused, transposed, stacked, tied and half-precision ones among them
    for name in names:
        model = build(name).to(torch.bfloat16 if name == "llama" else torch.float32)
        model.save_pretrained(tmp_path / name, **({"max_shard_size": "8KB"} if name == "mixtral" else {}))
    for shares in ranks.run(2, _read_and_write, str(tmp_path), names):
        assert max(shares) <= 0.6
    for name in names:
        one = getattr(transept, KINDS[name][0]).from_pretrained(tmp_path / name)
        one.save_pretrained(tmp_path / f"{name}-one", **({"max_shard_size": "8KB"} if name == "mixtral" else {}))
        assert digests(tmp_path / f"{name}-again") == digests(tmp_path / f"{name}-one"), name
    assert len(digests(tmp_path / "mixtral-again")) > 4


def _load(folder: str, options: dict[str, Any]) -> tuple[float, int, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        join()
        torch.manual_seed(dist.get_rank())  # what is new must be the same all the same
        model = transept.AutoModelForSequenceClassification.from_pretrained(folder, **options)
    rank = dist.get_rank()
    model.config.pad_token_id = 0
    with torch.no_grad():
        return float(model(**batch("llama", labels=False)).logits.sum()), model.tp_size, float(rank)


@pytest.mark.parametrize(
    "options",
    [
        {"tp_size": 2},
        {"distributed_config": DistributedConfig(tp_size=2, enable_sequence_parallel=True)},
        {"distributed_config": {"tp_plan": {"layers.*.mlp.up_proj": "replicated", "gate_proj": "replicated"}}},
    ],
)
def test_new_weights_are_the_same_on_all(ranks: Ranks, options: dict[str, Any], tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    if isinstance(options.get("distributed_config"), dict):
        rules = options["distributed_config"]["tp_plan"] | {"down_proj": "replicated"}
        options = {"distributed_config": {"tp_plan": rules}}
    first, second = ranks.run(2, _load, str(tmp_path), options)
    assert first[:2] == second[:2]
    assert first[1] == 2


PAGE = Path(__file__).parents[2] / "docs/how-to/parallel.md"


def snippets(section: str) -> list[str]:
    """The Python code of the page's section, without its hidden preparation."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}")[2].partition("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def _run(folder: str, pieces: list[str]) -> int:
    names: dict[str, Any] = {}
    with contextlib.chdir(folder):
        for piece in pieces:
            exec(compile(piece, str(PAGE), "exec"), names)
    return names["model"].tp_size  # type: ignore[no-any-return]


def test_the_page_runs_in_two_processes(ranks: Ranks, tmp_path: Path) -> None:
    """In one process it runs with the other pages."""
    build("llama").save_pretrained(tmp_path / "llama")
    pieces = snippets("Split matrices: tensor parallelism")
    assert len(pieces) > 5
    pieces = [piece.replace("(32, 32)", "(12, 16)").replace("(64, 32)", "(24, 16)") for piece in pieces]
    assert ranks.run(2, _run, str(tmp_path), pieces) == [2, 2]


def _save_into(path: str) -> None:
    join()
    divided(build("gpt2")).save_pretrained(path)


def test_all_processes_fail_where_the_first_cannot_write(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    answers = ranks.ask(2, _save_into, str(tmp_path / "file"))
    assert [kind for _, (kind, _, _) in answers] == [FileError.__name__, TrainingError.__name__]
    assert "process 0 failed, and so all 2 end" in answers[1][1][1]


# --- what cannot be --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "rules", "message"),
    [
        ("llama", 8, "auto", "8 tensor ranks, but attention has 4 heads.*at most 4"),
        ("llama", 2, "fast", "'auto' or a mapping"),
        ("llama", 2, {"q_porj": "colwise"}, "names 'q_porj'.*Did you mean 'q_proj'"),
        ("llama", 2, {"q_proj": "columnwise"}, "no style 'columnwise'.*'colwise'"),
        ("llama", 2, {"q_proj": "replicated"}, "only a part of model.layers.0.self_attn .q_proj: replicated"),
        ("llama", 2, {"mlp.up_proj": "rowwise"}, "only a part of model.layers.0.mlp"),
        ("llama", 2, {"norm": "rowwise"}, "RMSNorm and no Linear"),
    ],
)
def test_plans_that_cannot_be(name: str, size: int, rules: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan.of(build(name), size, rules)


def test_what_is_not_divisible_is_whole_and_told() -> None:
    model = build("llama", num_attention_heads=4, intermediate_size=25)
    text = Plan.of(model, 3).explain(model)
    assert "whole on all ranks: model.layers.0.self_attn (4 heads are not divisible by 3)" in text
    assert "whole on all ranks: model.layers.1.mlp (its inner size 25 is not divisible by 3)" in text
    assert "model.embed_tokens.weight" in text
    assert "33 x 16" in text


def test_the_plan_explains_itself() -> None:
    model = build("gpt2")
    text = Plan.of(model, 2).explain(model)
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert " ".join(lines["transformer.h.*.attn.c_attn.weight"].split()[1:]) == "colwise 16 x 48 16 x 24 2 x 1,536"
    assert " ".join(lines["transformer.h.*.mlp.c_proj.bias"].split()[1:]) == "rowwise 16 16 2 x 64"
    assert "tied to transformer.wte.weight" in lines["lm_head.weight"]
    assert "bytes on the first of 2 ranks" in text


def test_a_rule_that_parts_what_is_tied_keeps_both_whole() -> None:
    model = build("gpt2")
    plan = Plan.of(model, 2, {"lm_head": "replicated"})
    assert plan.axis("transformer.wte.weight") is None
    assert plan.axis("lm_head.weight") is None


def test_other_families_say_what_stays_whole() -> None:
    config: Any = transept.XLNetConfig(vocab_size=99, d_model=16, n_layer=1, n_head=4, d_inner=24)
    plan = Plan.of(transept.XLNetModel(config), 2)
    assert plan.whole == {"layer.0.rel_attn": "its heads have weights in common"}
    assert plan.axis("layer.0.ff.layer_1.weight") == 0


@pytest.mark.parametrize("kind", ["adapters", "quantized"])
def test_layers_that_are_not_plain(kind: str) -> None:
    model = build("llama").eval()
    if kind == "adapters":
        model = transept.get_peft_model(model, transept.LoraConfig(target_modules=["q_proj"])).base_model
    else:
        from transept.adapt.quantize import quantize

        quantize(model)
    with pytest.raises(ConfigError, match=r"self_attn.q_proj is .* cannot be split.*merge its adapters"):
        Plan.of(model, 2)


@pytest.mark.parametrize("options", [{"tp_size": 2}, {"distributed_config": {"tp_size": 2, "fsdp_size": 2}}])
def test_one_process_is_told_how_to_start_more(options: dict[str, Any], tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match=r"torchrun --nproc-per-node [24]"):
        transept.AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    assert type(transept.AutoModelForCausalLM.from_pretrained(tmp_path, tp_plan="auto")) is transept.GPT2LMHeadModel
    both: Any = {"tp_plan": "auto", "distributed_config": DistributedConfig(tp_size=1)}
    with pytest.raises(ConfigError, match="of its own"):
        transept.AutoModelForCausalLM.from_pretrained(tmp_path, **both)
    with pytest.raises(ConfigError, match="not list"):
        transept.AutoModelForCausalLM.from_pretrained(tmp_path, distributed_config=[2])


def _refused(case: str, folder: str) -> str:
    join()
    mesh = DistributedConfig(tp_size=2).layout(2).mesh("cpu")["tp"]
    from transept.parallel.tensor.apply import tensor_parallel

    actions: dict[str, Callable[[], Any]] = {
        "twice": lambda: tensor_parallel(divided(build("gpt2")), mesh),
        "meta": lambda: tensor_parallel(build("gpt2").to("meta"), mesh),
        "sequence": lambda: tensor_parallel(
            transept.MambaModel(transept.MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1)), mesh, sequence=True
        ),
        "world": lambda: transept.GPT2LMHeadModel.from_pretrained(folder, tp_size=4),
        "pipeline": lambda: transept.GPT2LMHeadModel.from_pretrained(folder, distributed_config={"pp_size": 2}),
    }
    with pytest.raises((ConfigError, InputError, UnsupportedError)) as caught:
        actions[case]()
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("twice", "split between processes already"),
        ("meta", "no weights yet"),
        ("sequence", "MambaBlock, and no standard blocks alone"),
        ("world", "2 processes cannot be laid out as tp_size=4"),
        ("pipeline", "Pass the settings to TrainingArguments"),
    ],
)
def test_what_cannot_be_split(ranks: Ranks, case: str, message: str, tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    for told in ranks.run(2, _refused, case, str(tmp_path)):
        assert message in told
