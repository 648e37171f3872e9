"""Models that users write: a constructor, a forward pass, and modules of their own around models of this library.

Of the modules that a constructor leaves, those that are models bring their names, schemes and settings along. The others are
initialised by the scheme of the family, and are stored under the names that they have in the tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.auto import resolve
from transept.core.classes import FAMILIES
from transept.core.loading import initialize_module
from transept.core.model import Backbone, Model
from transept.core.parts import Composed, Part
from transept.errors import UnsupportedError, refuse
from transept.layers.links import tensors
from transept.objectives.classification import IGNORED

_UNSHIFTED = re.compile(r"For(MaskedLM|\w{0,30}Classification|ConditionalGeneration|QuestionAnswering|MultipleChoice)")


class _Base(type):
    """Of classes to derive from: the models of the library are instances of theirs, as users expect."""

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, other: type) -> bool:
        if "family" not in cls.__dict__ or not issubclass(other, Model) or super().__subclasscheck__(other):
            return super().__subclasscheck__(other)
        family: type[Config] | None = cls.__dict__["family"]
        base: Any = next((base for base in other.__mro__ if f"{base.__module__}.".startswith(FAMILIES)), None)
        if family is None or base is None:
            return family is None
        file = f"{family.__module__}."  # where an alias has none
        return base.config_class is family or (file != FAMILIES and f"{base.__module__}.".startswith(file))


class PreTrainedModel(Composed, metaclass=_Base):
    """A model of a user's: a subclass writes ``__init__(config)``, which ends with ``self.post_init()``, and ``forward``.

    ``base_model_prefix`` names the attribute whose checkpoints it reads as they are, without that prefix.
    """

    family: ClassVar[type[Config] | None] = None
    config_class = Config
    of_user = True

    def __init__(self, config: Config, *inputs: Any, **options: Any) -> None:
        super().__init__(config)

    def __setattr__(self, name: str, value: Any) -> None:
        is_taken = isinstance(value, nn.Module) and hasattr(PreTrainedModel, name)
        what = f"`{name}` of {type(self).__name__} would hide what models of this library have by that name."
        refuse(is_taken, what, "Give that module another name.", UnsupportedError)
        super().__setattr__(name, value)

    @classmethod
    def parts_of(cls, config: Config) -> tuple[Part, ...]:
        """None: the user's constructor builds what there is."""
        return ()

    def inner_models(self) -> dict[str, Model]:
        """The models that it is made of, by their paths."""
        outer: dict[str, Model] = {}
        for path, module in self.named_modules():
            if module is not self and isinstance(module, Model) and not any(path.startswith(f"{other}.") for other in outer):
                outer[path] = module
        return outer

    @property
    def base_model(self) -> nn.Module:
        base = getattr(self, self.base_model_prefix, None) if self.base_model_prefix else None
        return base if isinstance(base, nn.Module) else self

    @property
    def body(self) -> Backbone:
        base: Any = self.base_model
        if base is self or not isinstance(base, Model):
            base = next(iter(self.inner_models().values()), None)
        if base is None:
            raise UnsupportedError(f"{type(self).__name__} has no model of this library in it, which this needs.")
        return base.body  # type: ignore[no-any-return]

    def targets(self, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        """The labels that ``loss_function`` compares with: the next ones, but where the class's name is of another task."""
        return labels if _UNSHIFTED.search(type(self).__name__) else nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:]

    def place_parts(self) -> None:
        """Leave all parts where the constructor has put them."""

    def get_output_embeddings(self) -> Any:
        return getattr(self, "lm_head", None)

    def checkpoint_names(self) -> Names:
        names = Names(absent=("*",))
        for path, model in self.inner_models().items():
            inner, is_base = model.checkpoint_names(), path == self.base_model_prefix
            if not is_base and inner.within is not None:  # a checkpoint may lack it as a whole
                inner = replace(inner, within=inner.within | Names(absent=("*",)))
            names |= inner.below(path, loose=is_base) | Names(heads=inner.heads)
        return self.with_stated(names)

    def initialize_module(self, module: nn.Module) -> None:
        if self.inner_models():
            self.body.initialize_module(module)
        else:
            initialize_module(module, self.deviation(module))

    def initialize(self, names: Iterable[str] | None = None) -> None:
        wanted, inside = None if names is None else {*names}, set[nn.Module]()
        for path, model in self.inner_models().items():
            inside |= {*model.modules()}
            own = None if wanted is None else [name.removeprefix(f"{path}.") for name in wanted if name.startswith(f"{path}.")]
            if own is None or own:
                model.initialize(own)
        named = {**dict(self.named_parameters(remove_duplicate=False)), **dict(self.named_buffers(remove_duplicate=False))}
        new = {id(tensor) for name, tensor in named.items() if wanted is None or name in wanted}
        for module in (module for module in self.modules() if module not in inside):
            if any(id(tensor) in new for tensor in tensors(module).values()):
                self._init_weights(module)
        self.restore()


@cache
def base_class(name: str, config_class: type[Config]) -> type[PreTrainedModel]:
    """The class of a family that its users derive from, such as ``BertPreTrainedModel``."""
    try:
        model: Any = resolve(config_class.model_type, "Model", "")
    except UnsupportedError:  # a part of other families
        model = PreTrainedModel
    body = {"family": config_class, "config_class": config_class, "base_model_prefix": model.base_model_prefix}
    body |= {
        "main_input_name": model.main_input_name,
        "__module__": config_class.__module__,
        "__doc__": PreTrainedModel.__doc__,
    }
    made: Any = _Base(name, (PreTrainedModel,), body)
    return made  # type: ignore[no-any-return]
