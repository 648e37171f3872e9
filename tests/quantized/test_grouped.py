"""Weights of four and eight bits: the kernel computes what its definition says, with every set of instructions."""

from __future__ import annotations

import copy
import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transept
from tests.adapt.test_pack import make
from tests.pipelines.text_models import save
from transept.adapt.quantize import quantize
from transept.environment import compiler
from transept.errors import InputError, TranseptWarning
from transept.quantized import grouped
from transept.quantized.experts import GroupedExperts
from transept.quantized.grouped import SOURCE, GroupedLinear
from transept.quantized.weights import GroupedWeight, rounded_to_four_bits

# Both add products in float32, in other orders.
SUMS = 1e-5


def rounded_inputs(x: Tensor, group: int) -> Tensor:
    """Inputs as the kernel rounds them: eight bits for each group."""
    groups = nn.functional.pad(x, (0, -x.shape[1] % group)).unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    step = groups.abs().amax(-1, keepdim=True) / 127
    rounded: Tensor = (groups * (1 / torch.where(step == 0, 1, step))).round() * step
    return rounded.flatten(1)[:, : x.shape[1]]


def taken_inputs(x: Tensor, weight: GroupedWeight) -> Tensor:
    """Inputs as the kernel takes them: floats are not multiplied by integers."""
    return x if weight.codes.is_floating_point() else rounded_inputs(x, weight.group)


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max() / other.detach().abs().max())


@pytest.mark.parametrize("group", [8, 32, 128])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 256), (37, 100), (1, 8), (16, 384)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 11])
def test_products(group: int, outputs: int, inputs: int, rows: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs)
    packed = GroupedLinear.of_four_bits(layer, group)
    x = torch.randn(rows, inputs) * torch.rand(rows, 1) * 10
    wanted = nn.functional.linear(rounded_inputs(x, group), packed.dequantized(), layer.bias)
    assert off(packed(x), wanted) < SUMS
    assert packed.dequantized().shape == layer.weight.shape
    error = (packed.dequantized() - layer.weight).square().mean() / layer.weight.square().mean()
    assert error < 0.01  # sixteen steps of even size for numbers of even size: (1 / 16) ** 2 / 12 over 1 / 3 is 0.001


def test_numbers_that_are_even_steps_stay() -> None:
    codes, scales = torch.randint(0, 16, (5, 64)), torch.rand(5, 2).half() + 0.1
    codes[:, ::32] = 0  # the outermost step, which tells the scale
    weight = ((codes - 8).view(5, 2, 32) * scales[..., None].float()).flatten(1)
    assert torch.equal(rounded_to_four_bits(weight).dequantized(), weight)
    assert rounded_to_four_bits(torch.zeros(2, 32)).scale.eq(0).all()


TABLE = torch.tensor([-128, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 127], dtype=torch.int8)
FLOATS = torch.cat([torch.randn(14, generator=torch.Generator().manual_seed(0)), torch.tensor([1e-9, -3.0])])
OUTPUTS, INPUTS = 21, 96


def of_bytes() -> Tensor:
    """All floats of eight bits, but for those that are no numbers."""
    codes = torch.arange(OUTPUTS * INPUTS).to(torch.uint8).view(OUTPUTS, INPUTS)
    return torch.where(codes & 127 == 127, 0, codes).view(torch.float8_e4m3fn)


def weights() -> dict[str, GroupedWeight]:
    """One of each kind, with codes and scales at their ends."""
    torch.manual_seed(0)

    def small(*sizes: int, low: int = -128, high: int = 127) -> Tensor:
        return torch.randint(low, high + 1, sizes).to(torch.int8)

    four, eight = torch.randint(0, 16, (OUTPUTS, INPUTS), dtype=torch.uint8), small(OUTPUTS, INPUTS)
    eight[:2], eight[2] = -128, 127
    each, whole = torch.rand(OUTPUTS, 3).half(), torch.rand(OUTPUTS, 1).half()
    return {
        "scale": GroupedWeight(four, 32, each),
        "low": GroupedWeight(four, 32, each, low=torch.rand(OUTPUTS, 3).half() * 10),
        "zero": GroupedWeight(four, 32, each, fine_low=small(OUTPUTS, 3, low=0, high=16)),
        "fine": GroupedWeight(four, 32, whole, small(OUTPUTS, 3), whole * 2, small(OUTPUTS, 3, low=0, high=63)),
        "table": GroupedWeight(four, 32, each, table=TABLE),
        "table, fine": GroupedWeight(four, 16, whole, small(OUTPUTS, 6), table=TABLE),
        "floats": GroupedWeight(four, 32, each, table=FLOATS),
        "floats, wide": GroupedWeight(four, 96, torch.rand(OUTPUTS, 1) * 1e-6, table=FLOATS),
        "powers": GroupedWeight(four, 32, torch.randint(120, 133, (OUTPUTS, 3)).to(torch.uint8), table=TABLE),
        "least powers": GroupedWeight(four, 32, torch.tensor([[0, 1, 2]] * OUTPUTS).to(torch.uint8), table=TABLE),
        "bytes": GroupedWeight(of_bytes(), 32, torch.rand(OUTPUTS, 3)),
        "eight": GroupedWeight(eight, 32, each),
        "eight, wide": GroupedWeight(eight, 32, torch.rand(OUTPUTS, 3) * 1e6),
        "zero, wide": GroupedWeight(four, 32, torch.rand(OUTPUTS, 3), fine_low=small(OUTPUTS, 3, low=0, high=16)),
        "eight, zero": GroupedWeight(eight, 96, whole, fine_low=small(OUTPUTS, 1)),
        "eight, fine": GroupedWeight(eight, 16, torch.rand(OUTPUTS, 2).half(), small(OUTPUTS, 6)),
        "eight, low": GroupedWeight(eight, 32, whole, small(OUTPUTS, 3), whole, small(OUTPUTS, 3)),
        "order": GroupedWeight(four, 32, each, order=torch.randperm(INPUTS)),
    }


