"""Tensor parallelism (Shoeybi et al. 2019): several processes compute each layer together, by PyTorch's styles.

All of them read the same rows and give the same outputs. With sequence parallelism (Korthikanti et al. 2022), what is
between the split layers (norms, dropout) is split by positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from transept.core.model import Backbone, Model
from transept.errors import InputError, UnsupportedError
from transept.layers.attention import Attention, FusedAttention
from transept.layers.block import Block
from transept.layers.context import Attended, Context
from transept.layers.links import parts
from transept.layers.mlp import MLP, FusedGatedMLP, GatedMLP
from transept.objectives.classification import Entropy, summed_entropy, widened
from transept.parallel.tensor import plan as plans
from transept.parallel.tensor.plan import Plan
from transept.parallel.tensor.styles import (
    WHOLE,
    AnyRows,
    ColumnsOfBlocks,
    ExpertsParallel,
    LogitsParallel,
    OwnParameters,
    SharedHeads,
    distributed,
    placed,
    share_parameters,
    split,
    whole,
)


def tensor_parallel(
    model: Model, mesh: DeviceMesh, plan: Plan | Mapping[str, str] | str | None = "auto", *, sequence: bool = False
) -> Plan:
    """Split a model between the processes of a mesh of one axis, in place; all of them call this with the same model.

    Args:
        model: a model that has its weights; those of the first process count.
        mesh: the processes, such as ``DistributedConfig(tp_size=2).layout(2).mesh("cpu")["tp"]``.
        plan: how, or rules for it (see :meth:`Plan.of`).
        sequence: split by positions what lies between the split layers.

    Returns:
        The plan, whose ``explain`` says what is where.

    Raises:
        ConfigError: as of :meth:`Plan.of`.
        InputError: the model is split already, or has no weights.
        UnsupportedError: positions cannot be split in this family.
    """
    if any(isinstance(tensor, DTensor) for tensor in model.parameters()):
        raise InputError("the model is split between processes already.", hint="Load it again to split it otherwise.")
    if model.device.type == "meta":
        what = "the model has no weights yet (it is on the meta device)."
        raise InputError(what, hint="Load or initialise it first.")
    plan = plan if isinstance(plan, Plan) else Plan.of(model, mesh.size(), plan)
    if sequence:
        check_sequence(model)
    if mesh.size() > 1:
        apply(model, mesh, plan, sequence=sequence)
        from_first(mesh, (tensor for tensor in model.state_dict().values() if not isinstance(tensor, DTensor)))
    return plan


def apply(model: Model, mesh: DeviceMesh, plan: Plan, *, sequence: bool = False) -> None:
    """Put a plan into effect; parameters that are distributed ones already keep their values."""
    modules = {str(name): module for name, module in model.named_modules(remove_duplicate=False)}
    # Positions are split within the blocks alone.
    blocks = [block for stack in model.stacks for block in stack.layers] if sequence else []
    inner = {module for block in blocks for module in block.modules()}
    layer_of = {part: modules[layer] for layer, inside in plan.layers.items() for part in inside.values()}
    for name, style in plan.styles.items():
        own = {leaf: f"{name}.{leaf}" for leaf in dict(modules[name].named_parameters(recurse=False))}
        forms = {
            leaf: placed(axis, plan.blocks_of(path)) for leaf, path in own.items() if (axis := plan.axis(path)) is not None
        }
        how = _style(style, model, layer_of.get(name), modules[name] in inner, forms, plan.blocks_of(f"{name}.weight"))
        parallelize_module(modules[name], mesh, how)
    for block in (module for module in modules.values() if isinstance(module, Block)):
        block.is_split = True
    for name, module in modules.items():
        roles = plan.layers.get(name, {})
        is_split = any(roles.get(role) in plan.styles for role in ("o_proj", "down_proj"))
        if isinstance(module, Attention) and is_split:
            module.attend = partial(_attend, module, mesh)  # type: ignore[method-assign]
            if isinstance(module, FusedAttention):
                module.sizes = tuple(size // mesh.size() for size in module.sizes)
        if isinstance(module, MLP) and is_split:
            module.dropout = PartDropout(module.dropout, mesh)
        # Where a layer's input goes into its projections alone, their gradients for it are added up at once.
        attends = getattr(type(module), "whole", None) is Attention.whole and not getattr(module, "cross", False)
        widens = getattr(type(module), "whole", None) in (MLP.whole, GatedMLP.whole, FusedGatedMLP.whole)
        if is_split and (attends or widens):
            module.register_forward_pre_hook(partial(_read, mesh))
    if sequence:
        for stack in model.stacks:
            _split_positions(stack.layers, mesh)
    model.tie_weights()
    for parameter in {id(p): p for p in model.parameters() if isinstance(p, DTensor)}.values():
        parameter.register_hook(partial(_as_parameter, parameter.placements))  # type: ignore[no-untyped-call]
    model.__dict__.update(tp_size=mesh.size(), device_mesh=mesh, parallel_plan=plan)


def _style(style: str, model: Model, layer: Any, sequence: bool, forms: Mapping[str, Placement], blocks: int) -> ParallelStyle:
    """PyTorch's style, or one of ours, of a part of a ``layer``; with ``sequence`` its positions are split.

    ``forms`` say how its parameters are split, and ``blocks`` how many things of one size it gives.
    """
    match style:
        case plans.COLUMNS:
            return ColumnsOfBlocks(forms, blocks)
        case plans.ROWS:
            options: dict[str, Any] = {"output_layouts": Shard(1), "use_local_output": False} if sequence else {}
            return AnyRows(forms, **options)
        case plans.VOCABULARY:
            return RowwiseParallel(input_layouts=Replicate())
        case plans.LOGITS:  # a bias of all tokens may be added to logits, which must be whole then
            return LogitsParallel(keeps_apart=getattr(model, "final_bias", None) is None)
        case plans.HELD:
            return OwnParameters(forms)
        case plans.EXPERTS:
            return ExpertsParallel(forms)
        case plans.BY_HEAD:
            return SequenceParallel(sequence_dim=1, use_local_output=True)  # whose axis is that of heads here
        case _:
            return SharedHeads(layer.heads, layer.kv_heads)


def _read(mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return distributed(inputs[0], mesh).redistribute(placements=WHOLE), *inputs[1:]


def _as_parameter(placements: Any, gradient: Any) -> Any:
    """A gradient in its parameter's parts: PyTorch leaves those of embeddings whole, and of norms to be added up."""
    return gradient.redistribute(placements=placements) if gradient.placements != placements else gradient


