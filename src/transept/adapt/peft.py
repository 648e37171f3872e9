"""A model with adapters, under the names of peft: ``get_peft_model(model, LoraConfig(...))``.

The model itself is changed: its parameters are frozen, and the chosen layers get adapters, whose names the model's own names
follow. ``merge_and_unload`` and ``unload`` give a plain model back.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from torch import nn

from transept.adapt import adapter_files as files
from transept.adapt.lora import Adapters, LoraConfig, adapt, adapters_of, check_room, strip
from transept.adapt.targets import rank_of, saved_modules, targets
from transept.core.model import Model
from transept.core.training import FROZEN
from transept.errors import InputError, InputTypeError, nearest
from transept.layers.linear import Conv1D
from transept.quantized.linear import QuantizedLinear
from transept.storage.source import Source, model_name, take_source_options


class PeftModel(nn.Module):
    """A model whose layers have adapters, of which some are active; it is called, trained and asked like the model.

    Args:
        model: the model, whose parameters are frozen from now on.
        peft_config: settings of the first adapter.
        adapter_name: its name.
    """

    def __init__(self, model: Model, peft_config: LoraConfig, adapter_name: str = "default") -> None:
        super().__init__()
        given: tuple[Any, Any] = model, peft_config
        if not isinstance(given[0], Model) or not isinstance(given[1], LoraConfig):
            what = f"adapters are for a model and a LoraConfig, not {type(model).__name__} and {type(peft_config).__name__}."
            raise InputTypeError(what, hint="Models of other libraries are adapted by peft itself.")
        self.model = model
        self.peft_config: dict[str, LoraConfig] = {}
        self.active: tuple[str, ...] = ()
        # What is trained as a whole, by adapter and name, and what stood in its place.
        self.copies, self.originals = nn.ModuleDict(), nn.ModuleDict()
        self.saved: dict[str, dict[str, str]] = {}
        model.requires_grad_(False)
        self.add_adapter(adapter_name, peft_config)
        self.set_adapter(adapter_name)

    base_model = property(lambda self: self, doc="This, as scripts write ``peft_model.base_model.model``.")
    active_adapters = property(lambda self: list(self.active))
    active_adapter = property(lambda self: self.active[0] if self.active else None)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":  # not there yet
                raise
            return getattr(self.model, name)

    def get_base_model(self) -> Model:
        return self.model

    def forward(self, *args: Any, **inputs: Any) -> Any:
        return self.model(*args, **inputs)

    def layers_with_adapters(self) -> Iterator[tuple[nn.Module, Adapters]]:
        for module in tuple(self.model.modules()):
            if (found := adapters_of(module)) is not None:
                yield module, found

    # --- adapters by name --------------------------------------------------------------------------------------------

    def add_adapter(self, adapter_name: str, peft_config: LoraConfig, low_cpu_mem_usage: bool = False) -> None:
        """Give the model another adapter, which is not active yet.

        Raises:
            InputError: the name is taken or cannot be one, or names in the settings that no layer has.
        """
        if not adapter_name or "." in adapter_name or adapter_name in self.peft_config:
            taken = "is taken" if adapter_name in self.peft_config else "cannot be one"
            raise InputError(f"the name {adapter_name!r} of an adapter {taken}.")
        if peft_config.bias != "none" and any(config.bias != "none" for config in self.peft_config.values()):
            raise InputError("two adapters cannot both train the model's biases.", hint='Set bias="none" in one of them.')
        chosen, saved = targets(self.model, peft_config), saved_modules(self.model, peft_config)
        check_room(self.model, {path: rank_of(peft_config, place).r for path, place in chosen.items()})
        for path, place in chosen.items():
            adapt(self.model.get_submodule(path), adapter_name, rank_of(peft_config, place), peft_config)
        self.peft_config[adapter_name], self.saved[adapter_name] = peft_config, saved
        own = nn.ModuleDict()
        if rounded := [path for path in saved if isinstance(self.model.get_submodule(path), QuantizedLinear)]:
            raise InputError(f"{rounded[0]!r} cannot be trained: its weights are of eight bits.", hint="Adapt it, or leave it.")
        for path in saved:
            module = self.originals[_key(path)] if _key(path) in self.originals else self.model.get_submodule(path)
            self.originals[_key(path)] = module
            own[_key(path)] = copy.deepcopy(module)
            for inner in own[_key(path)].modules():
                inner.__dict__.pop(FROZEN, None)
        self.copies[adapter_name] = own
        self._place()

    def set_adapter(self, adapter_name: str | Sequence[str], inference_mode: bool = False) -> None:
        """Use and train these adapters and no others; with ``inference_mode`` none is trained."""
        names = (adapter_name,) if isinstance(adapter_name, str) else tuple(adapter_name)
        for name in names:
            self._known(name)
        self.active = names
        for _, adapters in self.layers_with_adapters():
            adapters.active = names
            for name, adapter in adapters.held.items():
                trained = name in names and not inference_mode and not self.peft_config[name].inference_mode
                adapter.requires_grad_(trained)
        for name, copies in self.copies.items():
            copies.requires_grad_(name in names and not inference_mode and not self.peft_config[name].inference_mode)
        self._place()
        for config in self.peft_config.values():
            for bias in files.biases(self.model, config):
                self.model.get_parameter(bias).requires_grad_(not inference_mode and not config.inference_mode)

    def _known(self, name: str) -> LoraConfig:
        if name not in self.peft_config:
            raise InputError(f"there is no adapter {name!r}.", hint=nearest(str(name), self.peft_config))
        return self.peft_config[name]

    def _place(self, plain: bool = False) -> None:
        """Put what the first active adapter trained as a whole into the model, or what stood there before."""
        used: dict[str, nn.Module] = dict(self.originals.items())
        for name in () if plain else reversed(self.active):
            used |= dict(self.copies[name].items())  # type: ignore[operator]
        for key, module in used.items():
            parent, _, name = key.replace("/", ".").rpartition(".")
            module.train(self.model.training)
            setattr(self.model.get_submodule(parent), name, module)

    def delete_adapter(self, adapter_name: str) -> None:
        """Take an adapter off; where it is active, others or none are."""
        self._known(adapter_name)
        del self.peft_config[adapter_name], self.saved[adapter_name], self.copies[adapter_name]
        for _, adapters in self.layers_with_adapters():
            if adapter_name in adapters.held:
                del adapters.held[adapter_name]
        self.set_adapter([name for name in self.active if name != adapter_name])

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Inside, the model answers as it did without adapters."""
        merged = [(layer, adapters, adapters.merged) for layer, adapters in self.layers_with_adapters()]
        self._place(plain=True)
        try:
            for layer, adapters, _ in merged:
                adapters.enabled = False
                adapters.unmerge(layer)  # type: ignore[arg-type]
            yield
        finally:
            for layer, adapters, names in merged:
                adapters.enabled = True
                if names:
                    adapters.merge(layer, names)  # type: ignore[arg-type]
            self._place()

    # --- merging -----------------------------------------------------------------------------------------------------

    def merge_adapter(self, adapter_names: Sequence[str] | None = None) -> None:
        """Put adapters, or the active ones, into the weights, so that they cost nothing; the weights as they were are kept.

        Raises:
            InputError: the weights are of eight bits, which cannot hold them.
        """
        names = tuple(self.active if adapter_names is None else adapter_names)
        for name in names:
            self._known(name)
        layers = list(self.layers_with_adapters())
        if any(not isinstance(layer, nn.Linear | Conv1D) for layer, _ in layers):
            raise InputError("weights of eight bits cannot take up an adapter.", hint="Load the model without rounding it.")
        for layer, adapters in layers:
            adapters.merge(layer, names)  # type: ignore[arg-type]

    def unmerge_adapter(self) -> None:
        """Put the weights back as they were, bit for bit."""
        for layer, adapters in self.layers_with_adapters():
            adapters.unmerge(layer)  # type: ignore[arg-type]

    def merge_and_unload(
        self, progressbar: bool = False, safe_merge: bool = False, adapter_names: Sequence[str] | None = None
    ) -> Model:
        """The plain model with adapters, or the active ones, in its weights; a tied weight that changed is tied no more."""
        self.unmerge_adapter()
        self.merge_adapter(adapter_names)
        ties = self.model.checkpoint_names().tied
        state = {name for layer, adapters in self.layers_with_adapters() if adapters.merged for name in [id(layer)]}
        paths = {path for path, module in self.model.named_modules() if id(module) in state}
        if any(name.rpartition(".")[0] in paths for pair in ties.items() for name in pair):
            self.model.untie()
        return self._plain()

    def unload(self) -> Model:
        """The plain model, as it was before it got adapters."""
        self.unmerge_adapter()
        self._place(plain=True)
        return self._plain()

    def _plain(self) -> Model:
        for layer, _ in self.layers_with_adapters():
            strip(layer)
        return self.model

    # --- what is trained ---------------------------------------------------------------------------------------------

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        """How many numbers are trained, and how many there are in all."""
        counts = [(parameter.numel(), parameter.requires_grad) for parameter in self.model.parameters()]
        return sum(size for size, trained in counts if trained), sum(size for size, _ in counts)

    def print_trainable_parameters(self) -> None:
        """Say how many numbers are trained, in the words that scripts read."""
        import sys

        trained, total = self.get_nb_trainable_parameters()
        text = f"trainable params: {trained:,d} || all params: {total:,d} || trainable%: {100 * trained / total:.4f}\n"
        sys.stdout.write(text)

    # --- files -------------------------------------------------------------------------------------------------------

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        safe_serialization: bool = True,
        selected_adapters: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        """Write adapters in peft's format: the one called ``default`` into the directory, others into folders of their names.

        Raises:
            InputError: there is no such adapter, or arguments that cannot be.
            FileError: the directory cannot be written.
        """
        if not safe_serialization or options:
            what = f"adapters are written as safetensors, and take no {', '.join(options) or 'other form'}."
            raise InputError(what, hint="Leave it out.")
        for name in self.peft_config if selected_adapters is None else selected_adapters:
            config = self._known(name)
            where = os.fspath(save_directory) if name == "default" else os.sep.join((os.fspath(save_directory), name))
            active, merged = self.active, {id(adapters): adapters.merged for _, adapters in self.layers_with_adapters()}
            self.unmerge_adapter()
            self.active = (name,)
            self._place()
            try:
                files.write(self.model, name, config, self.saved[name], where)
            finally:
                self.active = active
                self._place()
                for layer, adapters in self.layers_with_adapters():
                    if names := merged[id(adapters)]:
                        adapters.merge(layer, names)  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(
        cls,
        model: Model,
        model_id: str | os.PathLike[str],
        adapter_name: str = "default",
        is_trainable: bool = False,
        config: LoraConfig | None = None,
        **options: Any,
    ) -> Self:
        """Give a model an adapter out of files, ours or peft's; in evaluation mode unless ``is_trainable``.

        Raises:
            FileError: there are no such files.
            ConfigError, FormatError: a file is corrupt.
            UnsupportedError: an adapter of another kind.
            CheckpointError: tensors and model do not fit; lists every name.
        """
        settings, store = _read(model, model_id, config, is_trainable, options)
        made = cls(model, settings, adapter_name)
        made._fill(adapter_name, store)
        return made if is_trainable else made.eval()

    def load_adapter(
        self, model_id: str | os.PathLike[str], adapter_name: str, is_trainable: bool = False, **options: Any
    ) -> None:
        """Give the model another adapter out of files; see :meth:`from_pretrained` for errors."""
        settings, store = _read(self.model, model_id, None, is_trainable, options)
        self.add_adapter(adapter_name, settings)
        self._fill(adapter_name, store)
        self.set_adapter(self.active)
        if not is_trainable:
            self.eval()

    def _fill(self, name: str, store: Any) -> None:
        active, self.active = self.active, (name,)
        self._place()
        try:
            files.read(self.model, name, self.peft_config[name], self.saved[name], store)
        finally:
            self.active = active
            self._place()


