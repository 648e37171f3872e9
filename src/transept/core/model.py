"""Backbones (a family without a task) and task models (a backbone and a head), and what both can do.

Shapes: B batch, T positions, S cached and new positions, D hidden size.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transept.checkpoint.names import Names
from transept.config import Config
from transept.core.inputs import RecordOptions, explicit
from transept.core.loading import Pretrained
from transept.core.naming import ByReference
from transept.errors import InputError, InputTypeError
from transept.layers.attention import kernel_named
from transept.layers.block import adds_to_stream
from transept.layers.cache import Cache
from transept.layers.context import Context
from transept.layers.pool import Pooler
from transept.outputs import BackboneOutput, ModelOutput

_POOLED_ALONE = ContextVar("pooled_alone", default=False)


@contextmanager
def pooled_alone(alone: bool = True) -> Iterator[None]:
    """Within it, backbones may leave out states of the last layer that their ``pooler_output`` is not made of.

    That is the same, and for a network of twelve layers takes up to a twelfth less time. Where states are left out,
    ``last_hidden_state`` has just the others; hidden states and attentions that are asked for are always whole.
    """
    token = _POOLED_ALONE.set(alone)
    try:
        yield
    finally:
        _POOLED_ALONE.reset(token)


def own_forward(cls: type) -> Callable[..., Any]:
    """The forward pass that was written by hand: a base may have been given its own before others were joined to it."""
    found = (each.__dict__["forward"] for each in cls.__mro__ if "forward" in each.__dict__)
    own: Callable[..., Any] = next(each for each in found if inspect.unwrap(each) is each)
    return own


class _Built(type):
    """Gives a class its explicit signature, and makes a call of it end with the initialisation of what it built."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, namespace)
        names = cls.arguments()  # type: ignore[attr-defined]
        if names and "main_input_name" not in namespace:
            type.__setattr__(cls, "main_input_name", names[0])
        if "forward" not in namespace and names:
            options = None if cls.passes_on else cls.options()  # type: ignore[attr-defined]
            type.__setattr__(cls, "forward", explicit(own_forward(cls), names, options))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        model = super().__call__(*args, **kwargs)
        model.built()
        return model


