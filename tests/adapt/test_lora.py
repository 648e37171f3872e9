"""LoRA: the same as peft in outputs, gradients and files, over every family; several adapters, merging, eight bits, memory.

Errors are max|difference| / max|reference| in float32, where both round at every step: 1e-5.
"""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import transept
from tests.models.families import FAMILIES, Family
from tests.models.harness import DOUBLE, EVERY, SINGLE, batch, doubled, error, gradients, labels, originals, pair, whole_loss
from tests.thorough import in_turn
from transept import LoraConfig, PeftModel, TaskType, get_peft_model
from transept.adapt.lora import Adapter, adapters_of
from transept.adapt.pack import can_pack, pack
from transept.adapt.quantize import quantize
from transept.adapt.targets import linear_layers, targets
from transept.core.model import Model
from transept.errors import (
    CheckpointError,
    ConfigError,
    FormatError,
    InputError,
    InputTypeError,
    TranseptError,
    UnsupportedError,
)
from transept.quantized.eight_bits import can_quantize

# What peft asks the reference's models, and says of those that are in no file.
_ASKED = ("`is_gradient_checkpointing`:FutureWarning", "Could not find a config file:UserWarning", "fan_in_fan_out:UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in _ASKED]

IDS = torch.arange(5, 21).reshape(2, 8)
SIZES: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert(**more: Any) -> Any:
    torch.manual_seed(0)
    return transept.BertForSequenceClassification(
        transept.BertConfig(**SIZES, intermediate_size=37, num_labels=3, **more)
    ).eval()


def gpt2() -> Any:
    torch.manual_seed(0)
    return transept.GPT2LMHeadModel(transept.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)).eval()


def llama(**more: Any) -> Any:
    torch.manual_seed(0)
    return transept.LlamaForCausalLM(transept.LlamaConfig(**SIZES, intermediate_size=37, **more)).eval()


def noisy(model: Model, seed: int = 1, **more: Any) -> PeftModel:
    """With an adapter that is not zero."""
    torch.manual_seed(seed)
    return get_peft_model(model, LoraConfig(r=3, lora_alpha=5, init_lora_weights=False, **more)).eval()


def run(model: Any, **inputs: Any) -> Tensor:
    with torch.no_grad():
        return model(**(inputs or {"input_ids": IDS}))[0]  # type: ignore[no-any-return]


# What peft, or the reference below it, cannot adapt as a layer; and what the reference computes past its layers.
LIMITS = {
    "ResNet": "no linear layers but the head",
    "SqueezeBertModel": "no linear layers but the pooler, which the states are not read from",
    **dict.fromkeys(("Mamba", "FalconMamba", "FalconH1", "NemotronH"), "peft refuses its output projections"),
    "Jamba": "the reference reads the weights of its step projections past the layers",
    **dict.fromkeys(
        ("Deepseek", "Dots1", "Ernie4_5_Moe", "Glm4Moe", "HunYuanMoE", "KimiLinear", "Qwen2Moe", "Qwen3Moe", "Qwen3Next"),
        "peft takes feed-forward layers without experts for experts",
    ),
    "Qwen3_5Moe": "peft takes feed-forward layers without experts for experts",
    "XLNet": "its projections are no layers in the reference",
    "BeitBackbone": "its modules have another prefix than its files",
    "WavLM": "the reference multiplies by its projections' weights without calling them",
    "Siglip": "the reference multiplies by its pooler's weights without calling them",
    "LayoutLMv3": "tables of distances are linear layers in the reference",
}


def wanted(model: Model) -> list[str]:
    """Endings of our names of the layers that every peft adapts."""
    own = sorted({path.rpartition(".")[2] for path in targets(model, LoraConfig(target_modules="all-linear"))})
    skipped = {"sampling_ratio"}
    return [name for name in own if name not in skipped]


def _some() -> list[Any]:
    """The first class of each family, which also learns magnitudes, and its last one."""
    found = []
    for family in FAMILIES:
        first, *_, last = [case for case in EVERY if case.values[0] is family] * 2
        found += [pytest.param(*first.values, {"use_dora": True, "use_rslora": True}, id=f"{first.id}-dora")]
        found += [pytest.param(*last.values, {}, id=last.id)]
    return found


