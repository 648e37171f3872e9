"""Configurations with rotary position embeddings, whose parameters may be for all layers or for each kind of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from transept.config.fields import checked
from transept.config.model import Config
from transept.errors import ConfigError

_SHARED = ("rope_theta", "partial_rotary_factor")  # what stood beside ``rope_scaling`` in older files
FOR_ALL = "default"  # the kind of the layers of a model whose layers all have the same rotary table


def is_nested(rope: dict[str, Any]) -> bool:
    """Whether there are parameters for each of several kinds of layers."""
    return any(isinstance(part, dict) for part in rope.values())


class RotaryConfig(Config):
    """A config with rotary position embeddings.

    ``rope_parameters`` holds ``rope_type``, ``rope_theta`` and what the type needs; files of the older layout
    (``rope_theta`` beside ``rope_scaling``) are read into it. Where layers of several kinds (``layer_types``) are rotated
    differently, it holds one such mapping for each kind.
    """

    default_theta: ClassVar[float] = 10000.0
    default_share: ClassVar[float | None] = None  # of each head's dimensions that turn; all of them by default
    # The base for each kind of layer, in families that have parameters for each.
    default_thetas: ClassVar[Mapping[str, float]] = {}
    # The kinds of layers that parameters for none of them are for; all by default.
    scaled_kinds: ClassVar[tuple[str, ...] | None] = None

    aliases = {"rope_scaling": "rope_parameters"}  # the base and the share stay where a new value has none
    rope_parameters: dict[str, Any] | None = None

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Gather ``rope_scaling`` and ``rope_parameters``; what they hold themselves counts more than what stands beside."""
        rope: dict[str, Any] = {}
        for key in ("rope_parameters", "rope_scaling"):
            rope = checked(values.pop(key, None) or {}, dict, key, cls.__name__) or rope
        values = super().upgrade(values)
        beside = {name for name in _SHARED if name in rope}
        return {name: value for name, value in values.items() if name not in beside} | {"rope_parameters": rope}

    def __setattr__(self, name: str, value: Any) -> None:
        name = self.aliases.get(name, name)
        if name == "rope_parameters" and isinstance(value, dict | None):
            old = self.__dict__.get("rope_parameters") or {}
            kept = {key: old[key] for key in _SHARED if key in old and value and not is_nested(value)}
            value = self.complete(kept | copy.deepcopy(value or {}))
        super().__setattr__(name, value)

    @classmethod
    def complete(cls, rope: dict[str, Any]) -> dict[str, Any]:
        """Rotary parameters with the defaults of the family; what stands beside those of kinds is for ``scaled_kinds``."""
        share = {} if cls.default_share is None else {"partial_rotary_factor": cls.default_share}
        if not cls.default_thetas:
            usual = {"rope_type": rope.get("type", "default"), "rope_theta": cls.default_theta, **share}
            return rope if is_nested(rope) else usual | rope
        common = {key: value for key, value in rope.items() if key not in cls.default_thetas}
        found = {}
        for kind, theta in cls.default_thetas.items():
            own = rope.get(kind) or {}
            if not isinstance(own, dict):
                raise ConfigError(f"`rope_parameters` needs a mapping for {kind!r}, but has {str(own)[:80]!r}.")
            shared = common if cls.scaled_kinds is None or kind in cls.scaled_kinds else {}
            found[kind] = {"rope_type": "default", "rope_theta": theta, **share, **shared, **own}
        return found

    def _change(self, name: str, value: Any) -> None:
        """Replace one of the parameters, of each kind of layer where there are several; ``None`` changes nothing."""
        if value is not None:
            checked(value, float, name, type(self).__name__)
            rope = self.rope_parameters or {}
            pairs = {kind: own | {name: value} for kind, own in rope.items()} if is_nested(rope) else rope | {name: value}
            self.rope_parameters = pairs

    @property
    def rope_theta(self) -> float:
        """The base of the rotary frequencies, for families with one kind of layer."""
        rope = self.rope_parameters or {}
        return float(rope["rope_theta"] if "rope_theta" in rope else self.__getattr__("rope_theta"))

    @rope_theta.setter
    def rope_theta(self, value: float | None) -> None:
        self._change("rope_theta", value)

    partial_rotary_factor = property(
        lambda self: (self.rope_parameters or {}).get("partial_rotary_factor"),
        lambda self, value: self._change("partial_rotary_factor", value),
        doc="The share of each head's dimensions that turn; all of them when ``None``.",
    )

    def _kinds_of_layers(self) -> list[str] | None:
        if not is_nested(self.rope_parameters or {}):
            return None
        if getattr(self, "layer_types", None) is None:
            self.fail("rope_parameters", "must be parameters for all layers, which are of one kind in this family")
        kinds: list[str] = self.layer_types
        return kinds

    def rope_kinds(self) -> list[str]:
        """The kinds of layers that have rotary tables of their own, in order of their names."""
        kinds = self._kinds_of_layers()
        return [FOR_ALL] if kinds is None else sorted({*kinds})

    def rope_kind(self, layer: int) -> str | None:
        """The kind whose rotary table is a layer's; ``None`` for a layer that has no rotary positions."""
        kinds = self._kinds_of_layers()
        return FOR_ALL if kinds is None else kinds[layer]

    def rope(self, kind: str = FOR_ALL) -> dict[str, Any]:
        """The parameters of the rotary table for one kind of layers, and the lengths it may depend on."""
        rope = (self.rope_parameters or {}) if kind == FOR_ALL else (self.rope_parameters or {}).get(kind)
        if not isinstance(rope, dict):
            raise ConfigError(f"`rope_parameters` of {type(self).__name__} needs a mapping for {kind!r}.")
        most: int = self.max_position_embeddings
        # Some families keep the original length beside the parameters, and there it counts.
        original = getattr(self, "original_max_position_embeddings", None) or rope.get("original_max_position_embeddings")
        return {**rope, "max_position_embeddings": most, "original_max_position_embeddings": original or most}


def theta_of(kind: str, otherwise: str | None = None) -> Any:
    """A setting of older files: the base for one kind of layer; with ``otherwise``, ``None`` means the base of that kind."""

    def change(config: RotaryConfig, theta: float | None) -> None:
        rope = config.rope_parameters or {}
        if theta is None and otherwise is not None:
            theta = rope[otherwise]["rope_theta"]
        if theta is not None:
            config.rope_parameters = rope | {kind: rope[kind] | {"rope_theta": theta}}

    return property(lambda config: config.rope_parameters[kind]["rope_theta"], change)
