"""LoRA (Hu et al. 2022): a layer's product Wx becomes Wx + s B A x with small trained matrices A (r, in) and B (out, r).

The scale s is ``lora_alpha / r``, or ``lora_alpha / sqrt(r)`` with ``use_rslora`` (Kalajdzievski 2023). With ``use_dora`` each
output of the sum has a trained magnitude in place of its weights' norm (Liu et al. 2024). Settings have the names that peft
gives them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.config.fields import Count, Share
from transept.config.settings import Settings
from transept.environment.memory import check_memory
from transept.errors import InputError, UnsupportedError
from transept.layers.linear import Conv1D, Projection, matrix
from transept.quantized.linear import QuantizedLinear

# Settings of peft that change what is computed or trained, and that there are not here.
_OTHERS: tuple[str, ...] = ("layer_replication", "target_parameters", "trainable_token_indices", "alora_invocation_tokens")
_OTHERS += ("use_qalora", "lora_bias", "use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config")
_OTHERS += ("eva_config", "corda_config", "lora_ga_config", "loftq_config", "megatron_config", "ensure_weight_tying")


class TaskType(StrEnum):
    """What a model with adapters is for; peft's names."""

    SEQ_CLS = "SEQ_CLS"
    SEQ_2_SEQ_LM = "SEQ_2_SEQ_LM"
    CAUSAL_LM = "CAUSAL_LM"
    TOKEN_CLS = "TOKEN_CLS"  # noqa: S105 (no password)
    QUESTION_ANS = "QUESTION_ANS"
    FEATURE_EXTRACTION = "FEATURE_EXTRACTION"


class LoraConfig(Settings):
    """Settings of an adapter, as ``adapter_config.json`` has them.

    Names of modules are the reference's (``"query"``) or ours (``"q_proj"``); those of the reference count first.

    Args:
        r: rank of the matrices.
        target_modules: endings of names of linear layers, a pattern for whole names (with ``pip install "transept[serve]"``),
            or ``"all-linear"``: all but the head. By default the projections of queries and values, and all that is stored as
            one with them.
        exclude_modules: endings, or a pattern, of what is left out.
        lora_alpha: the scale is this divided by ``r``.
        lora_dropout: share of the inputs of A that is dropped in training.
        bias: which biases of the model are trained too: ``"none"``, ``"all"``, or ``"lora_only"``, those of adapted layers.
        modules_to_save: endings of names of modules that are trained as a whole and saved, such as a new head; the heads of
            classifiers are by themselves where ``task_type`` is ``"SEQ_CLS"``, ``"TOKEN_CLS"`` or ``"QUESTION_ANS"``.
        layers_to_transform: numbers of the only layers that are adapted; ``layers_pattern`` names their list.
        rank_pattern, alpha_pattern: names or patterns of layers, and their own ``r`` or ``lora_alpha``.
        init_lora_weights: true for an A as in a new linear layer and a B of zeros, ``"gaussian"`` for a normal A, false for
            both at random.
        inference_mode: nothing is trained.

    Raises:
        ConfigError: a value that cannot be.
        UnsupportedError: a setting of peft that is not here, or a file of another method than LoRA.
    """

    noun = "adapter"
    file_name = "adapter_config.json"

    peft_type: str = "LORA"
    task_type: str | None = None
    base_model_name_or_path: str | None = None
    revision: str | None = None
    inference_mode: bool = False
    r: Count = 8
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    lora_alpha: int | float = 8
    lora_dropout: Share = 0.0
    fan_in_fan_out: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"
    use_rslora: bool = False
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str = True
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, Any] = field(default_factory=dict)
    use_dora: bool = False

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        values = super().upgrade(values)
        kind = values.get("peft_type", "LORA")
        if kind != "LORA":
            raise UnsupportedError(f"the adapter is of the kind {str(kind)[:80]!r}, and only LoRA is here.")
        for name in _OTHERS:
            if values.pop(name, None):
                raise UnsupportedError(f"`{name}` of an adapter is not supported.", hint="Leave it out, or use peft itself.")
        values = {name: sorted(value) if isinstance(value, set | frozenset) else value for name, value in values.items()}
        return values | {name: values[name] or {} for name in ("rank_pattern", "alpha_pattern") if name in values}

    def validate(self) -> None:
        super().validate()
        if self.init_lora_weights not in (True, False, "gaussian"):
            what = f"`init_lora_weights` cannot be {self.init_lora_weights!r:.80}."
            raise UnsupportedError(what, hint='It is true, false or "gaussian"; others change the weights below the adapter.')
        for name, ranks in (("rank_pattern", self.rank_pattern), ("alpha_pattern", self.alpha_pattern)):
            if any(isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 for value in ranks.values()):
                self.fail(name, "must hold numbers above 0")

    def to_diff_dict(self) -> dict[str, Any]:
        return self.to_dict()

    def scale(self, rank: int, alpha: float) -> float:
        return float(alpha / math.sqrt(rank) if self.use_rslora else alpha / rank)

    def alpha(self, rank: int, scale: float) -> float:
        """The ``lora_alpha`` that gives a scale."""
        alpha = scale * (math.sqrt(rank) if self.use_rslora else rank)
        return round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha


