"""Which part of each matrix a process holds in tensor parallelism (Shoeybi et al. 2019): one table for all families.

Its rules name modules as the layers that use them do, whatever the family. A matrix that is split by columns comes before one
that is split by rows, so that a feed-forward or an attention layer needs one sum over the processes. All processes hold
the whole of what cannot be split evenly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from transept.checkpoint.load import Loadable, Part
from transept.checkpoint.paths import matches
from transept.errors import ConfigError, nearest
from transept.layers.attention import Attention, ByHeadAttention, FusedAttention
from transept.layers.linear import Conv1D
from transept.layers.links import parts
from transept.layers.mlp import MLP
from transept.layers.moe import Experts

COLUMNS, ROWS, REPLICATED = "colwise", "rowwise", "replicated"
VOCABULARY, LOGITS, EXPERTS = "embedding_rowwise", "colwise_gather_output", "experts"
BY_HEAD, SHARED_HEADS, HELD = "by_head", "shared_heads", "held_bias"

# What attention makes of its input, and feed-forward layers of theirs.
PROJECTIONS, WIDENING = ("q_proj", "k_proj", "v_proj", "kv_proj", "qkv_proj"), ("gate_proj", "up_proj", "gate_up_proj")
# Ends of modules' names, as attention and feed-forward layers call them -> how they are split. The first rule that fits counts.
RULES = {
    **dict.fromkeys((*PROJECTIONS, *WIDENING), COLUMNS),
    **dict.fromkeys(("o_proj", "down_proj"), ROWS),
    **dict.fromkeys(("q_norm", "k_norm", "act_fn"), BY_HEAD),  # whose weights all processes hold, and add up their gradients
    "embed_tokens": VOCABULARY,
    **dict.fromkeys(("lm_head", "lm_head.decoder", "lm_head.out_proj"), LOGITS),
    "experts": EXPERTS,
}
# Styles -> the axis along which each parameter is split; all processes hold the whole of the others.
AXES: dict[str, dict[str, int]] = {
    COLUMNS: {"weight": 0, "bias": 0},
    LOGITS: {"weight": 0, "bias": 0},
    ROWS: {"weight": 1},
    HELD: {"bias": 0},  # which is a decoder's too
    VOCABULARY: {"weight": 0},
    EXPERTS: {"gate_up_proj": 1, "down_proj": 2},  # the columns and rows of every expert
}
# Layers that give several things of one size one behind the other, such as queries, keys and values, each of which is split.
BLOCKS = {"qkv_proj": 3, "kv_proj": 2, "gate_up_proj": 2}
KINDS: dict[str, tuple[type[nn.Module], ...]] = dict.fromkeys((COLUMNS, ROWS), (nn.Linear, Conv1D))
KINDS |= {LOGITS: (nn.Linear,), VOCABULARY: (nn.Embedding,), EXPERTS: (Experts,)}
# What people may ask for by name; the others follow from these.
STYLES = (*KINDS, REPLICATED)


@dataclass
class Plan:
    """How a model is split between processes.

    Args:
        size: number of processes.
        styles: names of the modules that are split, or that are used by parts -> how (see ``AXES``).
        shapes: names of all parameters and buffers -> their whole shapes.
        item_sizes: the same -> bytes a number.
        blocks: names of modules that give several things of one size, or of parameters -> how many (see ``BLOCKS``).
        turned: names of modules whose weights are (in, out).
        whole: names of modules that could have been split -> why they are not.
        layers: names of layers of attention and feed-forward ones -> their own names for their parts -> the names of these.
    """

    size: int
    styles: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    item_sizes: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    turned: set[str] = field(default_factory=set)
    whole: dict[str, str] = field(default_factory=dict)
    layers: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Loadable, size: int, rules: Mapping[str, str] | str | None = "auto") -> Plan:
        """The plan for a model, which may be on the meta device.

        Args:
            model: a model with its own layers, not yet split.
            size: number of processes.
            rules: ``"auto"``, or names of modules (``"q_proj"``, ``"layers.*.mlp.up_proj"``) -> styles, which count
                before the rules of this module: one of ``STYLES``.

        Raises:
            ConfigError: more processes than heads; layers that were quantized or have adapters; a name that no module
                has; a style that does not exist, or does not fit the module; layers of which only one half is split.
        """
        if not isinstance(rules, Mapping) and rules not in (None, "auto"):
            raise ConfigError(f"`tp_plan` is 'auto' or a mapping of names and styles, not {rules!r:.60}.")
        replaced = dict(rules) if isinstance(rules, Mapping) else {}
        modules = {str(name): module for name, module in model.named_modules(remove_duplicate=False)}
        names = model.checkpoint_names()
        spellings = {name: (name, names.dialect(name)) for name in modules}
        _check_rules(replaced, [spelled for both in spellings.values() for spelled in both])
        paths = {id(module): name for name, module in modules.items()}
        plan = cls(size)
        for name, module in modules.items():
            if isinstance(module, Attention | MLP):
                plan.layers[name] = {role: paths[id(part)] for role, part in parts(module).items()}
                plan.blocks |= {plan.layers[name][role]: count for role, count in _blocks(module).items()}
            elif isinstance(module, Experts):
                plan.blocks[f"{name}.gate_up_proj"] = BLOCKS["gate_up_proj"]
        plan.turned = {name for name, module in modules.items() if isinstance(module, Conv1D)}
        plan._check_layers(modules)
        for name, tensor in model.state_dict(keep_vars=True).items():
            plan.shapes[name], plan.item_sizes[name] = tuple(tensor.shape), tensor.element_size()
        styles = {name: _style(spellings[name], module, replaced) for name, module in modules.items()}
        plan.styles = {name: style for name, style in styles.items() if style != REPLICATED}
        plan._settle_attention({name: m for name, m in modules.items() if isinstance(m, Attention)})
        plan._settle_feed_forward({name: m for name, m in modules.items() if isinstance(m, MLP)})
        inside = {part for layer in plan.layers.values() for part in layer.values()}
        for name in [name for name, style in plan.styles.items() if style in (COLUMNS, ROWS, BY_HEAD)]:
            if name not in inside:  # nothing would put its parts together again
                plan._keep_whole(name, [name], "it is no part of a layer that the plan knows")
        tied = names.tied
        for name, source in tied.items():
            holder, _, leaf = source.rpartition(".")
            if leaf == "bias" and plan.axis(name) is not None:
                plan.styles.setdefault(holder, HELD)
        while wrong := [pair for pair in tied.items() if plan.axis(pair[0]) != plan.axis(pair[1])]:
            for name in (end.rpartition(".")[0] for pair in wrong for end in pair):
                plan._keep_whole(name, [name], "it is tied to what is not split")
        return plan

    def _settle_attention(self, layers: dict[str, Attention]) -> None:
        """Split attention by heads: queries evenly, or not at all; keys and values that are fewer are shared."""
        size = self.size
        most = max((layer.heads for layer in layers.values()), default=size)
        if size > most:
            what = f"there are {size} tensor ranks, but attention has {most} heads, which cannot be split further."
            raise ConfigError(what, hint=f"Use `tp_size` of at most {most}.")
        for name, layer in layers.items():
            styles = {role: COLUMNS for role in PROJECTIONS if role in self.layers[name]} | {"o_proj": ROWS}
            why = f"{layer.heads} heads are not divisible by {size}" if layer.heads % size else None
            why = why if layer.heads_apart else "its heads have weights in common"
            if isinstance(layer, FusedAttention) and layer.kv_heads != layer.heads:
                why = "one product gives its queries, and keys of fewer heads"
            is_split = self._settle(name, styles, why)
            if is_split and layer.kv_heads % size:
                self.styles |= {self.layers[name][role]: SHARED_HEADS for role in ("k_proj", "v_proj")}
            elif not is_split:
                for role in ("q_norm", "k_norm"):
                    self.styles.pop(self.layers[name].get(role, ""), None)

    def _settle_feed_forward(self, layers: dict[str, MLP]) -> None:
        for name, layer in layers.items():
            inner = int(layer.down_proj.in_features)
            styles = {role: COLUMNS for role in WIDENING if role in self.layers[name]} | {"down_proj": ROWS}
            why = f"its inner size {inner} is not divisible by {self.size}" if inner % self.size else None
            if not self._settle(name, styles, why):
                self.styles.pop(self.layers[name].get("act_fn", ""), None)

    def _settle(self, layer: str, styles: Mapping[str, str], why: str | None) -> bool:
        """Whether a layer is split: all parts have their styles, or all are whole, as where there is a reason why."""
        parts = [self.layers[layer][role] for role in styles]
        planned = {role: self.styles.get(part, REPLICATED) for role, part in zip(styles, parts, strict=True)}
        if why or {*planned.values()} == {REPLICATED}:
            self._keep_whole(layer, parts, why or "the plan says so")
            return False
        if planned != styles:
            wrong, right = (", ".join(f"{part}: {style}" for part, style in s.items()) for s in (planned, styles))
            hint = f"Use {right}; or {REPLICATED!r} for all."
            raise ConfigError(f"the plan splits only a part of {layer} ({wrong}).", hint=hint)
        return True

    def _keep_whole(self, name: str, parts: list[str], why: str) -> None:
        for part in parts:
            self.styles.pop(part, None)
        self.whole[name] = why

    def _check_layers(self, modules: Mapping[str, nn.Module]) -> None:
        """Refuse projections that were replaced, or have something attached to them."""
        layers = [roles for name, roles in self.layers.items() if getattr(modules[name], "heads_apart", True)]
        for name in (name for layer in layers for role, name in layer.items() if RULES.get(role) in (COLUMNS, ROWS)):
            if not isinstance(module := modules[name], nn.Linear | Conv1D) or next(module.children(), None) is not None:
                kind = type(module).__name__
                what = f"{name} is {kind}, with something attached to it or in the place of a linear layer"
                hint = "Split models that are not quantized, and merge its adapters before that."
                raise ConfigError(f"{what}, and cannot be split.", hint=hint)

    def axis(self, name: str) -> int | None:
        """The axis along which a tensor is split, of our name; ``None`` where each process has all of it."""
        module, _, leaf = name.rpartition(".")
        axis = AXES.get(self.styles.get(module, REPLICATED), {}).get(leaf)
        if axis is None or (leaf == "bias" and self.blocks_of(name) > 1):  # which is small, and each takes its part of it
            return None
        return 1 - axis if module in self.turned and leaf == "weight" else axis

    def blocks_of(self, name: str) -> int:
        """How many equal blocks there are along that axis, each of which is split."""
        return self.blocks.get(name, self.blocks.get(name.rpartition(".")[0], 1))

    def part(self, name: str, rank: int) -> Part:
        """What of a tensor the process ``rank`` holds."""
        if (axis := self.axis(name)) is None:
            return Part()
        length = self.shapes[name][axis] // self.blocks_of(name)
        step = -(-length // self.size)
        start = min(rank * step, length)
        return Part((*(slice(None),) * axis, slice(start, min(start + step, length))), self.blocks_of(name))

    def local_shape(self, name: str, rank: int = 0) -> tuple[int, ...]:
        """The shape of what a process holds of a tensor."""
        return tuple(self.part(name, rank).of(torch.empty(self.shapes[name], device="meta")).shape)

    def bytes(self, rank: int = 0, tied: Mapping[str, str] | None = None) -> int:
        """How many bytes of tensors a process holds, those that are ``tied`` once."""
        return sum(self._bytes_of(name, rank) for name in self.shapes if name not in (tied or {}))

    def _bytes_of(self, name: str, rank: int = 0) -> int:
        return math.prod(self.local_shape(name, rank)) * self.item_sizes[name]

    def explain(self, model: Loadable) -> str:
        """A table of all tensors: names, styles, whole and local shapes, and the bytes of the first process.

        Layers that are alike have one line. What could have been split and is not comes after it, with the reason.
        """
        tied, sizes = model.checkpoint_names().tied, dict[tuple[str, ...], list[int]]()
        for name, shape in self.shapes.items():
            style = self.styles.get(name.rpartition(".")[0], REPLICATED)
            shapes = (" x ".join(map(str, lengths)) for lengths in (shape, self.local_shape(name)))
            pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
            row = (pattern, f"tied to {tied[name]}" if name in tied else style, *shapes)
            sizes.setdefault(row, []).append(0 if name in tied else self._bytes_of(name))
        rows: list[tuple[str, ...]] = [("name", "style", "shape", "on a rank", "bytes")]
        for row, (size, *others) in sizes.items():
            rows.append((*row, f"{1 + len(others)} x {size:,}" if others else f"{size:,}"))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        local, whole = (plan.bytes(tied=tied) for plan in (self, Plan(1, {}, self.shapes, self.item_sizes)))
        lines.append(f"{local:,} of {whole:,} bytes on the first of {self.size} ranks ({local / max(whole, 1):.0%})")
        lines += [f"whole on all ranks: {name} ({why})" for name, why in self.whole.items()]
        return "\n".join(lines)


def _blocks(layer: nn.Module) -> dict[str, int]:
    """A layer's own names of what gives several things of one size -> how many."""
    by_head = ("qkv_proj",) if isinstance(layer, ByHeadAttention) else ()
    return {role: count for role, count in BLOCKS.items() if role in parts(layer) and role not in by_head}


