"""Tensor parallelism (Shoeybi et al. 2019): several processes compute each layer together, by PyTorch's own styles.

All of them read the same rows and give the same outputs. With sequence parallelism (Korthikanti et al. 2022) what lies
between the split layers, norms and dropout, is split by positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from transept.core.model import Backbone, Model
from transept.errors import InputError, UnsupportedError
from transept.layers.attention import Attention
from transept.layers.block import Block
from transept.layers.mlp import MLP, GatedMLP
from transept.parallel.tensor import plan as plans
from transept.parallel.tensor.plan import Plan
from transept.parallel.tensor.styles import (
    WHOLE,
    ExpertsParallel,
    LogitsParallel,
    PartDropout,
    SharedHeads,
    attend_by_parts,
    share_parameters,
    split,
    whole,
)


def tensor_parallel(
    model: Model, mesh: DeviceMesh, plan: Plan | Mapping[str, str] | str | None = "auto", *, sequence: bool = False
) -> Plan:
    """Split a model between the processes of a mesh of one axis, in place; all of them call this with the same model.

    The values of the first process count.

    Args:
        model: a model that has its weights.
        mesh: the processes, such as ``DistributedConfig(tp_size=2).layout(2).mesh("cpu")["tp"]``.
        plan: how, or rules for it (see :meth:`Plan.of`).
        sequence: split by positions what lies between the split layers.

    Returns:
        The plan, whose ``explain`` tells what is where.

    Raises:
        ConfigError: as of :meth:`Plan.of`.
        InputError: the model is split already, or has no weights.
        UnsupportedError: positions cannot be split in this family.
    """
    if any(isinstance(tensor, DTensor) for tensor in model.parameters()):
        raise InputError("the model is split between processes already.", hint="Load it again to split it otherwise.")
    if model.device.type == "meta":
        raise InputError("the model has no weights yet (it is on the meta device).", hint="Load or initialise it first.")
    found = plan if isinstance(plan, Plan) else Plan.of(model, mesh.size(), plan)
    if sequence:
        check_sequence(model)
    if mesh.size() > 1:
        apply(model, mesh, found, sequence=sequence)
        from_first(mesh, (tensor for tensor in model.state_dict().values() if not isinstance(tensor, DTensor)))
    return found


def apply(model: Model, mesh: DeviceMesh, plan: Plan, *, sequence: bool = False) -> None:
    """Put a plan into effect; parameters that are distributed ones already keep their values."""
    modules = {str(name): module for name, module in model.named_modules(remove_duplicate=False)}
    heads = {name: plans.heads_of(m, "q_proj") for name, m in modules.items() if isinstance(m, Attention)}
    # Positions are split within the blocks alone.
    inner = {id(m) for stack in model.stacks for block in stack.layers for m in block.modules()} if sequence else set()
    for name, style in plan.styles.items():
        split_here = id(modules[name]) in inner
        parallelize_module(modules[name], mesh, _style(style, modules, name, split_here, apart=not _shifts_logits(model)))
    for name, module in modules.items():
        if isinstance(module, Attention) and f"{name}.q_proj" in plan.styles:
            attend_by_parts(module, mesh, heads[name])
        if isinstance(module, MLP) and f"{name}.up_proj" in plan.styles:
            module.dropout = PartDropout(module.dropout, mesh)
        if _reads_once(module) and {f"{name}.q_proj", f"{name}.up_proj"} & plan.styles.keys():
            module.register_forward_pre_hook(partial(_read, mesh))
    if sequence:
        for stack in model.stacks:
            _split_positions(stack.layers, mesh)
    model.tie_weights()
    for parameter in {id(p): p for p in model.parameters() if isinstance(p, DTensor)}.values():
        parameter.register_hook(partial(_as_parameter, parameter.placements))  # type: ignore[no-untyped-call]
    model.__dict__.update(tp_size=mesh.size(), device_mesh=mesh, parallel_plan=plan)


def _style(style: str, modules: Mapping[str, nn.Module], name: str, sequence: bool, apart: bool) -> ParallelStyle:
    """PyTorch's style, or one of ours, for a name of one."""
    if style == plans.SHARED_HEADS:
        layer: Any = modules[name.rpartition(".")[0]]
        return SharedHeads(*(plans.heads_of(layer, part) for part in ("q_proj", "k_proj")))
    rows: dict[str, Any] = {"output_layouts": Shard(1), "use_local_output": False} if sequence else {}
    made: dict[str, Any] = {
        plans.COLUMNS: ColwiseParallel,
        plans.ROWS: partial(RowwiseParallel, **rows),
        plans.VOCABULARY: partial(RowwiseParallel, input_layouts=Replicate()),
        plans.LOGITS: partial(LogitsParallel, keeps_apart=apart),
        plans.EXPERTS: partial(ExpertsParallel, plans.AXES[plans.EXPERTS]),
        plans.BY_HEAD: partial(SequenceParallel, sequence_dim=1, use_local_output=True),  # whose axis is that of heads here
    }
    return made[style]()  # type: ignore[no-any-return]