def multiplied(weight: GroupedWeight) -> Tensor:
    """The weight (out, in) as the kernel has it: floats of tables are rounded to 16 bits."""
    if weight.table is None or not weight.table.is_floating_point():
        return weight.dequantized()
    unit = weight.table.abs().max() / (127 * 256)
    return replace(weight, table=(weight.table / unit).round() * unit).dequantized()


def test_tables_are_rounded_far_less_than_inputs() -> None:
    weight = weights()["floats"]
    step = weight.scale.float().repeat_interleave(32, 1) * FLOATS.abs().max() / (127 * 256)
    assert ((multiplied(weight) - weight.dequantized()).abs() <= step / 2 * (1 + 1e-3)).all()


@pytest.mark.parametrize("kind", [*weights()])
def test_kinds_of_weights(kind: str) -> None:
    weight = weights()[kind]
    layer = GroupedLinear(nn.Linear(INPUTS, OUTPUTS, bias=False), weight)
    assert torch.equal(layer.dequantized(), weight.dequantized())
    back = layer.grouped()
    assert torch.equal(back.codes.view(torch.uint8), weight.codes.view(torch.uint8))
    assert (back.group, back.span, back.bits) == (weight.group, weight.span, weight.bits)
    x = torch.randn(3, INPUTS)
    by_group = x if weight.order is None else x[:, weight.order]
    rounded, taken = taken_inputs(by_group, weight), multiplied(weight)
    plain = taken if weight.order is None else taken[:, weight.order]
    assert off(layer(x), rounded @ plain.T) < SUMS
    compiled = torch.ops.transept.grouped_product(layer.columns(x), *layer.operands())
    assert torch.equal(compiled, layer(x))


def test_half_of_a_table_is_what_the_formula_says() -> None:
    """Against the formula written out, once more without the class's own way of unpacking."""
    weight = weights()["fine"]
    assert weight.low is not None
    assert weight.fine_scale is not None
    assert weight.fine_low is not None
    for row, column in ((0, 0), (20, 95), (7, 33)):
        group = column // 32
        scale = weight.scale[row, 0].float() * weight.fine_scale[row, group]
        low = weight.low[row, 0].float() * weight.fine_low[row, group]
        assert weight.dequantized()[row, column] == weight.codes[row, column].float() * scale - low


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_inputs_that_are_no_numbers_are_not_lost(value: float) -> None:
    layer = GroupedLinear.of_four_bits(nn.Linear(64, 16))
    x = torch.randn(2, 64)
    x[1, 40] = value
    out = layer(x)
    assert out[0].isfinite().all()
    assert not out[1].isfinite().any()


SETS = {"plain": [], "avx2": ["-mavx2", "-mfma", "-mf16c"], "native": ["-march=native"]}