def _fits(pattern: str, name: str) -> bool:
    """Whether a pattern is for the end of a module's name; ``*`` stands for one part."""
    parts = name.split(".")[-(pattern.count(".") + 1) :]
    return matches(pattern, ".".join(parts))


def _style(names: tuple[str, ...], module: nn.Module, replaced: Mapping[str, str]) -> str:
    """How a module is to be split, by its names alone."""
    for rules in (replaced, RULES):
        for pattern, style in rules.items():
            if any(_fits(pattern, name) for name in names):
                if isinstance(module, KINDS.get(style, nn.Module)):
                    return style
                if rules is replaced:
                    what = f"`tp_plan` has {style!r} for {names[0]}, which is {type(module).__name__}"
                    raise ConfigError(f"{what} and no {KINDS[style][0].__name__}.", hint=f"Use {REPLICATED!r}.")
    return REPLICATED


def _check_rules(rules: Mapping[Any, Any], modules: Iterable[str]) -> None:
    for pattern, style in rules.items():
        if style not in STYLES:
            what = f"`tp_plan` has no style {style!r:.60} (for {pattern!r:.60})."
            raise ConfigError(what, hint=nearest(str(style), STYLES))
        if not any(_fits(str(pattern), name) for name in modules):
            names = {last for name in modules if not (last := name.rpartition(".")[2]).isdigit()}
            what = f"`tp_plan` names {pattern!r:.60}, but the model has no such module."
            raise ConfigError(what, hint=nearest(str(pattern), names))
