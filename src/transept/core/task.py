"""Task models: a backbone and a head, and what the head adds to its arguments and to its names in a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

import torch
from torch import nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.classes import own_forward
from transept.core.inputs import ENCODER
from transept.core.model import Backbone, O
from transept.core.parts import Composed, Part
from transept.objectives.terms import Items, LossTerm, total
from transept.outputs import ModelOutput

B = TypeVar("B", bound=Backbone)
LOSS_ALONE = ContextVar("loss_alone", default=False)


def wants_loss_alone() -> bool:
    """Whether nobody reads more of a forward pass with labels than its loss; compiled graphs give everything."""
    return not torch.compiler.is_compiling() and LOSS_ALONE.get()


class TaskModel(Composed, Generic[B]):
    """A ``backbone``, and a head: ``class BertForMaskedLM(ForMaskedLM[BertModel])`` is a whole task model.

    A task class sets ``names``, those of its head (for all families; one family's class may replace them). A variant of a
    family takes over a whole task class: ``class XLMRobertaForMaskedLM(RobertaForMaskedLM, backbone=XLMRobertaModel)``. Its
    prefix is then the backbone's, unless that class has one of its own.
    """

    backbone_class: ClassVar[type[Backbone]]
    backbone_options: ClassVar[dict[str, Any]] = {}  # arguments of its constructor
    # What a forward pass takes by keyword beside what it names itself: all that its loss needs, and other inputs.
    labels: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[tuple[str, ...]] = ()
    # Inputs of the backbone that this task takes by keyword alone.
    omits: ClassVar[tuple[str, ...]] = ENCODER
    # Inputs of the backbone that this task does not take.
    refuses: ClassVar[tuple[str, ...]] = ()
    token_parts = ("backbone",)
    # Whether the parameters of the head come before those of the backbone, as in some of the reference's classes.
    heads_first: ClassVar[bool] = False
    backbone: B

    def __init_subclass__(cls, backbone: type[Backbone] | None = None, **kwargs: Any) -> None:
        arguments = [argument for base in cls.__dict__.get("__orig_bases__", ()) for argument in get_args(base)]
        inherited: type[Backbone] | None = getattr(cls, "backbone_class", None)
        follows = inherited is None or cls.base_model_prefix == inherited.base_model_prefix
        for argument in (*arguments, backbone):
            if isinstance(argument, type) and issubclass(argument, Backbone):
                cls.backbone_class = argument
                if "config_class" not in cls.__dict__:
                    cls.config_class = argument.config_class
                if (follows or argument is not backbone) and "base_model_prefix" not in cls.__dict__:
                    cls.base_model_prefix = argument.base_model_prefix
        if (family := getattr(cls, "backbone_class", None)) is not None:
            family.head_names |= {*cls.names.table, *cls.names.files}
        super().__init_subclass__(**kwargs)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not self.reads_pooler:
            self.backbone.pooler = None

    def place_parts(self) -> None:
        super().place_parts()
        if "_computing" in self.__dict__:
            return
        parts = ((name, part) for name, part in self._modules.items() if part is not None)
        empty = {name for name, part in parts if next(part.parameters(), None) is None and next(part.buffers(), None) is None}
        self.__dict__["_computing"] = empty

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The parts that hold tensors, as in the reference: a head whose layers hang elsewhere is among ``modules()`` alone."""
        computing = self.__dict__.get("_computing", ())
        return ((name, part) for name, part in super().named_children() if name not in computing)

    def train(self, mode: bool = True) -> Self:
        for name in self.__dict__.get("_computing", ()):
            if (part := self._modules.get(name)) is not None:
                part.train(mode)
        return super().train(mode)

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        """The backbone's, with the task's own labels in their place."""
        if cls.reads and hasattr(cls, "backbone_class"):
            return cls.reads
        backbone = getattr(cls, "backbone_class", None)
        if backbone is None or not backbone.reads or own_forward(cls) is nn.Module.forward:
            return ()
        reads = backbone.reads if "labels" in backbone.reads else (*backbone.reads, "labels")
        place = reads.index("labels")
        after = [name for name in reads[place + 1 :] if name != "past_key_values" or cls.omits == ()]
        own = [name for name in _keywords(cls) if name not in ("num_items_in_batch", "return_dict", "logits_to_keep")]
        return tuple(name for name in (*reads[:place], *own, *after) if name not in (*cls.omits, *cls.refuses))

    @classmethod
    def options(cls) -> tuple[str, ...]:
        inputs = (*_keywords(cls), *cls.backbone_class.arguments(), *cls.backbone_class.options())
        return tuple(name for name in inputs if name not in cls.refuses)

    @property
    def reads_pooler(self) -> bool:
        """Whether the head needs the backbone's pooler; without it the pooler is left out."""
        return False

    def initialize_module(self, module: nn.Module) -> None:
        self.backbone.initialize_module(module)

    @property
    def body(self) -> Backbone:
        return self.backbone

    @property
    def base_model(self) -> nn.Module:
        return self.backbone if self.base_model_prefix else self

    def inputs_of_rows(self, inputs: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
        return self.backbone.inputs_of_rows(inputs, start, stop)

    @classmethod
    def parts_of(cls, config: Config) -> tuple[Part, ...]:
        return (cls.backbone_part(config),)

    @classmethod
    def backbone_part(cls, config: Config) -> Part:
        """What the backbone is; tasks whose config chooses it override it."""
        place, options = cls.base_model_prefix, cls.backbone_options
        stored = cls.backbone_class.stored_prefix
        return Part("backbone", cls.backbone_class, place=place, stored=stored, loose=True, options=options)

    @classmethod
    def names_of(cls, config: Config) -> Names:
        order = Names({cls.base_model_prefix: "backbone"} if cls.heads_first else {}, absent=("*",))
        return super().names_of(config) | order

    def for_loss(self, **inputs: Any) -> ModelOutput:
        """The output for inputs without labels, of which only a loss will be made: logits may be ``Unscored``."""
        output: ModelOutput = self(**inputs, return_dict=True)
        return output

    def answer(
        self, output: O, states: ModelOutput, terms: dict[str, LossTerm] | None, items: Items | None, return_dict: bool | None
    ) -> O:
        """Complete a task's output: its loss, what the backbone recorded, and the form the caller wants."""
        output.complete(states)
        if terms is not None:
            output["loss"], output["loss_terms"] = total(terms, items), terms
        as_output = self.config.return_dict if return_dict is None else return_dict
        return output if as_output else output.to_tuple()  # type: ignore[return-value]


def _keywords(cls: type[TaskModel[Any]]) -> list[str]:
    """The names of what a task's forward pass itself takes by keyword."""
    return list(dict.fromkeys((*cls.labels, *cls.takes, *inspect.getfullargspec(own_forward(cls)).kwonlyargs)))