class Model(ByReference, Pretrained, metaclass=_Built):
    """What backbones and task models have in common.

    A backbone declares in ``reads`` the names of its inputs, in the order in which they are passed by position, with
    ``labels`` where tasks take theirs; a task puts its own labels there and leaves out what it does not take. From this follow
    the signature that ``inspect`` and libraries see, the arguments by position, and the error about an unknown one.
    """

    config_class: ClassVar[type[Config]]
    base_model_prefix: ClassVar[str] = ""
    names: ClassVar[Names] = Names()
    reads: ClassVar[tuple[str, ...]] = ()
    accepts: ClassVar[type] = RecordOptions  # what a backbone takes by keyword beside
    passes_on: ClassVar[bool] = False  # whether any others may be passed by keyword, for models within

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        """The inputs that can be passed by position, in their order, from ``reads`` (see :class:`Model`)."""
        return tuple(name for name in cls.reads if name != "labels")

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The inputs that are passed by keyword."""
        return tuple(cls.accepts.__annotations__)

    def __init__(self, config: Config) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            own = type(self).__name__
            what = f"{own} is built from a {self.config_class.__name__}, not from {type(config).__name__}."
            raise InputTypeError(what, hint=f"Use {own}.from_pretrained(...) for a checkpoint.")
        self.config = config
        self.name_or_path, self.warnings_issued, self.model_tags = config.name_or_path, {}, []
        self.kernel_name = config.attn_implementation or "sdpa"
        kernel_named(self.kernel_name)

    def built(self) -> None:
        """Initialise the new parameters, unless they wait for a checkpoint on the meta device."""
        inner = {id(m) for child in self.children() if isinstance(child, Model) for m in child.modules()}
        if self.device.type != "meta":
            for module in self.modules():
                if id(module) not in inner:
                    self.initialize_module(module)
        self.tie_weights()

    @property
    def backbone(self) -> Backbone:
        """The model without its head; itself, where there is none."""
        raise NotImplementedError

    @property
    def stacks(self) -> tuple[Backbone, ...]:
        """The backbones whose layers run: one, but where an encoder and a decoder make one model."""
        return self.backbone.stacks

    @classmethod
    def names_of(cls, config: Config) -> Names:
        """The names of the tensors of a model with this config in a checkpoint."""
        return cls.names.of(config)

    def checkpoint_names(self) -> Names:
        return self.names_of(self.config)

    def set_attn_implementation(self, name: str) -> None:
        """Choose the attention kernel: ``eager``, ``sdpa``, ``flex``, or ``flash_attention_2`` with flash-attn installed."""
        kernel_named(name)
        for model in (self, self.backbone, *self.stacks):
            model.kernel_name = model.config.attn_implementation = name

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        """Recompute each layer in the backward pass and do not keep its activations (Chen et al. 2016)."""
        for stack in self.stacks:
            stack.recompute = {"use_reentrant": False, **(gradient_checkpointing_kwargs or {})}

    def gradient_checkpointing_disable(self) -> None:
        for stack in self.stacks:
            stack.recompute = None

    @property
    def is_gradient_checkpointing(self) -> bool:
        return any(stack.recompute is not None for stack in self.stacks)

    def get_input_embeddings(self) -> nn.Module:
        """The table of token embeddings."""
        return self.backbone.embedding_table()

    def set_input_embeddings(self, table: nn.Module) -> None:
        """Replace the table of token embeddings, and what is tied to it."""
        self.backbone.replace_embedding_table(table)
        self.tie_weights()


PreTrainedModel = Model  # the reference's name of the base class


class Backbone(Model):
    """A family's network without a task: tokens, pixels or samples in, hidden states (B, T, D) out.

    A family sets ``config_class``, ``base_model_prefix`` (where task checkpoints keep the backbone; else the model type),
    ``names`` (its names in a checkpoint), ``pooling`` (how its classifiers pick one state) and ``head_dropouts`` (the settings
    of which the first that is not ``None`` is the dropout before a head; a number stands for itself).
    """

    pooling: ClassVar[str] = "first"
    head_dropouts: ClassVar[tuple[str | float, ...]] = ()
    head_names: ClassVar[set[str]] = set()
    context_class: ClassVar[type[Context]] = Context
    table_name: ClassVar[str] = "embed_tokens"
    # Whether matrices whose output is added to the residual stream begin smaller, the more the deeper (Radford et al. 2019).
    scales_residual: ClassVar[bool] = False
    layers: nn.ModuleList
    embed_tokens: nn.Embedding

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.head_names = set()
        if "config_class" in cls.__dict__ and not cls.base_model_prefix:
            cls.base_model_prefix = cls.config_class.model_type

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.recompute: dict[str, Any] | None = None
        self.spares_cache = False  # whether passes make no cache that they are not asked for: they are those of training
        self.norm: nn.Module | None = None
        self.pooler: nn.Module | None = None

    def built(self) -> None:
        for layer, heads in (self.config.extra.get("pruned_heads") or {}).items():
            self.layers[int(layer)].self_attn.prune_heads(heads)  # type: ignore[union-attr, operator]
        super().built()

    def deviation(self, module: nn.Module) -> float:
        adds = self.scales_residual and adds_to_stream(module, self.layers)
        return super().deviation(module) / (math.sqrt(2 * len(self.layers)) if adds else 1.0)

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        """Check the inputs and make of them the states (B, T, D) that go into the first layer."""
        raise NotImplementedError

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        """The output, from what the last layer gives, (B, T, D): normed and pooled where the family does so."""
        x = self.finalize(x)
        pooled = None if self.pooler is None else self.pooler(ctx.first(x))
        return self.recorded(BackboneOutput(last_hidden_state=x, pooler_output=pooled, past_key_values=ctx.cache), x, ctx)

    def pooled_places(self, x: Tensor, ctx: Context) -> Tensor | None:
        """(R) places, among all B * T, of the last layer's states that the pooled ones are made of; ``None`` where of all."""
        return ctx.firsts(x) if isinstance(self.pooler, Pooler) else None

    def finalize(self, x: Tensor) -> Tensor:
        """What follows the last layer, (B, T, D) -> (B, T, D): the norm, where there is one."""
        return x if self.norm is None else self.norm(x)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """Inputs -> hidden states (B, T, D), in three steps: ``begin``, the layers, ``end``."""
        cache = None if torch.compiler.is_compiling() else inputs.get("past_key_values")
        with cache.in_use() if isinstance(cache, Cache) else nullcontext():
            x, ctx = self.begin(*args, **inputs)
            return self.end(self.run(x, ctx), ctx)

    @property
    def backbone(self) -> Backbone:
        return self

    @property
    def stacks(self) -> tuple[Backbone, ...]:
        return (self,)

    @classmethod
    def names_of(cls, config: Config) -> Names:
        heads = frozenset[str]().union(*(getattr(base, "head_names", ()) for base in cls.__mro__))
        family = Names(optional=("pooler",), absent=("layers.*.cross_attn*",), heads=heads)
        return replace(super().names_of(config) | family, base=cls.base_model_prefix)

    @property
    def dim(self) -> int:
        """D, the size of the hidden states."""
        return int(self.config.hidden_size)

    @property
    def embed_dim(self) -> int:
        """The size of the token embeddings; D, but for factorised ones."""
        return self.dim

    def head_dropout(self, names: tuple[str | float, ...] | None = None) -> float:
        """Dropout before a task's head, by the family's settings or by others."""
        settings = self.head_dropouts if names is None else names
        stated = (getattr(self.config, name) if isinstance(name, str) else name for name in settings)
        return next((share for share in stated if share is not None), 0.0)

    @property
    def causal(self) -> bool:
        """Whether a position sees only those before it."""
        return False

    def cache_matters(self, inputs: Mapping[str, Any]) -> bool:
        """Whether a pass over these inputs could give another answer where it made no cache."""
        return False

    def infer_mask(self, ids: Tensor) -> Tensor | None:
        """A padding mask (B, T) that the inputs alone tell, where they do."""
        return None

    def embedding_table(self) -> nn.Module:
        """The token embeddings, or what takes their place."""
        table = self._modules.get(self.table_name)
        if table is None:
            raise InputError(f"{type(self).__name__} has no token embeddings.")
        return table

    def replace_embedding_table(self, table: nn.Module) -> None:
        self.embedding_table()
        self._modules[self.table_name] = table

    def context(
        self, output_attentions: bool | None = None, output_hidden_states: bool | None = None, return_dict: bool | None = None
    ) -> Context:
        """A context without a mask, as vision and audio backbones need it; absent settings are the config's."""
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        as_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        ctx = self.context_class(kernel_named(self.kernel_name), as_tuple=as_tuple, hidden_states=[] if states else None)
        if attentions:  # only the eager kernel has weights to show
            ctx.kernel, ctx.attentions, ctx.cross_attentions = kernel_named("eager"), [], []
        return ctx

    def run(self, x: Tensor, ctx: Context, start: int = 0, stop: int | None = None) -> Tensor:
        """Pass (B, T, D) through the layers from ``start`` to before ``stop``, keeping what was asked for."""
        for index, layer in enumerate(self.layers[start:stop], start):
            ctx.layer = index
            if ctx.hidden_states is not None:
                ctx.hidden_states.append(x)
            elif index == len(self.layers) - 1 and self.pools_alone and ctx.attentions is None:
                ctx.pooled = self.pooled_places(x, ctx)
            x = checkpoint(_alone, layer, x, ctx, index, **self.recompute or {}) if self.recomputes else layer(x, ctx)
        return x

    @property
    def pools_alone(self) -> bool:
        """Whether nobody reads other states of the last layer than the pooled ones."""
        return not torch.compiler.is_compiling() and _POOLED_ALONE.get() and not self.training

    @property
    def recomputes(self) -> bool:
        """Whether this forward pass keeps no activations inside layers."""
        return self.recompute is not None and self.training and torch.is_grad_enabled()

    def recorded(self, output: O, last: Tensor, ctx: Context) -> O:
        """Complete an output with what the context recorded, and give it the form that the caller wants.

        ``last`` (B, T, D) ends the hidden states; some families show it before the final norm.
        """
        if ctx.hidden_states is not None:
            output["hidden_states"] = (*ctx.hidden_states, last)
        if ctx.attentions:
            output["attentions"] = tuple(ctx.attentions)
        if ctx.cross_attentions:
            output["cross_attentions"] = tuple(ctx.cross_attentions)
        return output.to_tuple() if ctx.as_tuple else output  # type: ignore[return-value]


def _alone(layer: nn.Module, x: Tensor, ctx: Context, index: int) -> Tensor:
    """Run a layer so that it can be run again in the backward pass: with its own index, and masks made anew."""
    out: Tensor = layer(x, replace(ctx, layer=index, lowered={}))
    return out


O = TypeVar("O", bound=ModelOutput)  # noqa: E741 (the standard letter for a type variable)