def _reads_once(module: nn.Module) -> bool:
    """Whether a layer's input goes into its projections alone, so that their gradients for it can be added up at once."""
    attends = type(module).forward is Attention.forward and not getattr(module, "cross", False)
    return attends or type(module) in (MLP, GatedMLP)


def _read(mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x = inputs[0] if isinstance(inputs[0], DTensor) else DTensor.from_local(inputs[0], mesh, WHOLE, run_check=False)
    return x.redistribute(placements=WHOLE), *inputs[1:]


def _shifts_logits(model: nn.Module) -> bool:
    """Whether something of all tokens is added to logits, which must be whole then."""
    return getattr(model, "final_bias", None) is not None


def _as_parameter(placements: Any, gradient: Any) -> Any:
    """A gradient in the parts of its parameter: PyTorch leaves those of embeddings whole, and those of norms to be added up."""
    return gradient.redistribute(placements=placements) if gradient.placements != placements else gradient


@torch.no_grad()
def from_first(mesh: DeviceMesh, tensors: Iterable[Tensor]) -> None:
    """Give all processes of a mesh the first one's values of tensors that each has whole."""
    group = mesh.get_group()
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        dist.broadcast(tensor.data, src=dist.get_global_rank(group, 0), group=group)


# --- positions ----------------------------------------------------------------------------------------------------------


def check_sequence(model: Model) -> None:
    """Refuse to split positions of a model whose layers are not the standard blocks (``UnsupportedError``)."""
    for stack in model.stacks:
        layers = getattr(stack, "layers", ())
        other = next((layer for layer in layers if not isinstance(layer, Block)), None)
        drops = [part for layer in layers for part in (getattr(layer, "dropout", None), getattr(layer, "mlp_dropout", None))]
        other = other or next((part for part in drops if not isinstance(part, nn.Dropout)), None)
        own = type(stack).run is not Backbone.run or not len(layers)  # which goes through the layers in another way
        if other is not None or own:
            found = type(stack).__name__ if other is None else type(other).__name__
            what = f"positions of {type(model).__name__} cannot be split: it has {found}, and no standard blocks alone."
            raise UnsupportedError(what, hint="Leave out `enable_sequence_parallel`.")


def _split_positions(layers: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Let states be split by positions from the first block to the last one, and be whole where positions are mixed."""
    blocks = list(layers)
    for block in blocks:
        for name, part in block.named_children():
            if name in ("self_attn", "cross_attn", "mlp"):
                part.register_forward_pre_hook(_gather_first)
                part.register_forward_hook(partial(_scatter, mesh))
            elif isinstance(part, nn.Dropout):
                setattr(block, name, PartDropout(part, mesh))
            else:
                for module in part.modules():
                    share_parameters(module, mesh, lambda name: Replicate(), 0)
        block.register_forward_pre_hook(partial(_enter_block, mesh))
    blocks[-1].register_forward_hook(lambda module, inputs, output: whole(output))


def _gather_first(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    x = inputs[0]
    is_read = isinstance(x, DTensor) and x.placements == WHOLE  # by `_read`, whose hook comes before
    return inputs if is_read else (whole(x), *inputs[1:])


def _scatter(mesh: DeviceMesh, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output if isinstance(output, DTensor) else split(output, mesh, 1)


def _enter_block(mesh: DeviceMesh, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The states by positions; those that are to be shown are whole."""
    x, ctx, *rest = inputs
    if ctx.hidden_states:
        ctx.hidden_states[-1] = whole(ctx.hidden_states[-1])
    return _scatter(mesh, module, None, x), ctx, *rest
