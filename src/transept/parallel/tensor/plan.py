"""Which part of each matrix a process holds in tensor parallelism (Shoeybi et al. 2019): one table for all families.

The names are those that modules have here, whatever the family. A matrix that is split by columns is followed by one that is
split by rows, so that a feed-forward layer or an attention layer needs one sum over the processes. What cannot be split
evenly is held whole by all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from transept.checkpoint.load import Loadable
from transept.checkpoint.paths import matches
from transept.errors import ConfigError, nearest
from transept.layers.attention import Attention
from transept.layers.mlp import MLP
from transept.layers.moe import Experts

COLUMNS, ROWS, REPLICATED = "colwise", "rowwise", "replicated"
VOCABULARY, LOGITS, EXPERTS = "embedding_rowwise", "colwise_gather_output", "experts"
BY_HEAD, SHARED_HEADS = "by_head", "shared_heads"

# The last parts of modules' names -> how they are split. The first rule that fits counts.
RULES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), COLUMNS),
    **dict.fromkeys(("o_proj", "down_proj"), ROWS),
    **dict.fromkeys(("q_norm", "k_norm"), BY_HEAD),
    "embed_tokens": VOCABULARY,
    **dict.fromkeys(("lm_head", "lm_head.decoder", "lm_head.out_proj"), LOGITS),
    "experts": EXPERTS,
}
# Styles -> the axis along which each parameter is split; one that is not named is held whole, by all alike.
AXES: dict[str, dict[str, int]] = {
    COLUMNS: {"weight": 0, "bias": 0},
    LOGITS: {"weight": 0, "bias": 0},
    ROWS: {"weight": 1},
    VOCABULARY: {"weight": 0},
    EXPERTS: {"gate_proj": 1, "up_proj": 1, "down_proj": 2},  # the columns and rows of every expert
    BY_HEAD: {},
    SHARED_HEADS: {},
}
KINDS: dict[str, type[nn.Module]] = dict.fromkeys((COLUMNS, ROWS, LOGITS), nn.Linear)
KINDS |= {VOCABULARY: nn.Embedding, EXPERTS: Experts}
# What people may ask for by name; the others follow from these.
STYLES = (COLUMNS, ROWS, VOCABULARY, LOGITS, EXPERTS, REPLICATED)


@dataclass
class Plan:
    """How a model is split between processes.

    Args:
        size: number of processes.
        styles: names of the modules that are split, or that are used by parts -> how (see ``AXES``).
        shapes: names of all parameters and buffers -> their whole shapes.
        item_sizes: the same -> bytes a number.
        whole: names of modules that could have been split -> why they are not.
    """

    size: int
    styles: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    item_sizes: dict[str, int] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Loadable, size: int, rules: Mapping[str, str] | str | None = "auto") -> Plan:
        """The plan for a model, which may be on the meta device.

        Args:
            model: a model with its own layers, not yet split.
            size: number of processes.
            rules: ``"auto"``, or names of modules (``"q_proj"``, ``"layers.*.mlp.up_proj"``) -> styles, which count before
                the rules of this module: one of ``STYLES``.

        Raises:
            ConfigError: more processes than heads; layers that were quantized or have adapters; a name that no module has; a
                style that there is not, or that a module of this kind cannot have; layers of which one half is split and the
                other is not.
        """
        plan, own = cls(size), dict(rules) if isinstance(rules, Mapping) else {}
        if not isinstance(rules, Mapping) and rules not in (None, "auto"):
            raise ConfigError(f"`tp_plan` is 'auto' or a mapping of names and styles, not {rules!r:.60}.")
        modules = {str(name): module for name, module in model.named_modules(remove_duplicate=False)}
        _check_rules(own, modules)
        _check_layers(modules)
        for name, tensor in _tensors(model):
            plan.shapes[name], plan.item_sizes[name] = tuple(tensor.shape), tensor.element_size()
        for name, module in modules.items():
            style = _style(name, module, own)
            if style not in (None, REPLICATED):
                plan.styles[name] = str(style)
        plan._settle_attention({name: m for name, m in modules.items() if isinstance(m, Attention)})
        plan._settle_feed_forward({name: m for name, m in modules.items() if isinstance(m, MLP)})
        plan._drop_what_is_alone(modules)
        plan._settle_ties(model.checkpoint_names().tied)
        return plan

    # --- what fits together ------------------------------------------------------------------------------------------

    def _settle_attention(self, layers: dict[str, Attention]) -> None:
        """Split attention by heads: queries evenly, or not at all; keys and values that are fewer are shared."""
        heads = {name: heads_of(layer, "q_proj") for name, layer in layers.items()}
        most = max(heads.values(), default=0)
        if layers and self.size > most:
            what = f"there are {self.size} tensor ranks, but attention has {most} heads, which cannot be split further."
            raise ConfigError(what, hint=f"Use `tp_size` of at most {most}.")
        for name, layer in layers.items():
            wanted = {"q_proj": COLUMNS, "k_proj": COLUMNS, "v_proj": COLUMNS, "o_proj": ROWS}
            parts = [f"{name}.{part}" for part in (*wanted, "q_norm", "k_norm")]
            if not layer.heads_apart:
                self._keep_whole(name, parts, "its heads have weights in common")
            elif heads[name] % self.size:
                self._keep_whole(name, parts, f"{heads[name]} heads are not divisible by {self.size}")
            elif self._is_split(name, wanted):
                for part in ("k_proj", "v_proj") if heads_of(layer, "k_proj") % self.size else ():
                    self.styles[f"{name}.{part}"] = SHARED_HEADS
            else:
                self._keep_whole(name, parts, "the plan says so")

    def _settle_feed_forward(self, layers: dict[str, MLP]) -> None:
        for name, layer in layers.items():
            wanted = {"up_proj": COLUMNS, "down_proj": ROWS}
            wanted |= {"gate_proj": COLUMNS} if hasattr(layer, "gate_proj") else {}
            parts, inner = [f"{name}.{part}" for part in wanted], layer.up_proj.out_features
            if inner % self.size:
                self._keep_whole(name, parts, f"its inner size {inner} is not divisible by {self.size}")
            elif not self._is_split(name, wanted):
                self._keep_whole(name, parts, "the plan says so")

    def _is_split(self, name: str, wanted: Mapping[str, str]) -> bool:
        """Whether all parts of a layer are split as they must be together; ``False`` where none is."""
        found = {part: self.styles.get(f"{name}.{part}", REPLICATED) for part in wanted}
        if set(found.values()) == {REPLICATED}:
            return False
        if found != dict(wanted):
            told = ", ".join(f"{part}: {style}" for part, style in found.items())
            due = ", ".join(f"{part}: {style}" for part, style in wanted.items())
            raise ConfigError(f"the plan splits only a part of {name} ({told}).", hint=f"Use {due}; or {REPLICATED!r} for all.")
        return True

    def _keep_whole(self, name: str, parts: list[str], why: str) -> None:
        for part in parts:
            self.styles.pop(part, None)
        self.whole[name] = why

    def _drop_what_is_alone(self, modules: Mapping[str, nn.Module]) -> None:
        """Projections outside of the layers above have nothing that puts their parts together again."""
        for name in [name for name, style in self.styles.items() if style in (COLUMNS, ROWS, BY_HEAD)]:
            parent = name.rpartition(".")[0]
            if not isinstance(modules[parent], Attention | MLP):
                self._keep_whole(name, [name], "it is no part of a layer that the plan knows")

    def _settle_ties(self, tied: Mapping[str, str]) -> None:
        """Hold tied tensors whole where one of them is not split as the other."""
        while wrong := [pair for pair in tied.items() if self.axis(pair[0]) != self.axis(pair[1])]:
            for name in (end.rpartition(".")[0] for pair in wrong for end in pair):
                self._keep_whole(name, [name], "it is tied to what is not split")

    # --- what follows ------------------------------------------------------------------------------------------------

    def axis(self, name: str) -> int | None:
        """The axis along which a tensor is split, of our name; ``None`` where each process has all of it."""
        module, _, leaf = name.rpartition(".")
        return AXES.get(self.styles.get(module, REPLICATED), {}).get(leaf)

    def part(self, name: str, rank: int) -> tuple[slice, ...]:
        """What of a tensor the process ``rank`` holds: a slice of each axis up to the one that is split."""
        if (axis := self.axis(name)) is None:
            return ()
        length = self.shapes[name][axis]
        step = -(-length // self.size)
        start = min(rank * step, length)
        return (*(slice(None),) * axis, slice(start, min(start + step, length)))

    def local_shape(self, name: str, rank: int = 0) -> tuple[int, ...]:
        """The shape of what a process holds of a tensor."""
        shape = self.shapes[name]
        cut = [len(range(*piece.indices(length))) for piece, length in zip(self.part(name, rank), shape)]
        return (*cut, *shape[len(cut) :])

    def bytes(self, rank: int = 0, tied: Mapping[str, str] | None = None) -> int:
        """How many bytes of tensors a process holds, those that are ``tied`` once."""
        names = (name for name in self.shapes if name not in (tied or {}))
        return sum(_count(self.local_shape(name, rank)) * self.item_sizes[name] for name in names)

    def explain(self, model: Loadable) -> str:
        """A table of all tensors: names, styles, whole and local shapes, and the bytes of the first process.

        Layers that are alike have one line. What could have been split and is not comes behind it, with the reason.
        """
        tied, rows = model.checkpoint_names().tied, dict[tuple[str, ...], list[int]]()
        for name in self.shapes:
            style = self.styles.get(name.rpartition(".")[0], REPLICATED)
            local, whole = self.local_shape(name), self.shapes[name]
            size = 0 if name in tied else _count(local) * self.item_sizes[name]
            told = f"tied to {tied[name]}" if name in tied else style
            key = re.sub(r"(?<=\.)\d+(?=\.)", "*", name), told, " x ".join(map(str, whole)), " x ".join(map(str, local))
            rows.setdefault(key, []).append(size)
        lines: list[tuple[str, ...]] = [("name", "style", "shape", "on a rank", "bytes")]
        lines += [(*key, f"{len(sizes)} x {sizes[0]:,}" if len(sizes) > 1 else f"{sizes[0]:,}") for key, sizes in rows.items()]
        widths = [max(map(len, column)) for column in zip(*lines)]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        here, all_ = self.bytes(tied=tied), Plan(1, {}, self.shapes, self.item_sizes).bytes(tied=tied)
        text.append(f"{here:,} of {all_:,} bytes on the first of {self.size} ranks ({here / max(all_, 1):.0%})")
        text += [f"whole on all ranks: {name} ({why})" for name, why in self.whole.items()]
        return "\n".join(text)


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters and saved buffers by all of their names, tied ones too."""
    yield from ((str(name), tensor) for name, tensor in model.state_dict(keep_vars=True).items())


