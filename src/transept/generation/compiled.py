"""The caches that settings ask for, and steps as compiled graphs: what ``compile_config`` asks for.

A graph for the CPU holds the weights itself, in the order in which its loops read them, so that a step runs at the speed of the
memory. It is made again when a weight has changed.
"""

from __future__ import annotations

import inspect
import sys
import types
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from transept.config.model import Config
from transept.errors import ConfigError, UnsupportedError, nearest, refuse
from transept.generation.config import GenerationConfig
from transept.layers.caches.cache import Cache, SlidingWindowCache
from transept.layers.caches.offloaded import OffloadedCache
from transept.layers.caches.quantized import QuantizedCache
from transept.layers.caches.static import StaticCache
from transept.layers.linear import plain_weights
from transept.outputs import ModelOutput

# What makes a step fastest on the CPU, in the words of PyTorch's compiler: products by loops of its own, the fastest of some;
# projections of the same states joined; no Python between loops.
_FASTEST: dict[str, Any] = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN", "cpp.enable_concat_linear": True}
_FASTEST |= {"cpp_wrapper": True, "autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}

# Graphs that are kept of a model, each with weights of its own.
_KEPT = 2

CACHES: dict[str, type[Cache] | None] = {"dynamic": None, "static": StaticCache}
CACHES |= {"sliding_window": SlidingWindowCache, "hybrid": SlidingWindowCache}
CACHES |= {"offloaded": OffloadedCache, "quantized": QuantizedCache}
# Positions that a cache for compiled graphs is made larger by at a time.
_ROOM = 256


def make_cache(settings: GenerationConfig, model_config: Config, length: int | None = None) -> Cache | None:
    """The cache that the settings ask for; ``None`` for the one that the model makes itself.

    ``length`` is how many positions will be read; what a static cache has room for unless ``max_cache_len`` says more.

    Raises:
        ConfigError: a kind that there is not, or a ``cache_config`` that the kind does not take.
        InputError: a static cache without a size, or of too small a one.
    """
    name, given = settings.cache_implementation or "dynamic", dict(settings.cache_config or {})
    if name not in CACHES:
        what = f"`cache_implementation` is {name!r}, but the kinds are {', '.join(CACHES)}."
        raise ConfigError(what, hint=nearest(name, CACHES))
    kind = CACHES[name]
    taken = [] if kind is None else [each for each in inspect.signature(kind).parameters if each != "config"]
    for key in [each for each in given if each not in taken]:
        known = f"those of {name!r} are {', '.join(taken)}" if taken else f"{name!r} has none"
        raise ConfigError(f"`cache_config` has no setting {key!r}: {known}.", hint=nearest(str(key), taken))
    if kind is StaticCache:
        room = settings.max_cache_len or given.get("max_cache_len")
        refuse(room is None and length is None, "a static cache needs a size.", "Set `max_cache_len`.")
        what = f"`max_cache_len` is {room}, but {length} positions will be read."
        refuse(room is not None and room < (length or 0), what, "Leave it out to have the cache made as large as is needed.")
        # A graph is for one size: texts of about one length then share it.
        step = _ROOM if room is None and compiles(settings) else 1
        given["max_cache_len"] = -(-(room or length or 0) // step) * step
    return None if kind is None else kind(**given | {"config": model_config})


def compiles(settings: GenerationConfig) -> bool:
    """Whether steps are compiled: where somebody asks for it, since that takes long."""
    return settings.compile_config is not None and not settings.disable_compile


def compiled_step(model: Any, settings: GenerationConfig, cache: Cache | None) -> Callable[..., Any] | None:
    """The model's step as ``compile_config`` wants it compiled, or ``None`` where nobody asks for that.

    Another cache than a static one is refused: its graph would be compiled anew at every length.
    """
    if not compiles(settings):
        return None
    hint = 'Set cache_implementation="static", or disable_compile=True.'
    refuse(not isinstance(cache, StaticCache), "`compile_config` needs a cache of one size.", hint)
    given = dict(settings.compile_config or {})
    if model.device.type != "cpu" or given.get("backend") not in (None, "inductor"):
        return _compiler(model.step, given, frozen=False)
    kept = _STEPS.setdefault(model, CompiledSteps())
    kept.use(given, model)
    return partial(kept, model)


class CompiledSteps:
    """The compiled graphs of one model on the CPU, by the form of the inputs."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.state: Any = None
        self.weights: list[Tensor] = []
        self.graphs: OrderedDict[Any, Callable[..., Any]] = OrderedDict()

    def use(self, given: dict[str, Any], model: nn.Module) -> None:
        """Forget the graphs of other settings, or of weights that are no more."""
        state = _state(model)
        if (given, state) != (self.given, self.state):
            self.given, self.state = given, state
            # Kept, since a weight that comes later could otherwise have the identity of one that is gone.
            self.weights = [*model.parameters(), *model.buffers()]
            self.graphs.clear()

    def __call__(self, model: Any, **inputs: Any) -> Any:
        """The model's output; takes long for inputs of a new form."""
        form = (_surroundings(), model.training, *((name, _form(value)) for name, value in inputs.items()))
        if (graph := self.graphs.get(form)) is not None:
            self.graphs.move_to_end(form)
            return graph(model, **inputs)

        def plain(model: Any, **inputs: Any) -> Any:
            return model.step(**inputs)

        # PyTorch keeps graphs by code, and does not look at modules (below): each graph has a code of its own.
        step = types.FunctionType(plain.__code__.replace(), plain.__globals__)
        graph = _compiler(step, self.given, frozen=True)
        # PyTorch would keep what it compiled, weights and all, when nobody has the graph any more.
        weakref.finalize(graph, torch._dynamo.reset_code, step.__code__).atexit = False  # type: ignore[attr-defined]
        with plain_weights(model), _frozen():
            found = graph(model, **inputs)
        self.graphs[form] = graph
        if len(self.graphs) > _KEPT:
            self.graphs.popitem(last=False)
        return found


_MODEL = "L['model']"  # what the names of a compiled step's conditions on its model hold
_STEPS: weakref.WeakKeyDictionary[nn.Module, CompiledSteps] = weakref.WeakKeyDictionary()


def _compiler(function: Callable[..., Any], given: dict[str, Any], frozen: bool) -> Callable[..., Any]:
    """The function as PyTorch will compile it, perhaps with the weights in it; ``ConfigError`` for what it does not know."""
    mode, own = given.get("mode"), given.get("options")
    try:
        if not frozen:
            return torch.compile(function, **given)
        chosen = _FASTEST if own is None else {}
        if mode is not None:
            from torch._inductor import list_mode_options

            chosen = list_mode_options(mode)
        # What modules hold is looked at once for each text that is written (``_state``), and not in each step.
        always = {"freezing": True, "guard_filter_fn": _of_inputs}
        options = {**chosen, **(own or {}), **always}
        return torch.compile(function, **{"dynamic": False, **given, "mode": None, "options": options})
    except RuntimeError as error:
        said = str(error).partition(", known options")[0].rstrip(".")
        raise ConfigError(f"`compile_config` cannot be used: {said}.") from error


def _of_inputs(guards: Iterable[Any]) -> list[bool]:
    """Which of PyTorch's conditions are kept: none that concern the model, which would keep it alive with its graph."""
    return [_MODEL not in guard.orig_guard.name for guard in guards]


@contextmanager
def _frozen() -> Iterator[None]:
    """Compile with the weights as constants, which live as long as the graph; ``UnsupportedError`` without a C++ compiler."""
    import torch._inductor.config as settings
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    before = set(sys.modules)
    try:
        # The option of the same name comes too late for the half of the compiler that reads Python.
        with settings.patch(freezing=True), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)  # from within the compiler
            yield
    except InductorError as error:
        if isinstance(error.inner_exception, InvalidCxxCompiler):
            hint = "Install one, such as g++, or leave `compile_config` out."
            raise UnsupportedError("steps are compiled by a C++ compiler, and there is none.", hint=hint) from error
        raise
    finally:
        # A graph is a module with weights, and these lists would keep it for ever.
        PyCodeCache.cache_clear()
        for name in sys.modules.keys() - before:
            if name.startswith("torch._inductor.runtime.compile_tasks."):
                del sys.modules[name]


def _surroundings() -> Any:
    """What a graph depends on beside its inputs: where it differs, PyTorch would compile again, without the weights."""
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    return *modes, autocast, torch.get_default_dtype(), torch.get_num_threads()


def _form(value: Any) -> Any:
    """What a graph depends on of an input."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, ModelOutput):
        return tuple(map(_form, value.to_tuple()))
    if isinstance(value, Cache):
        return type(value), value.get_max_length(), value.layers[0].shape if value.layers else None
    return value


def _state(model: nn.Module) -> Any:
    """What tells whether modules, hooks and weights are those that a graph was made with."""
    parts = [(id(each), *each._forward_pre_hooks, *each._forward_hooks) for each in model.modules()]
    return parts, [(name, id(each), *_content(each)) for name, each in chain(model.named_parameters(), model.named_buffers())]


def _content(weight: Tensor) -> tuple[int, int, str]:
    """Where a weight's values lie, how often they were written, and, since ``.data`` is not counted, a few of them."""
    version = 0 if weight.is_inference() else weight._version
    if weight.is_mkldnn:
        return 0, version, ""
    few = weight.detach()[tuple(slice(None, None, -(-size // 4) or 1) for size in weight.shape)]
    return weight.data_ptr(), version, str(few.flatten().tolist())