@torch.no_grad()
def from_first(mesh: DeviceMesh, tensors: Iterable[Tensor]) -> None:
    """Give all processes of a mesh the first one's values of tensors that each has whole."""
    group = mesh.get_group()
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        dist.broadcast(tensor.data, src=dist.get_global_rank(group, 0), group=group)


def check_sequence(model: Model) -> None:
    """Refuse to split positions of a model whose layers are not the standard blocks (``UnsupportedError``)."""
    for stack in model.stacks:
        layers = list(getattr(stack, "layers", ()))
        others = [layer for layer in layers if not isinstance(layer, Block)]
        drops = [drop for layer in layers if isinstance(layer, Block) for drop in (layer.dropout, layer.mlp_dropout)]
        others += [drop for drop in drops if not isinstance(drop, nn.Dropout)]
        if others or not layers or type(stack).run is not Backbone.run:
            kind = type(others[0] if others else stack).__name__
            what = f"positions of {type(model).__name__} cannot be split"
            hint = "Leave out `enable_sequence_parallel`."
            raise UnsupportedError(f"{what}: it has {kind}, and no standard blocks alone.", hint=hint)


def _split_positions(layers: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Let states be split by positions from the first block to the last, and be whole where positions are mixed."""
    blocks = list(layers)
    for block in blocks:
        for name, part in parts(block).items():
            if name in ("self_attn", "cross_attn", "mlp"):
                part.register_forward_pre_hook(_gather_first)
                part.register_forward_hook(partial(_scatter, mesh))
            elif isinstance(part, nn.Dropout):
                setattr(block, name, PartDropout(part, mesh))
            else:
                for module in part.modules():
                    share_parameters(module, mesh, 0)
        block.register_forward_pre_hook(partial(_enter_block, mesh))
    blocks[-1].register_forward_hook(lambda module, inputs, output: whole(output))


def _gather_first(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x = inputs[0]
    is_read = isinstance(x, DTensor) and x.placements == WHOLE  # by `_read`, whose hook comes before
    return inputs if is_read else (whole(x), *inputs[1:])


def _scatter(mesh: DeviceMesh, module: nn.Module, inputs: Any, output: Any) -> Any:
    """States by positions; those of attention stand before its weights."""
    if isinstance(output, tuple):
        return _scatter(mesh, module, inputs, output[0]), *output[1:]
    return output if isinstance(output, DTensor) else split(output, mesh, 1)


def _enter_block(mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The states by positions; those that are to be shown are whole."""
    x, ctx, *rest = inputs
    if ctx.hidden_states:
        ctx.hidden_states[-1] = whole(ctx.hidden_states[-1])
    return _scatter(mesh, module, None, x), ctx, *rest


class _SplitEntropy(torch.autograd.Function):
    """The sum of cross-entropies of logits (N, C) that are split by classes, by PyTorch's ``loss_parallel``.

    The gradient is made in the forward pass, since the other one would have to run within ``loss_parallel`` too.
    """

    @staticmethod
    def forward(ctx: Any, logits: DTensor, labels: Tensor) -> Tensor:
        with torch.enable_grad(), loss_parallel():
            leaf = logits.detach().requires_grad_()
            loss: Any = F.cross_entropy(widened(leaf), labels, reduction="sum")
            ctx.gradient = torch.autograd.grad(loss, leaf)[0] if logits.requires_grad else None
        return loss.detach().to_local()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        saved = ctx.gradient
        return saved * distributed(gradient[0].to(saved.dtype), saved.device_mesh), None


@summed_entropy.register
def _(logits: DTensor, labels: Tensor, smoothing: float) -> Tensor:
    """Without smoothing, which ``loss_parallel`` does not know, no process has all logits."""
    if smoothing or len(labels) == 0:
        return Entropy.apply(whole(logits), labels, smoothing)  # type: ignore[no-untyped-call, no-any-return]
    return _SplitEntropy.apply(logits, labels)  # type: ignore[no-untyped-call, no-any-return]


def _attend(
    layer: Attention, mesh: DeviceMesh, q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool, ctx: Context
) -> Attended:
    """Attention whose heads are split takes its part of masks (B, H, T, S), and shows the weights of all heads.

    All processes make biases of scores, learned or not, for all heads.
    """
    if mask is not None and mask.shape[1] == layer.heads:
        mask = split(mask, mesh, 1).to_local()
    with apart(mesh) if layer.training and layer.dropout > 0 else nullcontext():
        out, weights = type(layer).attend(layer, q, k, v, mask, causal, ctx)
    if weights is not None and (ctx.attentions is not None or ctx.cross_attentions is not None):
        weights = whole(distributed(weights, mesh, (Shard(1),)))
    return out, weights


@contextmanager
def apart(mesh: DeviceMesh) -> Iterator[None]:
    """Inside, each process draws its own random numbers; behind it all of them draw the same again."""
    seed = int(torch.randint(2**48, ()))  # the same on all, which have drawn alike until now
    devices: Sequence[int] = [torch.cuda.current_device()] if mesh.device_type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed + mesh.get_local_rank())
        yield


class PartDropout(nn.Dropout):
    """Dropout of what is in parts, each of which has a mask of its own."""

    def __init__(self, like: nn.Dropout, mesh: DeviceMesh) -> None:
        super().__init__(like.p)
        self.mesh = mesh
        self.train(like.training)

    def forward(self, input: Any) -> Tensor:
        if not self.training or self.p == 0:
            return input  # type: ignore[no-any-return]
        with apart(self.mesh):
            if not isinstance(input, DTensor):
                return super().forward(input)
            options: dict[str, Any] = {"run_check": False, "shape": input.shape, "stride": input.stride()}
            return DTensor.from_local(super().forward(input.to_local()), self.mesh, input.placements, **options)