class Rank(NamedTuple):
    """The rank of one layer's adapter, and its scale."""

    r: int
    scale: float


def base_weight(layer: nn.Module) -> Tensor:
    """The weight (out, in) of a layer that can be adapted, dequantised where it is of eight bits."""
    if isinstance(layer, QuantizedLinear):
        return layer.dequantized()
    if isinstance(layer, Projection):
        return base_weight(layer.shared)[layer.place]
    return matrix(layer)


class Adapter(nn.Module):
    """The trained matrices of one layer.

    ``A`` is (r, in), ``B`` (out, r) and ``magnitude`` (out), which only DoRA has. Beside layers of half precision they are
    float32.

    Args:
        layer: the layer that they are for.
        rank: their rank and scale.
        config: how they begin, and what is dropped.
    """

    def __init__(self, layer: Any, rank: Rank, config: LoraConfig) -> None:
        super().__init__()
        self.scale, self.dropout = rank.scale, nn.Dropout(config.lora_dropout)
        place: Any = {"device": next((p.device for p in layer.parameters()), torch.device("cpu"))}
        like = next((p.dtype for p in layer.parameters() if p.is_floating_point()), torch.float32)
        place["dtype"] = torch.float32 if like.itemsize < 4 else like
        self.A = nn.Parameter(torch.empty(rank.r, layer.in_features, **place))
        self.B = nn.Parameter(torch.zeros(layer.out_features, rank.r, **place))
        if config.init_lora_weights == "gaussian":
            nn.init.normal_(self.A, std=1 / rank.r)
        else:
            nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        if config.init_lora_weights is False:
            nn.init.kaiming_uniform_(self.B, a=math.sqrt(5))
        self.magnitude = nn.Parameter(self.norm(layer).clone()) if config.use_dora else None

    def delta(self) -> Tensor:
        """What is added to the weight (out, in)."""
        return self.scale * (self.B @ self.A)

    def norm(self, layer: nn.Module) -> Tensor:
        """The norm of each row of the sum of both weights, (out), through which no gradient flows."""
        weight = base_weight(layer)
        with torch.no_grad():
            norm: Tensor = torch.linalg.vector_norm(weight.to(self.A.dtype) + self.delta(), dim=1)
        return norm

    def forward(self, layer: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """The layer's product (..., out) of (..., in), adapted."""
        dropped = self.dropout(x.to(self.A.dtype))
        added = F.linear(F.linear(dropped, self.A), self.B) * self.scale
        if self.magnitude is not None:
            share = self.magnitude / self.norm(layer)
            if self.training and self.dropout.p:
                base = F.linear(dropped, base_weight(layer).to(dropped.dtype))
            else:
                bias: Tensor | None = layer.bias  # type: ignore[assignment]
                base = out if bias is None else out - bias
            added = (share - 1) * base + share * added
        return (out + added).to(out.dtype)

    def merged(self, layer: nn.Module, weight: Tensor) -> Tensor:
        """A weight (out, in), adapted; the norms are those of the layer's own."""
        total = weight.to(self.A.dtype) + self.delta()
        if self.magnitude is not None:
            total = (self.magnitude / self.norm(layer))[:, None] * total
        return total.to(weight.dtype)


class Adapters(nn.Module):
    """All adapters of one layer, whose child this is; a hook of the layer adds what the active ones give."""

    def __init__(self) -> None:
        super().__init__()
        self.held = nn.ModuleDict()
        self.active: tuple[str, ...] = ()
        self.merged: tuple[str, ...] = ()
        self.enabled = True
        self.plain: list[Any] = []  # the weight as it was before merging

    def chosen(self, names: Sequence[str]) -> list[Adapter]:
        """Those of these adapters that the layer has."""
        held: Any = self.held
        return [held[name] for name in names if name in held]

    def apply_to(self, layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """The hook: a layer's outputs with what the active adapters add."""
        for adapter in self.chosen(self.active) if self.enabled and not self.merged else ():
            out = adapter(layer, inputs[0], out)
        return out

    def merge(self, layer: nn.Linear | Conv1D, names: Sequence[str]) -> None:
        """Put adapters into the weight, which becomes a tensor of its own where it was another's too."""
        adapters = self.chosen(names)
        if not adapters or self.merged:
            return
        with torch.no_grad():
            weight = matrix(layer)
            for adapter in adapters:
                weight = adapter.merged(layer, weight)
        self.plain, self.merged = [layer.weight], tuple(names)
        layer.weight = nn.Parameter(matrix(layer, weight).contiguous(), requires_grad=False)

    def unmerge(self, layer: nn.Linear | Conv1D) -> None:
        """Put the weight back, bit for bit."""
        if self.merged:
            layer.weight, self.plain, self.merged = self.plain[0], [], ()


def adapters_of(layer: nn.Module) -> Adapters | None:
    found = layer._modules.get("lora")
    return found if isinstance(found, Adapters) else None


def check_room(model: nn.Module, ranks: Mapping[str, int]) -> None:
    """Refuse adapters of such ranks, by the paths of layers, if there is no memory for their matrices (``InputError``)."""
    layers: dict[str, Any] = {path: model.get_submodule(path) for path in ranks}
    sizes = {path: ranks[path] * (layer.in_features + layer.out_features) for path, layer in layers.items()}
    if path := max(sizes, key=lambda path: sizes[path], default=None):
        device = next((p.device for p in layers[path].parameters()), torch.device("cpu"))
        what = f"adapters of {len(ranks)} layers, of rank {ranks[path]} for {path},"
        check_memory(torch.float32.itemsize * sum(sizes.values()), device, what, "Set `r` or `rank_pattern` lower.")


def adapt(layer: nn.Module, name: str, rank: Rank, config: LoraConfig) -> Adapter:
    """Give a layer a new adapter."""
    adapters = adapters_of(layer)
    if adapters is None:
        layer.lora = adapters = Adapters()
        layer.register_forward_hook(adapters.apply_to)
        adapters.train(layer.training)
    if name in adapters.held:
        raise InputError(f"there is an adapter {name!r} already.", hint="Give it another name, or delete that one.")
    adapters.held[name] = adapter = Adapter(layer, rank, config).train(layer.training)
    return adapter


def strip(layer: nn.Module) -> None:
    """Take all adapters off a layer."""
    if (adapters := adapters_of(layer)) is not None:
        del layer.lora
        for key, hook in tuple(layer._forward_hooks.items()):
            if hook == adapters.apply_to:
                del layer._forward_hooks[key]
