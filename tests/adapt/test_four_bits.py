"""Weights of four bits: the kernel computes what its definition says, with every set of instructions that is built for."""

from __future__ import annotations

import copy
import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transept
from tests.adapt.test_pack import make
from tests.pipelines.text_models import save
from transept.adapt import four_bits
from transept.adapt.four_bits import SOURCE, FourBitLinear, rounded_to_four_bits
from transept.adapt.quantize import quantize
from transept.environment import compiler
from transept.errors import InputError, TranseptWarning

# Both add products in float32, in other orders.
SUMS = 1e-5


def rounded_inputs(x: Tensor, group: int) -> Tensor:
    """Inputs as the kernel rounds them: eight bits for each group."""
    groups = nn.functional.pad(x, (0, -x.shape[1] % group)).unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    step = groups.abs().amax(-1, keepdim=True) / 127
    rounded: Tensor = (groups / torch.where(step == 0, 1, step)).round() * step
    return rounded.flatten(1)[:, : x.shape[1]]


def off(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max() / other.detach().abs().max())


@pytest.mark.parametrize("group", [8, 32, 128])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 256), (37, 100), (1, 8), (16, 384)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 11])
def test_products(group: int, outputs: int, inputs: int, rows: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs)
    packed = FourBitLinear(layer, group)
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
    found, steps = rounded_to_four_bits(weight)
    assert torch.equal(((found.float() - 8).view(5, 2, 32) * steps[..., None].float()).flatten(1), weight)
    assert rounded_to_four_bits(torch.zeros(2, 32))[1].eq(0).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("flags", [[], ["-mavx2", "-mfma", "-mf16c"], ["-march=native"]], ids=["plain", "avx2", "native"])
@pytest.mark.parametrize("lessened", [False, True])
def test_every_set_of_instructions_gives_the_same(tmp_path: Path, flags: list[str], lessened: bool) -> None:
    if "-mavx2" in flags and "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor has no AVX2")
    made = tmp_path / "four_bits.so"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-fopenmp", *flags, str(SOURCE), "-o", str(made)], check=True)
    function = ctypes.CDLL(str(made)).transept_four_bits
    function.restype, function.argtypes = None, [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 4 + [ctypes.c_int32]
    torch.manual_seed(0)
    outputs, inputs, group = 21, 96, 32
    codes, scales = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8), torch.rand(outputs, 3).half()
    low = torch.rand(outputs, 3).half() * 10 if lessened else None
    laid = [four_bits._together(codes), four_bits._in_blocks(scales), *([] if low is None else [four_bits._in_blocks(low)])]
    for rows in range(1, 7):
        x = torch.randn(rows, inputs)
        out, room = torch.full((rows, outputs), torch.nan), torch.empty(rows * (inputs + 8 * 3), dtype=torch.uint8)
        places = [each.data_ptr() for each in laid] + [0] * (low is None)
        function(x.data_ptr(), *places, out.data_ptr(), room.data_ptr(), rows, outputs, inputs, group, 2)
        less = 8 * scales.float() if low is None else low.float()
        weight = (codes.float().view(outputs, 3, group) * scales.float()[..., None] - less[..., None]).flatten(1)
        assert off(out, rounded_inputs(x, group) @ weight.T) < SUMS


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CXX", "no-such-compiler")
    compiler.library.cache_clear()
    four_bits._kernel.cache_clear()
    yield
    compiler.library.cache_clear()
    four_bits._kernel.cache_clear()


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_it_takes_longer() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 48), torch.randn(3, 64)
    packed = FourBitLinear(layer)
    with pytest.warns(TranseptWarning, match=r"no C\+\+ compiler"):
        out = packed(x)
    assert off(out, nn.functional.linear(x, packed.dequantized(), layer.bias)) < SUMS


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
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
                module.weight.copy_(FourBitLinear(module).dequantized())
        quantize(model, 4)
        assert off(model(input_ids=ids).logits, plain(input_ids=ids).logits) < 0.05
    assert isinstance(model.lm_head, nn.Module)
    assert not isinstance(model.lm_head, FourBitLinear)  # the output layer has eight bits
    assert sum(isinstance(module, FourBitLinear) for module in model.modules()) > 4
    one = model.generate(input_ids=ids, max_new_tokens=6, do_sample=False)
    assert torch.equal(one, model.generate(input_ids=ids, max_new_tokens=6, do_sample=False, use_cache=False))
    with pytest.raises(InputError, match="rounded to few bits"):
        model.state_dict()


def test_pipelines_take_the_type(tmp_path: Path) -> None:
    save(tmp_path, "GPT2LMHeadModel")
    writer = transept.pipeline("text-generation", model=str(tmp_path), dtype="int4")
    assert any(isinstance(module, FourBitLinear) for module in writer.model.modules())
    assert writer("a", max_new_tokens=3)


def test_what_cannot_be_is_said() -> None:
    model = make("LlamaForCausalLM")
    with pytest.raises(InputError, match="4 or 8 bits, not 3"):
        quantize(model, 3)
    with pytest.raises(InputError, match="a group cannot have 12 numbers"):
        quantize(model, 4, 12)