@pytest.mark.reference
@pytest.mark.parametrize(("family", "cls", "more"), in_turn(_some(), 30))
def test_peft_opens_ours_and_we_open_pefts(family: Family, cls: type[Model], more: dict[str, Any], tmp_path: Path) -> None:
    if reason := next((reason for name, reason in LIMITS.items() if cls.__name__.startswith(name)), ""):
        pytest.skip(reason)
    ours, theirs = pair(family, cls)
    again, inputs = copy.deepcopy(ours), batch(family, cls)
    plain = run(ours, **inputs)
    adapted = noisy(ours, target_modules="all-linear", **more)
    expected = run(adapted, **inputs)
    assert error(expected, plain) > 1e-3
    adapted.save_pretrained(tmp_path / "ours")
    wrapped = peft.PeftModel.from_pretrained(theirs, tmp_path / "ours").eval()
    assert error(run(wrapped, **inputs), expected) <= SINGLE
    wrapped.save_pretrained(tmp_path / "theirs")
    one, other = (load_file(tmp_path / side / "adapter_model.safetensors") for side in ("ours", "theirs"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    opened = PeftModel.from_pretrained(again, tmp_path / "theirs").eval()
    # Merged weights round otherwise, and some models make much of it in float32.
    adapted, opened, inputs = adapted.double(), opened.double(), doubled(inputs)
    expected = run(adapted, **inputs)
    assert error(run(opened, **inputs), expected) <= DOUBLE
    assert error(run(opened.merge_and_unload(), **inputs), expected) <= DOUBLE


@pytest.mark.reference
@pytest.mark.parametrize("more", [{}, {"use_rslora": True, "bias": "lora_only"}, {"use_dora": True, "bias": "all"}])
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel", "T5ForConditionalGeneration", "ViTModel"])
def test_gradients_equal_pefts(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    family, cls = next(case.values for case in EVERY if case.id == name)
    ours, theirs = pair(family, cls)
    inputs = batch(family, cls)
    inputs |= labels(family, cls, inputs)
    task = {"BertForSequenceClassification": "SEQ_CLS"}.get(name)
    adapted = noisy(ours, task_type=task, **more)
    adapted.save_pretrained(tmp_path)
    wrapped = peft.PeftModel.from_pretrained(theirs, tmp_path, is_trainable=True).eval()
    squares = lambda output: output[0].square().sum() if "loss" not in output else whole_loss(output)  # noqa: E731
    gradients(adapted, squares(adapted(**inputs)))
    found = gradients(wrapped, squares(wrapped(**inputs)))
    state = {name: value.grad for name, value in adapted.named_parameters() if value.requires_grad}
    assert not [name for name, value in state.items() if value is None and "pooler" not in name]
    # By a step of plain descent, whose files must be equal.
    with torch.no_grad():
        for model in (adapted, wrapped):
            seen = {id(p): p for p in model.parameters() if p.grad is not None and p.requires_grad}
            for parameter in seen.values():
                parameter -= 0.1 * parameter.grad
    adapted.save_pretrained(tmp_path / "ours")
    wrapped.save_pretrained(tmp_path / "theirs")
    one, other = (load_file(tmp_path / side / "adapter_model.safetensors") for side in ("ours", "theirs"))
    assert one.keys() == {key for key in other if ".original_module." not in key and ".modules_to_save." not in key}
    assert len(found) >= len(one) - 1  # a pooler whose output is not read
    assert max(error(one[key], other[key]) for key in one) <= SINGLE


@pytest.mark.reference
def test_default_targets_are_pefts() -> None:
    known = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    seen = 0
    for case in EVERY:
        family, cls = case.values
        if cls is not next(other.values[1] for other in EVERY if other.values[0] is family):
            continue
        ours, theirs, _ = originals(family, cls)
        if theirs.config.model_type in known and family.model_type != "mixtral":  # of which peft finds no layers itself
            wrapped = peft.get_peft_model(copy.deepcopy(theirs), peft.LoraConfig())
            assert {place.name for place in targets(ours, LoraConfig()).values()} == set(wrapped.targeted_module_names)
            seen += 1
    assert seen >= 12


def test_settings_are_pefts() -> None:
    ours, theirs = LoraConfig().to_dict(), peft.LoraConfig().to_dict()
    assert {name: theirs[name] for name in ours} == ours
    assert LoraConfig.from_dict(peft.LoraConfig(r=4, target_modules={"b", "a"}).to_dict()).target_modules in (
        ["a", "b"],
        ["b", "a"],
    )
    assert LoraConfig(task_type=TaskType.SEQ_CLS).to_dict()["task_type"] == "SEQ_CLS"
    assert LoraConfig(r=16, lora_alpha=4, use_rslora=True).scale(16, 4) == 1.0


# What peft notes in a file, or reads for a setting that is refused or for speed alone.
NOTES = {"auto_mapping", "peft_version", "megatron_core", "qalora_group_size", "runtime_config"}


def test_every_setting_of_peft_is_honoured_or_refused() -> None:
    names = {setting.name for setting in fields(peft.LoraConfig)}
    others = names - set(LoraConfig().to_dict()) - NOTES
    assert others
    for name in others:
        with pytest.raises(UnsupportedError, match=f"`{name}`"):
            LoraConfig.from_dict({name: [1]})
    LoraConfig.from_dict({name: getattr(peft.LoraConfig(), name, None) for name in names - {"peft_type", "runtime_config"}})


@pytest.mark.parametrize(
    ("target", "count"),
    [
        (None, 4),
        (["query"], 2),
        (["q_proj"], 2),
        (["query", "v_proj", "output.dense"], 8),
        (["encoder.layer.0.attention.self.key"], 1),
        (["bert.encoder.layer.1.intermediate.dense"], 1),
        (["backbone.layers.1.mlp.up_proj"], 1),
        (r".*layer\.1\..*(query|key)", 2),
        (r"backbone\.layers\.\d\.mlp\..*", 4),
        ("all-linear", 13),
    ],
)
def test_targets_by_either_name(target: Any, count: int) -> None:
    model = noisy(bert(), target_modules=target)
    assert sum(1 for _ in model.layers_with_adapters()) == count
    fewer = LoraConfig(target_modules=["query", "value"], exclude_modules=["layer.0.attention.self.value"])
    assert len(targets(bert(), fewer)) == 3
    assert len(targets(bert(), LoraConfig(target_modules=["query"], layers_to_transform=[1]))) == 1
    assert not any("head" in path for path in targets(bert(), LoraConfig(target_modules="all-linear", task_type="SEQ_CLS")))
    by_list = LoraConfig(target_modules=["query"], layers_to_transform=0, layers_pattern="layer")
    assert list(targets(bert(), by_list)) == ["bert.encoder.layer.0.attention.self.query"]


def test_ranks_of_single_layers() -> None:
    patterns: dict[str, Any] = {"rank_pattern": {"layer.0.attention.self.query": 5, ".*1.*value": 2}}
    patterns |= {"alpha_pattern": {"q_proj": 16}, "target_modules": ["query", "value"]}
    model = noisy(bert(), **patterns)
    found = {path: adapters_of(model.model.get_submodule(path)) for path in targets(bert(), LoraConfig())}
    shapes = {path: (len(each.held["default"].A), each.held["default"].scale) for path, each in found.items() if each}  # type: ignore[union-attr,arg-type]
    assert sorted(shapes.values()) == sorted([(5, 16 / 5), (3, 5 / 3), (3, 16 / 3), (2, 5 / 2)])


@pytest.mark.parametrize("names", [["c_attn"], ["qkv_proj"]])
@pytest.mark.parametrize("more", [{}, {"use_rslora": True, "use_dora": True}])
def test_queries_keys_and_values_of_one_product_have_one_adapter(names: list[str], more: Any, tmp_path: Path) -> None:
    family, cls = next(case.values for case in EVERY if case.id == "GPT2LMHeadModel")
    inputs = batch(family, cls)
    ours, theirs = pair(family, cls)
    again = copy.deepcopy(ours)
    adapted = noisy(ours, target_modules=names, **more)
    expected = run(adapted, **inputs)
    adapted.save_pretrained(tmp_path)
    state = load_file(tmp_path / "adapter_model.safetensors")
    shapes = [tuple(state[f"base_model.model.transformer.h.0.attn.c_attn.lora_{part}.weight"].shape) for part in "AB"]
    assert shapes == [(3, 32), (96, 3)]
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (settings["target_modules"], settings["fan_in_fan_out"]) == (["c_attn"], True)
    wrapped = peft.PeftModel.from_pretrained(theirs, tmp_path).eval()
    assert error(run(wrapped, **inputs), expected) <= SINGLE
    assert error(run(PeftModel.from_pretrained(again, tmp_path), **inputs), expected) <= SINGLE
    merged = adapted.merge_and_unload()
    assert merged.transformer.h[0].attn.c_attn.weight.shape == (32, 96)
    assert error(run(merged, **inputs), expected) <= SINGLE


def test_several_adapters() -> None:
    model = bert()
    plain = run(model)
    adapted = noisy(model, task_type="SEQ_CLS")
    first = run(adapted)
    torch.manual_seed(2)
    adapted.add_adapter("other", LoraConfig(r=2, target_modules=["key"], init_lora_weights="gaussian"))
    assert torch.equal(run(adapted), first)
    assert adapted.active_adapters == ["default"]
    adapted.set_adapter("other")
    assert torch.equal(run(adapted), plain)  # B is zero, and the head is the model's own again
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained
    assert all(".other." in name for name in trained)
    with torch.no_grad():
        for _, adapters in adapted.layers_with_adapters():
            for adapter in adapters.chosen(["other"]):
                adapter.B.normal_()
    second = run(adapted)
    assert not torch.equal(second, plain)
    adapted.set_adapter(["default", "other"])
    both = run(adapted)
    assert not torch.equal(both, first)
    with adapted.disable_adapter():
        assert torch.equal(run(adapted), plain)
    assert torch.equal(run(adapted), both)
    adapted.delete_adapter("other")
    assert torch.equal(run(adapted), first)
    assert torch.equal(run(adapted.unload()), plain)
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    assert not model.backbone.layers[0].self_attn.q_proj._forward_hooks


@pytest.mark.parametrize("more", [{}, {"use_dora": True}])
def test_merging(more: dict[str, Any], tmp_path: Path) -> None:
    adapted = noisy(llama(tie_word_embeddings=True), target_modules=["q_proj", "lm_head"], **more)
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    expected = run(adapted)
    adapted.merge_adapter()
    assert error(run(adapted), expected) <= SINGLE
    with adapted.disable_adapter():
        assert error(run(adapted), expected) > 1e-3
    assert error(run(adapted), expected) <= SINGLE
    adapted.save_pretrained(tmp_path / "adapter")
    adapted.unmerge_adapter()
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapted.state_dict().items())
    assert adapted.model.lm_head.weight is adapted.model.backbone.embed_tokens.weight
    merged = adapted.merge_and_unload()
    assert type(merged) is transept.LlamaForCausalLM
    merged.save_pretrained(tmp_path / "whole")
    again = transept.LlamaForCausalLM.from_pretrained(tmp_path / "whole")
    assert error(run(again), expected) <= SINGLE
    assert not again.config.tie_word_embeddings  # the changed head is no longer the embeddings


def test_generation_and_twins() -> None:
    adapted = noisy(llama(), target_modules="all-linear")
    written = adapted.generate(IDS, max_new_tokens=6, do_sample=False)
    for twin in (copy.deepcopy(adapted), pickle.loads(pickle.dumps(adapted))):
        assert torch.equal(twin.generate(IDS, max_new_tokens=6, do_sample=False), written)
        twin.set_adapter([])
        assert not torch.equal(run(twin), run(adapted))
    uncached = adapted.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=False)
    assert torch.equal(uncached, written)
    plain = adapted.get_base_model()
    assert adapted.base_model.model is plain
    assert adapted.config is plain.config
    whole = torch.compile(adapted.model, fullgraph=True, backend="eager")
    torch._dynamo.reset()
    assert error(whole(IDS)[0], run(adapted)) <= SINGLE


def test_half_precision_keeps_exact_adapters() -> None:
    adapted = noisy(bert().bfloat16())
    adapter = next(module for module in adapted.modules() if isinstance(module, Adapter))
    assert adapter.A.dtype == torch.float32
    assert run(adapted).dtype == torch.bfloat16


@pytest.mark.skipif(not can_quantize(), reason="this processor does not multiply integers")
@pytest.mark.parametrize("make", [bert, llama], ids=["bert", "llama"])
@pytest.mark.parametrize("more", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_over_weights_of_eight_bits(make: Any, more: dict[str, Any], tmp_path: Path) -> None:
    exact, rounded = noisy(make(), **more), make()
    exact.save_pretrained(tmp_path)
    quantize(rounded)
    plain = run(rounded)
    adapted = PeftModel.from_pretrained(rounded, tmp_path, is_trainable=True).eval()
    assert error(run(adapted), plain) > 1e-2
    assert error(run(adapted), run(exact)) <= 0.1  # steps of a 127th, twice
    weights = [gradients(model, model(IDS)[0].square().sum()) for model in (exact, adapted)]
    mine = {name: g for name, g in weights[1].items() if ".lora." in name}
    assert mine
    for name, gradient in mine.items():
        other = weights[0][name]
        assert float((gradient - other).norm()) <= 0.15 * float(other.norm()), name
    adapted.save_pretrained(tmp_path / "again")
    one, other = (load_file(where / "adapter_model.safetensors") for where in (tmp_path, tmp_path / "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(InputError, match="eight bits"):
        adapted.merge_adapter()


@pytest.mark.skipif(not can_pack(), reason="this PyTorch has no oneDNN")
def test_packing_and_rounding_leave_adapted_layers() -> None:
    adapted = noisy(llama(), target_modules=["q_proj", "up_proj"])
    expected = run(adapted)
    assert error(run(copy.deepcopy(pack(adapted.model))), expected) <= SINGLE
    if can_quantize():
        other = noisy(llama(), target_modules=["q_proj", "up_proj"])
        quantize(other.model)
        assert error(run(other), expected) <= 0.1


def test_training_lowers_the_loss_and_leaves_the_rest(tmp_path: Path) -> None:
    model = bert()
    adapted = get_peft_model(model, LoraConfig(r=4, task_type="SEQ_CLS", lora_dropout=0.1, target_modules="all-linear")).train()
    assert all(module.training for module in adapted.modules())
    before = {name: tensor.clone() for name, tensor in adapted.state_dict().items()}
    optimizer, answer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], 1e-2), torch.tensor([2, 0])
    losses = []
    for _ in range(12):
        loss = adapted(IDS, labels=answer).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    changed = {name for name, tensor in adapted.state_dict().items() if not torch.equal(tensor, before[name])}
    assert all(".lora." in name or "classifier" in name for name in changed)
    assert not any(name.startswith("originals") for name in changed)
    adapted.eval().save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(bert(), tmp_path)
    assert error(run(again), run(adapted)) <= 1e-6
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_memory_of_a_large_model() -> None:
    with torch.device("meta"):
        config = transept.GPT2Config(n_layer=12, n_embd=768, n_head=12)
        model = transept.GPT2LMHeadModel(config)
    full = sum(p.numel() for p in model.parameters())
    assert full > 100e6
    for names in (None, "all-linear"):
        adapted = get_peft_model(copy.deepcopy(model), LoraConfig(r=8, target_modules=names))
        trained, total = adapted.get_nb_trainable_parameters()
        assert trained <= 0.05 * full  # and so are gradients and both moments of AdamW
        assert total == full + trained


def test_counts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    adapted = noisy(bert())
    adapted.print_trainable_parameters()
    trained, total = 4 * 3 * (32 + 32), sum(parameter.numel() for parameter in adapted.parameters())  # 4 layers of 32 by 32
    share = f"{100 * trained / total:.4f}"
    assert capsys.readouterr().out == f"trainable params: {trained} || all params: {total:,} || trainable%: {share}\n"


BAD: list[tuple[dict[str, Any], type[TranseptError], str]] = [
    ({"target_modules": ["questions"]}, InputError, "no linear layers"),
    ({"target_modules": "(((("}, FormatError, "none"),
    ({"target_modules": "x" * 1001}, FormatError, "1000"),
    ({"target_modules": ["embed_tokens"]}, InputError, "no linear layers"),
    ({"r": 0}, ConfigError, "`r`"),
    ({"r": "eight"}, ConfigError, "`r`"),
    ({"lora_dropout": 1.5}, ConfigError, "lora_dropout"),
    ({"rank_pattern": {"query": 0}}, ConfigError, "rank_pattern"),
    ({"bias": "some"}, ConfigError, "bias"),
    ({"init_lora_weights": "pissa"}, UnsupportedError, "pissa"),
    ({"use_qalora": True}, UnsupportedError, "use_qalora"),
    ({"peft_type": "IA3"}, UnsupportedError, "IA3"),
    ({"ranks": 3}, ConfigError, "ranks"),
    ({"modules_to_save": ["clasifier"]}, InputError, "clasifier"),
]


@pytest.mark.parametrize(("settings", "kind", "words"), BAD, ids=[str(case[0])[:40] for case in BAD])
def test_settings_that_cannot_be(settings: dict[str, Any], kind: type[TranseptError], words: str) -> None:
    with pytest.raises(kind, match=words):
        get_peft_model(bert(), LoraConfig(**settings))


def test_a_pattern_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transept.storage.patterns.SECONDS", 1e-9)
    with pytest.raises(FormatError, match="longer than"):
        get_peft_model(bert(), LoraConfig(target_modules=r"(e|e|.)*#"))


def test_calls_that_cannot_be(tmp_path: Path) -> None:
    adapted = noisy(bert())
    for call in (
        lambda: adapted.set_adapter("none"),
        lambda: adapted.add_adapter("default", LoraConfig()),
        lambda: adapted.add_adapter("a.b", LoraConfig()),
        lambda: adapted.merge_adapter(["none"]),
        lambda: adapted.save_pretrained(tmp_path, safe_serialization=False),
        lambda: get_peft_model(bert(), LoraConfig(), mixed=True),
    ):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputTypeError):
        get_peft_model(torch.nn.Linear(2, 2), LoraConfig())  # type: ignore[arg-type]
    one = get_peft_model(bert(), LoraConfig(bias="all"))
    with pytest.raises(InputError, match="biases"):
        one.add_adapter("two", LoraConfig(bias="lora_only"))


def test_ranks_are_compared_with_the_file_before_matrices_are_made(tmp_path: Path) -> None:
    get_peft_model(bert(), LoraConfig(r=2, rank_pattern={"query": 4})).save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    document = json.loads(path.read_text())
    for change, setting in (({"r": 10**9}, "`r`"), ({"rank_pattern": {"query": 10**12}}, "`rank_pattern`"), ({"r": 5}, "`r`")):
        path.write_text(json.dumps(document | change))
        model = bert()
        with pytest.raises(
            CheckpointError, match=f"holds adapters of rank 4 at most, but {setting} of adapter_config.json gives"
        ):
            PeftModel.from_pretrained(model, tmp_path)
        assert not any(adapters_of(module) for module in model.modules())
    path.write_text(json.dumps(document))
    loaded = PeftModel.from_pretrained(bert(), tmp_path)
    with pytest.raises(InputError, match=r"adapters of \d+ layers, of rank 1000000000000 .* needs at least .* TB of memory"):
        loaded.add_adapter("large", LoraConfig(r=10**12))


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    noisy(bert(), task_type="SEQ_CLS").save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    state = load_file(file)
    first = next(iter(state))
    for wrong, words in (
        ({name: tensor for name, tensor in state.items() if name != first}, "missing"),
        (state | {"base_model.model.bert.nothing.lora_A.weight": state[first].clone()}, "unexpected"),
        (state | {first: state[first][:2].clone()}, "mismatched"),
        ({name: tensor for name, tensor in state.items() if "classifier" not in name}, "missing"),
    ):
        save_file(wrong, file)
        with pytest.raises(CheckpointError, match=words):
            PeftModel.from_pretrained(bert(), tmp_path)
    file.write_bytes(b"\x10" * 40)
    with pytest.raises(FormatError):
        PeftModel.from_pretrained(bert(), tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": -1}')
    with pytest.raises(ConfigError):
        PeftModel.from_pretrained(bert(), tmp_path)
    with pytest.raises(OSError, match="no such directory"):
        PeftModel.from_pretrained(bert(), tmp_path / "nowhere")


def test_names_of_places() -> None:
    found = {place.name: place.own for place in linear_layers(gpt2())}
    assert found["transformer.h.1.attn.c_attn"] == "backbone.layers.1.self_attn.qkv_proj"
    assert found["lm_head"] == "lm_head"
