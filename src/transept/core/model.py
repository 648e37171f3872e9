"""Backbones (a family without a task) and task models (a backbone and a head), and what both can do.

Shapes: B batch, T positions, S cached and new positions, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from transept.checkpoint.load import put
from transept.checkpoint.names import Names
from transept.checkpoint.paths import join
from transept.config.model import Config
from transept.core.classes import complete, family_class, own_forward, sign
from transept.core.inputs import RecordOptions
from transept.core.loading import Pretrained
from transept.core.tree import place
from transept.environment.memory import keep_freed
from transept.errors import InputError, InputTypeError, refuse
from transept.layers.attention.kernels import kernel_named
from transept.layers.block import adds_to_stream
from transept.layers.caches.cache import Cache
from transept.layers.context import Context
from transept.layers.links import Linked
from transept.layers.pool import POOLED_ALONE, Pooler
from transept.outputs import BackboneOutput, ModelOutput

_KNOWN = ("torch.nn.", "transept.")  # modules whose classes are initialised by a scheme
_READY = "_initialized"  # an attribute of modules whose parameters were filled


class Model(Linked, Pretrained):
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
    of_user: ClassVar[bool] = False  # whether a user wrote the class, whose constructor calls ``post_init``

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        complete(cls)
        sign(cls)

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
        kind: type[Config] = Config if self.of_user else self.config_class
        if not isinstance(config, kind):
            own = type(self).__name__
            what = f"{own} is built from a {self.config_class.__name__}, not from {type(config).__name__}."
            raise InputTypeError(what, hint=f"Use {own}.from_pretrained(...) for a checkpoint.")
        config.check_model()
        keep_freed()
        self.config = config
        self.name_or_path, self.warnings_issued, self.model_tags = config.name_or_path, {}, []
        self.kernel_name = config.attn_implementation or "sdpa"
        kernel_named(self.kernel_name)

    def built(self) -> None:
        """Get all parts ready, and share the tensors of those that are tied."""
        self.ready()
        self.tie_weights()
        if self.config.extra.get("gradient_checkpointing"):
            self.gradient_checkpointing_enable()

    @classmethod
    def computes_otherwise(cls) -> bool:
        """Whether a user wrote the forward pass, so that the loss is whatever it says."""
        base = family_class(cls)
        return cls.of_user and (base is None or own_forward(cls) is not own_forward(base))

    def ready(self) -> None:
        """Initialise what is new, unless it waits for a checkpoint on the meta device, and put all parts in their places."""
        for module in [module for module in self.modules() if _READY not in module.__dict__]:
            module.__dict__[_READY] = True  # what a checkpoint fills is not initialised later, within another model
            if self.device.type != "meta":
                self._init_weights(module)
        self.place_parts()

    @classmethod
    def _without_memory(cls, config: Config, arguments: Mapping[str, Any]) -> Self:
        model = super()._without_memory(config, arguments)
        if cls.of_user and (names := model._of_users()):
            whole = cls(config, **arguments)
            values = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
            model.__dict__["_constants"] = {name: values[name].detach() for name in names if name in values}
        return model

    def _of_users(self) -> list[str]:
        """The tensors of modules that a user wrote, whose values the constructor alone knows."""
        modules = ((path, m) for path, m in self.named_modules() if not type(m).__module__.startswith(_KNOWN))
        return [join(path, name) for path, m in modules for name in (*m._parameters, *m._buffers)]

    def initialize(self, names: Iterable[str] | None = None) -> None:
        super().initialize(names)
        self.restore()

    def restore(self) -> None:
        """Give tensors that a checkpoint may lack the values that the constructor of a user's class gave them."""
        named = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        for name, value in self.__dict__.pop("_constants", {}).items():
            like = named.get(name, value)
            put(self, name, value if like.is_meta else value.to(like))

    def place_parts(self) -> None:
        """Register all parts under the names of the tree, once."""
        if "_is_placed" not in self.__dict__:
            self.__dict__["_is_placed"] = True
            place(self, self.names_of(self.config).placement)

    def post_init(self) -> None:
        """Initialise and tie what a user's constructor has built, as it calls at its end; others need no such call."""
        if self.of_user:
            self.built()

    @property
    def body(self) -> Backbone:
        """The model without its head; itself, where there is none."""
        raise NotImplementedError

    @property
    def stacks(self) -> tuple[Backbone, ...]:
        """The backbones whose layers run: one, but where an encoder and a decoder make one model."""
        return self.body.stacks

    @classmethod
    def names_of(cls, config: Config) -> Names:
        """Where the parts of a model with this config hang in its tree of modules, and what files call them."""
        return cls.names.of(config)

    def checkpoint_names(self) -> Names:
        return self.with_stated(self.tree_names(self.config))

    def with_stated(self, names: Names) -> Names:
        """Names with what a user's class adds: modules that a checkpoint may lack, and ties.

        Ties are names and their sources, or a list of those that are tied to the input embeddings.
        """
        if names.within is not None and (parts := self.__dict__.get("_whole")) is not None:
            more = tuple(name for name in (*self._modules, *self._parameters, *self._buffers) if name not in parts)
            names = replace(names, within=names.within | Names(absent=more))
        stated: Any = type(self)._tied_weights_keys
        if isinstance(stated, property) or not stated or not self.config.tie_word_embeddings:
            return names
        if not isinstance(stated, Mapping):
            table = self.get_input_embeddings()
            stated = dict.fromkeys(stated, next(f"{path}.weight" for path, module in self.named_modules() if module is table))
        state = dict((*self.named_parameters(remove_duplicate=False), *self.named_buffers()))
        for name in (*stated, *stated.values()):
            what = f"`_tied_weights_keys` of {type(self).__name__} names {name!r}, which is no tensor of it."
            refuse(name not in state, what, "Write whole names, as in its state_dict().")
        return replace(names, ties=names.ties | stated)

    @classmethod
    def tree_names(cls, config: Config) -> Names:
        """The names in files of what the tree of modules has, once a model is built."""
        return cls.names_of(config).placed()

    def set_attn_implementation(self, name: str) -> None:
        """Choose the attention kernel: ``eager``, ``sdpa``, ``flex``, or ``flash_attention_2`` with flash-attn installed."""
        kernel_named(name)
        self.kernel_name = self.config.attn_implementation = name

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

    def embedding_table(self) -> nn.Module:
        """The token embeddings, or what takes their place."""
        return self.body.embedding_table()

    def replace_embedding_table(self, table: nn.Module) -> None:
        self.body.replace_embedding_table(table)