def _key(path: str) -> str:
    """A module's name as a key of a dictionary of modules, which has no dots."""
    return path.replace(".", "/")


def _read(
    model: Model, model_id: Any, config: LoraConfig | None, is_trainable: bool, options: dict[str, Any]
) -> tuple[LoraConfig, Any]:
    """The settings of an adapter, and the file of its tensors, which fits them."""
    source = take_source_options(dict(options))
    settings = LoraConfig.from_pretrained(model_id, **source) if config is None else config
    store = files.open_adapter(Source(model_name(model_id), **source))
    files.check_ranks(model, settings, store)
    return settings.with_settings(inference_mode=not is_trainable), store


def get_peft_model(
    model: Model,
    peft_config: LoraConfig,
    adapter_name: str = "default",
    mixed: bool = False,
    autocast_adapter_dtype: bool = True,
    revision: str | None = None,
    low_cpu_mem_usage: bool = False,
) -> PeftModel:
    """Freeze a model and give it an adapter, which alone is trained.

    Args:
        model: the model; it is changed.
        peft_config: what is adapted and how.
        adapter_name: the adapter's name.
        mixed: must be false.
        autocast_adapter_dtype: must be true: adapters of models of half precision are float32.
        revision: of the model, to be noted in the adapter's file.
        low_cpu_mem_usage: of no effect.

    Raises:
        InputError: names in the settings that no layer has, or arguments that cannot be.
    """
    if mixed or not autocast_adapter_dtype:
        raise InputError("`mixed` must be false and `autocast_adapter_dtype` true.", hint="Leave them out.")
    if revision is not None:
        peft_config = peft_config.with_settings(revision=revision)
    return PeftModel(model, peft_config, adapter_name)