def heads_of(layer: Attention, projection: str) -> int:
    """How many heads a projection of attention is for."""
    return int(getattr(layer, projection).out_features) // layer.head_dim


def _fits(pattern: str, name: str) -> bool:
    """Whether a pattern is for the end of a module's name; ``*`` stands for one part."""
    parts = name.split(".")[-(pattern.count(".") + 1) :]
    return matches(pattern, ".".join(parts))


def _style(name: str, module: nn.Module, own: Mapping[str, str]) -> str | None:
    """How a module is to be split, by its name alone; ``None`` where no rule is for it."""
    for rules in (own, RULES):
        for pattern, style in rules.items():
            if _fits(pattern, name):
                if isinstance(module, KINDS.get(style, nn.Module)):
                    return style
                if rules is own:
                    what = f"`tp_plan` has {style!r} for {name}, which is {type(module).__name__}"
                    raise ConfigError(f"{what} and no {KINDS[style].__name__}.", hint=f"Use {REPLICATED!r}.")
    return None


def _check_layers(modules: Mapping[str, nn.Module]) -> None:
    """Refuse projections that were replaced, or have something attached to them."""
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        is_projection = isinstance(modules.get(parent), Attention | MLP) and RULES.get(last) in (COLUMNS, ROWS)
        if is_projection and (not isinstance(module, nn.Linear) or next(module.children(), None) is not None):
            what = f"{name} is {type(module).__name__}, with something attached to it or in the place of a linear layer"
            hint = "Split models that are not quantized, and merge its adapters before that."
            raise ConfigError(f"{what}, and cannot be split.", hint=hint)


def _check_rules(own: Mapping[Any, Any], modules: Mapping[str, Any]) -> None:
    for pattern, style in own.items():
        if style not in STYLES:
            raise ConfigError(f"`tp_plan` has no style {style!r:.60} (for {pattern!r:.60}).", hint=nearest(str(style), STYLES))
        if not any(_fits(str(pattern), name) for name in modules):
            known = {last for name in modules if not (last := name.rpartition(".")[2]).isdigit()}
            what = f"`tp_plan` names {pattern!r:.60}, but the model has no such module."
            raise ConfigError(what, hint=nearest(str(pattern), known))
