"""From settings to a cache: ``cache_implementation``, ``cache_config``."""

from __future__ import annotations

import inspect
from typing import Any

from transept.config import Config
from transept.errors import ConfigError, InputError, nearest
from transept.generation.compiled import compiles
from transept.generation.config import GenerationConfig
from transept.layers.cache import Cache
from transept.layers.caches import SlidingWindowCache, StaticCache
from transept.layers.offloaded_cache import OffloadedCache
from transept.layers.quantized_cache import QuantizedCache

KINDS: dict[str, type[Cache] | None] = {
    "dynamic": None,
    "static": StaticCache,
    "sliding_window": SlidingWindowCache,
    "hybrid": SlidingWindowCache,
    "offloaded": OffloadedCache,
    "quantized": QuantizedCache,
}

# Positions that a cache for compiled programs is made larger by at a time.
_ROOM = 256


def make_cache(settings: GenerationConfig, model_config: Config, length: int | None = None) -> Cache | None:
    """The cache that the settings ask for; ``None`` for the one that the model makes itself.

    Args:
        settings: complete.
        model_config: of the model that it is for.
        length: positions that will be read; what a static cache has room for unless ``max_cache_len`` says more.

    Raises:
        ConfigError: a kind that there is not, or a ``cache_config`` that the kind does not take.
        InputError: a static cache without a size, or of too small a one.
    """
    name = settings.cache_implementation
    if name is not None and name not in KINDS:
        raise ConfigError(
            f"`cache_implementation` is {name!r}, but the kinds are {', '.join(KINDS)}.", hint=nearest(str(name), KINDS)
        )
    kind = None if name is None else KINDS[name]
    given = _known(kind, settings.cache_config or {}, str(name))
    if kind is None:
        return None
    if kind is StaticCache:
        room = settings.max_cache_len or given.get("max_cache_len")
        size = _size(room, length)
        # A program is for one size: texts of about one length then share it.
        given["max_cache_len"] = -(-size // _ROOM) * _ROOM if room is None and compiles(settings) else size
    return kind(**given | {"config": model_config})


def _known(kind: type[Cache] | None, given: dict[str, Any], name: str) -> dict[str, Any]:
    """A ``cache_config`` that holds nothing that the kind does not take."""
    taken = [] if kind is None else [each for each in inspect.signature(kind).parameters if each != "config"]
    for key in given:
        if key not in taken:
            known = f"those of {name!r} are {', '.join(taken)}" if taken else f"{name!r} has none"
            raise ConfigError(f"`cache_config` has no setting {key!r}: {known}.", hint=nearest(str(key), taken))
    return dict(given)


def _size(asked: int | None, length: int | None) -> int:
    if asked is None and length is None:
        raise InputError("a static cache needs a size.", hint="Set `max_cache_len`.")
    if asked is not None and length is not None and asked < length:
        raise InputError(
            f"`max_cache_len` is {asked}, but {length} positions will be read.",
            hint="Leave it out to have the cache made as large as is needed.",
        )
    return asked or length or 0