def build(source: Path, instructions: str, made: Path) -> ctypes.CDLL:
    """A library of ours with these instructions alone."""
    options = ["-O2", "-shared", "-fPIC", "-fopenmp", "-std=c++17", *SETS[instructions]]
    subprocess.run(["g++", *options, str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture(scope="module", params=SETS)
def function(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernel, built for other instructions."""
    if request.param == "avx2" and "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor has no AVX2")
    found = build(SOURCE, request.param, tmp_path_factory.mktemp("kernel") / "grouped.so").transept_grouped
    found.restype, found.argtypes = grouped._kernel().restype, grouped._kernel().argtypes
    return found


@pytest.mark.skipif(shutil.which("g++") is None, reason="the kernel is built by g++, which is missing")
@pytest.mark.parametrize("kind", [*weights()])
def test_every_set_of_instructions_gives_the_same(function: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights()[kind]
    layer = GroupedLinear(nn.Linear(INPUTS, OUTPUTS, bias=False), weight)
    monkeypatch.setattr(grouped, "_kernel", lambda: function)
    order = torch.arange(INPUTS) if weight.order is None else weight.order
    for rows in (1, 2, 3, 5, 8, 15, 70):
        x = torch.randn(rows, INPUTS)
        x[0, :16] = 127  # the ends of eight bits
        wanted = taken_inputs(x[:, order], weight) @ multiplied(weight)[:, order].T
        assert off(layer(x), wanted) < SUMS


@pytest.mark.skipif(shutil.which("g++") is None, reason="the kernel is built by g++, which is missing")
@pytest.mark.parametrize("kind", ["fine", "floats", "powers", "bytes", "eight, zero"])
@pytest.mark.parametrize("built", [True, False])
def test_rows_are_multiplied_by_weights_of_their_own(
    function: Any, kind: str, built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouped, "_kernel", lambda: function if built else None)
    one = weights()[kind]
    several = [one.map_rows(lambda part, by=by: part.roll(by, 0)) for by in range(4)]
    experts = GroupedExperts.of(several, torch.Size((4, OUTPUTS, INPUTS)), inputs_first=False)
    assert experts is not None
    for ends in ([2, 2, 7, 8], [0, 0, 0, 1], [70, 71, 71, 71], [0, 0, 0, 0]):
        x = torch.randn(ends[-1], INPUTS)
        rows = taken_inputs(x, one) if built else x
        parts = zip(rows.tensor_split(ends[:-1]), several, strict=True)
        wanted = torch.cat([part @ (multiplied(own) if built else own.dequantized()).T for part, own in parts])
        out = experts(x, torch.tensor(ends))
        assert out.shape == wanted.shape
        assert not len(x) or off(out, wanted) < SUMS


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CXX", "no-such-compiler")
    compiler.library.cache_clear()
    grouped._kernel.cache_clear()
    yield
    compiler.library.cache_clear()
    grouped._kernel.cache_clear()


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_it_takes_longer() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 48), torch.randn(3, 64)
    packed = GroupedLinear.of_four_bits(layer)
    with pytest.warns(TranseptWarning, match=r"no C\+\+ compiler"):
        out = packed(x)
    assert off(out, nn.functional.linear(x, packed.dequantized(), layer.bias)) < SUMS


@pytest.mark.skipif(shutil.which("g++") is None, reason="the kernel is built by g++, which is missing")
def test_libraries_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "seven.cpp"
    source.write_text('extern "C" int seven() { return 7; }')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiler.library.cache_clear()
    found = compiler.library(source)
    assert found is not None
    assert found.seven() == 7
    folder = tmp_path / "cache" / "transept" / "kernels"
    assert folder.stat().st_mode & 0o077 == 0
    assert len([*folder.iterdir()]) == 1
    monkeypatch.setattr(compiler, "_build", None)  # which is not asked again
    compiler.library.cache_clear()
    assert compiler.library(source) is not None
    folder.chmod(0o777)  # where others may write nothing is loaded from
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "_build", lambda *arguments: (_ for _ in ()).throw(OSError("built anew")))
        compiler.library.cache_clear()
        with pytest.warns(TranseptWarning, match="built anew"):
            assert compiler.library(source) is None
    compiler.library.cache_clear()
    broken = tmp_path / "broken.cpp"
    broken.write_text("this is no C++")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.warns(TranseptWarning, match="error"):
        assert compiler.library(broken) is None


def test_models_compute_with_the_rounded_weights() -> None:
    """But for the inputs of products, of which each is rounded to eight bits."""
    model = make("LlamaForCausalLM", hidden_size=64, intermediate_size=96, vocab_size=99)
    ids = torch.randint(0, 99, (2, 7), generator=torch.Generator().manual_seed(0))
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for module in plain.modules():
            if isinstance(module, nn.Linear) and module is not plain.lm_head:
                module.weight.copy_(GroupedLinear.of_four_bits(module).dequantized())
        quantize(model, 4)
        assert off(model(input_ids=ids).logits, plain(input_ids=ids).logits) < 0.05
    assert isinstance(model.lm_head, GroupedLinear)
    assert model.lm_head.bits == 8
    assert sum(isinstance(module, GroupedLinear) for module in model.modules()) > 4
    one = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False)
    assert torch.equal(one, model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, use_cache=False))
    with pytest.raises(InputError, match="rounded to few bits"):
        model.state_dict()


def test_pipelines_take_the_type(tmp_path: Path) -> None:
    save(tmp_path, "GPT2LMHeadModel")
    writer = transept.pipeline("text-generation", model=str(tmp_path), dtype="int4")
    assert any(isinstance(module, GroupedLinear) for module in writer.model.modules())
    assert writer("a", max_new_tokens=3)


def test_what_cannot_be_is_said() -> None:
    model = make("LlamaForCausalLM")
    with pytest.raises(InputError, match="4 or 8 bits, not 3"):
        quantize(model, 3)
    with pytest.raises(InputError, match="a group cannot have 12 numbers"):
        quantize(model, 4, 12)