class Backbone(Model):
    """A family's network without a task: tokens, pixels or samples in, hidden states (B, T, D) out.

    A family sets ``config_class``, ``base_model_prefix`` (where task checkpoints keep the backbone; else the model type),
    ``names`` (its names in a checkpoint), ``pooling`` (how its classifiers pick one state) and ``head_dropouts`` (the settings
    of which the first that is not ``None`` is the dropout before a head; a number stands for itself).
    """

    pooling: ClassVar[str] = "first"
    head_dropouts: ClassVar[tuple[str | float, ...]] = ()
    head_names: ClassVar[set[str]] = set()
    stored_prefix: ClassVar[str | None] = None  # where files of task models keep it, if the tree has another name for it
    table_name: ClassVar[str] = "embed_tokens"
    scales_residual: ClassVar[bool] = False  # whether what adds to the stream begins smaller the deeper (Radford et al. 2019)
    layers: nn.ModuleList
    embed_tokens: nn.Embedding
    # What computes one more position of each row by several layers in one call: of the network, (B, T, D), the context, the
    # first layer and the one to stop before it makes (B, T, D) and the number of the next layer, or ``None`` where it cannot.
    layers_step: Callable[[Backbone, Tensor, Context, int, int], tuple[Tensor, int] | None] | None = None

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

    def ready(self) -> None:
        pruned = {} if "_is_placed" in self.__dict__ else self.config.extra.get("pruned_heads") or {}
        for layer, heads in pruned.items():
            self.layers[int(layer)].self_attn.prune_heads(heads)  # type: ignore[union-attr, operator]
        super().ready()

    def deviation(self, module: nn.Module) -> float:
        adds = self.scales_residual and adds_to_stream(module, self.layers)
        return super().deviation(module) / (math.sqrt(2 * len(self.layers)) if adds else 1.0)

    def begin(self, *args: Any, **inputs: Any) -> tuple[Tensor, Context]:
        """Check the inputs and make of them the states (B, T, D) that go into the first layer."""
        raise NotImplementedError

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        """The output, from what the last layer gives, (B, T, D): normed and pooled where the family does so."""
        x = self.finalize(x)
        pooled = None if self.pooler is None else self.pooler(ctx.to_pool(x))
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
            layers: Any = self.step_at(*self.step_classes()) if self.by_steps else None  # a backbone's only step
            return self.end(self.run(x, ctx) if layers is None else layers(x, ctx)[0], ctx)

    @property
    def body(self) -> Backbone:
        return self

    @property
    def stacks(self) -> tuple[Backbone, ...]:
        return (self,)

    @classmethod
    def names_of(cls, config: Config) -> Names:
        own, heads = super().names_of(config), set[str]().union(*(getattr(base, "head_names", ()) for base in cls.__mro__))
        rules = "".join(f"\n{rule}" for rule in own.table)
        for head in [head for head in heads if f"\n{head}." in rules]:
            heads |= {f"{head}.weight", f"{head}.bias"}  # a module beside parts of the network, which are no head's
            heads.remove(head)
        family = Names(optional=("pooler",), absent=("layers.*.cross_attn*",), heads=frozenset(heads))
        return replace(own | family, base=cls.base_model_prefix)

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
        table: nn.Module | None = getattr(self, self.table_name, None)
        if table is None:
            raise InputError(f"{type(self).__name__} has no token embeddings.")
        return table

    def replace_embedding_table(self, table: nn.Module) -> None:
        self.embedding_table()
        setattr(self, self.table_name, table)

    def context(
        self, output_attentions: bool | None = None, output_hidden_states: bool | None = None, return_dict: bool | None = None
    ) -> Context:
        """A context without a mask, as vision and audio backbones need it; absent settings are the config's."""
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        as_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        ctx: Context = Context(kernel_named(self.kernel_name), as_tuple=as_tuple, hidden_states=[] if states else None)
        if attentions:  # only the eager kernel has weights to show
            ctx.kernel, ctx.attentions, ctx.cross_attentions = kernel_named("eager"), [], []
        return ctx

    def run(self, x: Tensor, ctx: Context, start: int = 0, stop: int | None = None) -> Tensor:
        """Pass (B, T, D) through the layers from ``start`` to before ``stop``, keeping what was asked for."""
        layers, done = list(self.layers), start
        for index, layer in enumerate(layers[start:stop], start):
            if index < done:
                continue  # computed with those before it
            ctx.layer = index
            if ctx.hidden_states is not None:
                ctx.hidden_states.append(x)
            elif index == len(layers) - 1 and self.pools_alone and ctx.attentions is None:
                ctx.pooled = self.pooled_places(x, ctx)
            if self.recomputes:
                x = checkpoint(_alone, layer, x, ctx, index, **self.recompute or {})
            elif self.layers_step is not None and ctx.step is not False:
                made = self.layers_step(self, x, ctx, index, len(layers) if stop is None else stop)
                x, done = (layer(x, ctx), index + 1) if made is None else made
            else:
                x = layer(x, ctx)
        return x

    @property
    def pools_alone(self) -> bool:
        """Whether nobody reads other states of the last layer than the pooled ones."""
        return not torch.compiler.is_compiling() and POOLED_ALONE.get() and not self.training

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
    return layer(x, replace(ctx, layer=index, lowered={}))  # type: ignore[no-any-return]


O = TypeVar("O", bound=ModelOutput)  # noqa: E741 (the standard letter for a type variable)
