"""What people expect of any model: ``from_pretrained``, ``save_pretrained``, tied and resized embeddings."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self, overload

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transept.checkpoint.few_bits_writing import written, written_state
from transept.checkpoint.load import LoadReport, check, everything, fill, plan, share
from transept.checkpoint.names import Names
from transept.checkpoint.quantized import unpacked
from transept.checkpoint.store import is_weights, open_store, save_checkpoint
from transept.config.model import CONFIG_NAME, Config
from transept.core.few_bits import FewBits
from transept.core.task_table import pipeline_tag
from transept.core.training import ForLibraries
from transept.environment.read_ahead import read_ahead
from transept.environment.tiles import guard
from transept.errors import CheckpointError, ConfigError, InputError, InputTypeError, TranseptError, UnsupportedError, refuse
from transept.layers.linear import Conv1D, resize_rows
from transept.layers.links import tensors
from transept.storage.publish import Pushable
from transept.storage.source import Source, model_name, take_source_options

_Name = str | os.PathLike[str] | None
# How several processes share a model, which the room for that knows; by name, since it stands above.
_SHARING, _SHARED = ("tp_plan", "tp_size", "distributed_config"), "transept.parallel.files"


class Pretrained(ForLibraries, Pushable):
    """Loading, saving, publishing and resizing of models; subclasses give the names."""

    config: Config
    config_class: ClassVar[type[Config]]
    load_report: LoadReport | None = None

    def untie(self) -> None:
        self.config.tie_word_embeddings = False

    # --- building and loading ----------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, config: Config, **overrides: Any) -> Self:
        """A model with new weights, of the type ``dtype`` where that is given; ``overrides`` are settings."""
        if (wanted := overrides.pop("torch_dtype", overrides.pop("dtype", None))) is not None:
            overrides["dtype"] = dtype_named(wanted, config, {})
        model = cls(config.with_settings(**overrides) if overrides else config)
        return model if wanted is None else model.to(overrides["dtype"])

    _from_config = from_config

    @overload
    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: _Name, *, output_loading_info: Literal[False] = False, **options: Any
    ) -> Self: ...

    @overload
    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: _Name, *, output_loading_info: Literal[True], **options: Any
    ) -> tuple[Self, dict[str, Any]]: ...

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: _Name,
        *,
        config: Config | str | os.PathLike[str] | None = None,
        state_dict: Mapping[str, Tensor] | None = None,
        dtype: str | torch.dtype | None = None,
        device: str | int | torch.device | None = None,
        device_map: str | int | torch.device | Mapping[str, Any] | None = None,
        strict: bool = True,
        ignore_mismatched_sizes: bool = False,
        use_safetensors: bool | None = None,
        variant: str | None = None,
        output_loading_info: bool = False,
        **options: Any,
    ) -> Self | tuple[Self, dict[str, Any]]:
        """Build a model and fill it with a checkpoint's weights, in evaluation mode.

        The weights of safetensors files are mapped, not copied, where type and device allow.

        Args:
            pretrained_model_name_or_path: a directory, or a repository of the hub; ``None`` with a config and a state.
            config: the configuration, or where it is; read from ``config.json`` when absent.
            state_dict: weights under the checkpoint's names or ours, in place of the files'.
            dtype: type of the floating-point weights (also ``torch_dtype``); the checkpoint's when absent or ``"auto"``.
            device: where the model goes; the default device when absent.
            device_map: the same under the reference's name: a device, ``"auto"``, or ``{"": device}``.
            strict: whether weights that are missing or in excess (beyond heads and poolers) are an error.
            ignore_mismatched_sizes: initialise weights of another shape anew.
            use_safetensors: ``False`` reads ``pytorch_model.bin``, and ``None`` reads it where there is nothing else, with a
                warning; ``True`` never does.
            variant: read ``model.<variant>.safetensors``.
            output_loading_info: also return what was filled, missing and skipped.
            options: where to look (see :class:`transept.storage.source.Source`), settings that replace the config's, arguments
                of the constructor such as ``add_pooling_layer``, and those of the reference that change nothing here.
                ``tp_plan``, ``tp_size`` or ``distributed_config`` say how several processes share the model (see
                :class:`transept.DistributedConfig`); each reads its own part.

        Raises:
            FileError: the model, its config or weights cannot be found.
            InputError: an argument that cannot be.
            ConfigError, FormatError: a file is corrupt.
            CheckpointError: weights and model do not fit; lists every name.
        """
        hub, few_bits = take_source_options(options), FewBits(options)
        generation = options.pop("generation_config", None)
        split, device = cls._split(options, device, device_map)
        dtype, place = options.pop("torch_dtype", None) or dtype or "auto", device_named(device, device_map)
        own = set(inspect.signature(cls.__init__).parameters) - {"self", "config"}  # such as `add_pooling_layer`
        arguments = {name: options.pop(name) for name in own & options.keys()}
        config = cls._config(pretrained_model_name_or_path, config, options, hub)
        if state_dict is not None:
            model, report = cls._of_state(config, arguments, state_dict, strict)
            model = model.to(place, None if dtype == "auto" else dtype_named(dtype, config, {})).eval()
            if split is not None:
                split.divide(model)
            return (model, report.as_dict()) if output_loading_info else model
        source = Source(model_name(pretrained_model_name_or_path), **hub)
        store = unpacked(open_store(source, variant=variant, safe=use_safetensors), config.extra.get("quantization_config"))
        try:
            model, wanted = cls._without_memory(config, arguments), dtype_named(dtype, config, store)
            report, names = plan(model, store.names(model), store)
            check(model, names, report, store, strict=strict, ignore_mismatched=ignore_mismatched_sizes)
            part, alone = everything if split is None else split.prepare(model, report, wanted), split is None
            if alone:
                read_ahead(store.files)
            rounds = few_bits.rounds(model, names.keys, store, place, alone=alone)
            keeps = few_bits.keeps(store, place, alone=alone)
            fill(model, names, store, report, dtype=wanted, device=place, part=part, keeps_bits=keeps, replace=rounds)
        except ConfigError as error:
            error.path = error.path or source.name
            raise
        if split is not None:
            split.finish(model, report)
        model.config.extra.pop("quantization_config", None)  # saved weights have one of their own
        model.config.dtype = wanted
        model.name_or_path = model.config.name_or_path = source.location
        model.load_report = report
        guard(model.eval())
        model.loaded(source)
        if generation is not None:
            model.generation_config = generation
        return (model, report.as_dict()) if output_loading_info else model

    @staticmethod
    def _split(options: dict[str, Any], device: Any, device_map: Any) -> tuple[Any, Any]:
        """How processes share the model, where they do, and the device of this one."""
        sharing = {name: options.pop(name, None) for name in _SHARING}
        if all(value is None for value in sharing.values()):
            return None, device
        split = importlib.import_module(_SHARED).division(**sharing)
        return split, split.device if device is None and device_map is None else device

    @classmethod
    def _config(cls, path: Any, config: Any, options: dict[str, Any], hub: dict[str, Any]) -> Config:
        """The config that was passed or is read."""
        if config is None or isinstance(config, str | os.PathLike):
            return cls.config_class.from_pretrained(path if config is None else config, overrides=options, **hub)
        return check_config(config).with_settings(**options)

    @classmethod
    def _of_state(cls, config: Config, arguments: Any, state: Any, strict: bool) -> tuple[Self, LoadReport]:
        try:  # shapes first: a config alone must not take memory
            empty = cls._without_memory(config, arguments)
            state = translated(empty, empty.checkpoint_names(), state)
            empty.load_state_dict(state, strict=False, assign=True)
            names = (model := cls(config, **arguments)).checkpoint_names()
            missing, unexpected = model.load_state_dict(state, strict=False)
        except RuntimeError as error:
            raise CheckpointError(f"`state_dict` does not fit {cls.__name__}: {' '.join(str(error).split())[:500]}") from error
        wrong = [name for name in missing if name not in names.tied and names.group(name) is None]
        if strict and (wrong or unexpected):
            what = f"`state_dict` does not fit {cls.__name__}: missing {wrong[:20]}, unexpected {unexpected[:20]}."
            raise CheckpointError(what, hint="Pass strict=False to allow them.", missing=wrong, unexpected=unexpected)
        model.load_report = LoadReport(missing=list(missing), unexpected=list(unexpected))
        return model, model.load_report

    @classmethod
    def _without_memory(cls, config: Config, arguments: Mapping[str, Any]) -> Self:
        """The model on the meta device, where shapes are known and nothing is allocated."""
        try:
            with torch.device("meta"), Unfilled():
                return cls(config, **arguments)
        except TranseptError:
            raise
        except Exception as error:  # whatever a layer objects to in settings that each look right
            why = " ".join(str(error).split())[:200]
            raise ConfigError(f"the config describes no {cls.__name__} that can be built ({why}).") from error

    def loaded(self, source: Source) -> None:
        """Take what else stands beside the weights, once they are there."""

    def initialize(self, names: Iterable[str] | None = None) -> None:
        if names is not None and not (names := list(names)):
            return
        named = {**dict(self.named_parameters(remove_duplicate=False)), **dict(self.named_buffers(remove_duplicate=False))}
        wanted = None if names is None else {id(named[name]) for name in names}
        for module in self.modules():
            if wanted is None or any(id(tensor) in wanted for tensor in tensors(module).values()):
                self._init_weights(module)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Fill one module's own parameters; a class of a user's may do it otherwise."""
        self.initialize_module(module)

    def initialize_module(self, module: nn.Module) -> None:
        """Fill one module's own parameters; families with their own scheme override it."""
        initialize_module(module, self.deviation(module))

    def deviation(self, module: nn.Module) -> float:
        """The standard deviation with which a module's matrix is drawn."""
        deviation: float = getattr(self.config, "initializer_range", 0.02)
        return deviation

    # --- saving ------------------------------------------------------------------------------------------------------

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: Mapping[str, Tensor] | None = None,
        save_function: Any = None,
        push_to_hub: bool = False,
        max_shard_size: int | str = "50GB",
        variant: str | None = None,
        *,
        safe_serialization: bool = True,
        **options: Any,
    ) -> None:
        """Write ``config.json`` and safetensors under the ecosystem's names, so that a crash leaves the old files whole.

        Args:
            save_directory: where to; made where needed.
            is_main_process: false writes nothing, for all processes but one.
            state_dict: our names and tensors, in place of the model's own.
            save_function: of no effect: safetensors writes.
            push_to_hub: publish the model, too, as ``repo_id`` or under the directory's name.
            max_shard_size: bytes or a size such as ``"5GB"``; above it the weights are split, with an index.
            variant: write ``model.<variant>.safetensors``.
            safe_serialization: must be true.
            options: of :meth:`push_to_hub`.

        Raises:
            InputError: arguments that cannot be.
            FileError: the directory cannot be written.
        """
        refuse(not safe_serialization, "weights are written as safetensors only.", "Leave it out.", UnsupportedError)
        what = f"save_pretrained() takes no `{next(iter(options), None)}` without push_to_hub=True."
        refuse(options and not push_to_hub, what, kind=InputTypeError)
        given: Any = save_directory
        where = str(os.fspath(given)) if isinstance(given, str | os.PathLike) else ""
        refuse(not where, f"`save_directory` is a directory to save into, not {save_directory!r:.60}.", kind=InputTypeError)
        names = self.checkpoint_names()
        state = written_state(self, state_dict)
        if any(hasattr(tensor, "full_tensor") for tensor in state.values()):  # of which this process has a part
            files = importlib.import_module(_SHARED).ModelFiles(state, names.keys, max_shard_size)
            is_main_process = files.save(self.texts(), where, variant, writes=is_main_process)
        elif is_main_process:
            stored, settings = written(state, names.keys, self)
            save_checkpoint(stored, self.texts(**settings), where, max_shard_size=max_shard_size, variant=variant)
        if push_to_hub and is_main_process:
            self.push_to_hub(options.pop("repo_id", os.path.basename(os.path.abspath(where))), variant=variant, **options)

    def texts(self, **settings: Any) -> dict[str, str]:
        """File names and contents of what is saved beside the weights; ``settings`` are added to the config's."""
        config = self.config.with_settings(architectures=[type(self).__name__], dtype=self.dtype)
        config.extra.update(settings)
        return {CONFIG_NAME: config.to_json_string()}

    def card_data(self) -> dict[str, Any]:
        """The family, the task and added tags, for a model card."""
        return {"tags": [self.config.model_type, *self.model_tags], "pipeline_tag": pipeline_tag(type(self).__name__)}

    def supersedes(self, name: str, variant: str | None = None) -> bool:
        return is_weights(name, variant)

    # --- embeddings --------------------------------------------------------------------------------------------------

    def tie_weights(self) -> None:
        """Make tied parameters one again, as after replacing one of them."""
        share(self, self.checkpoint_names().tied)

    def resize_token_embeddings(
        self: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Grow or shrink the vocabulary: its embeddings, its output layer and ``config.vocab_size``.

        New rows are the mean of the old ones, so that new tokens start out as likely as an average one, or those of a new model
        with ``mean_resizing=False``. The number of rows is rounded up to ``pad_to_multiple_of``, for fast matrix units. A
        number below one, a multiple that is no integer, or a model without token embeddings, is an ``InputError``.
        """
        table = self.get_input_embeddings()
        if not isinstance(table, nn.Embedding):
            raise InputError(f"{type(self).__name__} has no token embeddings, but {type(table).__name__}.")
        size = table.num_embeddings if new_num_tokens is None else new_num_tokens
        multiple = 1 if pad_to_multiple_of is None else pad_to_multiple_of
        wrong = type(multiple) is not int or size < 1 or multiple < 1
        refuse(wrong, f"the vocabulary cannot have {size} tokens in multiples of {multiple}.")
        size = -(-size // multiple) * multiple
        resize_rows(self.vocabulary_layers(), size, None if mean_resizing else self._init_weights)
        self.config.set_vocab_size(size)
        self.tie_weights()
        return table

    def vocabulary_layers(self: Any) -> list[nn.Module]:
        """The layers that have a row for each token: the embeddings, and the output layer where there is one."""
        output = self.get_output_embeddings()
        return [self.get_input_embeddings(), *(() if output is None else (output,))]


def translated(model: nn.Module, names: Names, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state under the names of a file, or of the tree of modules, as one under the names of the tree."""
    keys, canonical, own = names.keys, names.canonical(state), model.state_dict()
    read, used = dict[str, Tensor](), set[str]()
    for name in keys.slots(own, canonical):
        recipe = keys.recipe(name)
        if (stored := canonical.get(recipe.stored)) is not None:
            read[name] = recipe.take(state[stored], recipe.lengths(own))
            used.add(stored)
    return keys.stack(read) | {name: tensor for name, tensor in state.items() if name not in used and not names.skips(name)}


class Unfilled(TorchFunctionMode):
    """Inside, layers are made without filling their parameters, which makes PyTorch import its compiler on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def initialize_module(module: nn.Module, std: float) -> None:
    """Fill a module's own parameters: normal matrices, zero biases; others by the ``reset_parameters`` of their module."""
    if isinstance(module, nn.Linear | Conv1D | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, std=std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=std)
        if module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
    elif tensors(module) and inspect.ismethod(getattr(module, "reset_parameters", None)):
        module.reset_parameters()  # type: ignore[operator]


def check_config(config: Any) -> Config:
    if not isinstance(config, Config):
        hint = "Pass a configuration, or where its file is."
        raise InputTypeError(f"`config` is a configuration, not {type(config).__name__}: {config!r:.60}.", hint=hint)
    return config


def dtype_named(wanted: str | torch.dtype, config: Config, store: Mapping[str, Any]) -> torch.dtype:
    """The type that the weights are to have; no floating-point one is an error of the caller's or the config's."""
    if isinstance(wanted, torch.dtype) and wanted.is_floating_point:
        return wanted
    if wanted == "auto" and not config.dtype:
        kinds = (store[key].dtype for key in store)
        return next((kind for kind in kinds if kind.is_floating_point), torch.get_default_dtype())
    name = str(config.dtype if wanted == "auto" else wanted)
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        rule = f"must be 'auto' or a floating-point type such as 'float32', but is {name[:80]!r}."
        raise ConfigError(f"`dtype` of {type(config).__name__} {rule}") if wanted == "auto" else InputError(f"`dtype` {rule}")
    return found


def device_named(device: str | int | torch.device | None, device_map: Any) -> torch.device:
    """The one place that a whole model goes to."""
    chosen: Any = device_map if device is None else device
    if isinstance(chosen, Mapping):
        refuse(set(chosen) != {""}, f"`device_map` places whole models: {{'': device}}, but is {dict(chosen)!r}.")
        chosen = chosen[""]
    if chosen is None:
        chosen = torch.get_default_device()
    if chosen == "auto":
        chosen = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    try:
        place = torch.device(chosen)
        torch.empty(0, device=place)
    except (RuntimeError, TypeError, AssertionError) as error:
        hint = "Use 'cpu', 'auto', or an accelerator that this machine has, such as 'cuda' or 'cuda:0'."
        raise InputError(f"{str(chosen)!r} is not a device of this machine.", hint=hint) from error
    hint = "Build the model under torch.device('meta') from its config alone."
    refuse(place.type == "meta", "'meta' holds no weights.", hint)
    return place
