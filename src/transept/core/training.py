"""What libraries that train and wrap models ask of them, under the reference's names: peft, accelerate, TRL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from transept.checkpoint.load import Loadable
from transept.config.model import Config
from transept.environment.tiles import guard
from transept.errors import InputError, UnsupportedError, refuse
from transept.layers.caches.layer import States
from transept.layers.linear import Packed
from transept.objectives.classification import IGNORED, cross_entropy
from transept.objectives.terms import Items, total
from transept.quantized.linear import dequantize

# An attribute of modules that are frozen, and stay in evaluation mode.
FROZEN = "_frozen"


class Stateful:
    """Whether layers keep states, which cannot be cut back, in a cache: what the backbone's ``keeps`` says."""

    def __get__(self, model: Any, cls: Any) -> bool:
        return States in getattr(getattr(cls, "backbone_class", cls), "keeps", ())


class VocabularySize:
    """How many tokens the config's texts have; a model may have an attribute of that name in its place."""

    def __get__(self, model: Any, cls: Any) -> Any:
        return self if model is None else model.config.get_text_config().vocab_size


class ForLibraries(Loadable):
    """Mixed into models: what is asked of every model, whatever its task."""

    config: Config
    base_model_prefix: ClassVar[str]
    main_input_name: ClassVar[str] = "input_ids"
    supports_gradient_checkpointing: ClassVar[bool] = True
    # What libraries look up before they use a feature, which every class here has.
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = _can_compile_fullgraph = True
    _is_stateful = Stateful()
    vocab_size: Any = VocabularySize()
    _keep_in_fp32_modules = _keep_in_fp32_modules_strict = None
    _keys_to_ignore_on_load_missing = _keys_to_ignore_on_load_unexpected = _keys_to_ignore_on_save = None
    # Instance attributes: libraries look for them in the model's ``__dict__``.
    name_or_path: str
    warnings_issued: dict[str, Any]
    model_tags: list[str]

    @property
    def base_model(self) -> nn.Module:
        """The backbone of a task model whose checkpoints keep it below a prefix; else the model itself."""
        return self

    def train(self, mode: bool = True) -> Self:
        """As PyTorch's; what :func:`transept.freeze` froze stays in evaluation mode."""
        super().train(mode)
        for module in self.modules() if mode else ():
            if FROZEN in module.__dict__:
                module.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert, as PyTorch's ``to`` does; where a layer cannot (``InputError``), nothing is changed."""
        for module in self.modules():
            if isinstance(module, Packed):
                module.check_move(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        guard(self)
        return self

    num_labels = property(lambda self: self.config.num_labels, lambda self, value: setattr(self.config, "num_labels", value))

    _tied_weights_keys = property(lambda self: dict(self.checkpoint_names().tied))

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Token ids that any model of texts can read, to try it out."""
        ids = torch.tensor([[7, 6, 0, 0, 1], [1, 2, 3, 0, 0], [0, 0, 0, 4, 5]], device=self.device)
        return {"input_ids": ids} | ({"decoder_input_ids": ids} if self.config.is_encoder_decoder else {})

    @property
    def _no_split_modules(self: Any) -> list[str]:
        """The names of the classes whose modules stay on one device as wholes: layers."""
        return sorted({type(layer).__name__ for stack in self.stacks for layer in getattr(stack, "layers", ())})

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first floating-point parameter."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Number of parameters, tied ones once."""
        tables = {id(m.weight) for m in self.modules() if isinstance(m, nn.Embedding)} if exclude_embeddings else set()
        return sum(p.numel() for p in self.parameters() if (p.requires_grad or not only_trainable) and id(p) not in tables)

    def dequantize(self: Any, dtype: torch.dtype | None = None) -> Any:
        """Give the model plain weights in the place of those of few bits, of its own type or another, and return it."""
        wanted = dtype or self.dtype
        dequantize(self, wanted)
        self.tie_weights()
        return self.to(wanted)

    def get_memory_footprint(self, return_buffers: bool = True) -> int:
        """Bytes of the parameters and of what adapted layers keep instead, and of the buffers unless told not to."""
        plain = (module for module in self.modules() if not hasattr(module, "packed_bytes"))
        buffers = {buffer for module in plain for buffer in module.buffers(recurse=False)} if return_buffers else set()
        kept = sum(getattr(module, "packed_bytes", 0) for module in self.modules())
        return int(sum(tensor.nbytes for tensor in (*self.parameters(), *buffers)) + kept)

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return True

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return False

    @classmethod
    def can_generate(cls) -> bool:
        return False

    def get_encoder(self: Any) -> Any:
        """The half that reads, as ``get_decoder`` gives the one that writes; the backbone of a model without halves."""
        return self.stacks[0]

    def get_decoder(self: Any) -> Any:
        return self.stacks[-1]

    def get_input_embeddings(self: Any) -> nn.Module:
        """The table of token embeddings."""
        found: nn.Module = self.embedding_table()
        return found

    def set_input_embeddings(self: Any, table: nn.Module) -> None:
        """Replace the table of token embeddings, and what is tied to it."""
        self.replace_embedding_table(table)
        self.tie_weights()

    def get_output_embeddings(self) -> nn.Linear | None:
        """The layer that gives logits over the vocabulary, where the model has one."""
        return None

    def set_output_embeddings(self, layer: nn.Module) -> None:
        """Replace the layer that gives logits over the vocabulary, where the model has one."""
        old = self.get_output_embeddings()
        path = next((name for name, module in self.named_modules() if module is old), None)
        if path is None:
            raise InputError(f"{type(self).__name__} has no output embeddings.")
        parent, _, name = path.rpartition(".")
        setattr(self.get_submodule(parent), name, layer)

    def enable_input_require_grads(self: Any) -> None:
        """Let embeddings require gradients, which recomputed layers need where all their inputs are frozen.

        Networks without embeddings, such as ResNet, stay as they are.
        """
        self.disable_input_require_grads()
        tables = set()
        for stack in self.stacks:
            with suppress(InputError):
                tables.add(stack.embedding_table())
        self.__dict__["_grad_hooks"] = [table.register_forward_hook(_require_grad) for table in tables]

    def disable_input_require_grads(self) -> None:
        for handle in self.__dict__.pop("_grad_hooks", ()):
            handle.remove()

    def get_extended_attention_mask(
        self, attention_mask: Tensor, input_shape: Sequence[int], device: Any = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """What a mask (B, S), or (B, T, S), of ones and zeros adds to scores: (B, 1, 1 or T, S) of 0 and the lowest number.

        Where the config is a decoder's, a mask (B, S) is made causal for ``input_shape`` (B, T).
        """
        if attention_mask.ndim == 2 and getattr(self.config, "is_decoder", False):
            queries, keys = input_shape[1], attention_mask.shape[1]
            seen = torch.ones(queries, keys, device=attention_mask.device).tril(keys - queries)
            attention_mask = seen * attention_mask[:, None]
        return self.invert_attention_mask(attention_mask, dtype)

    def invert_attention_mask(self, encoder_attention_mask: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The same of an encoder's mask, whatever the config is."""
        given, dtype = encoder_attention_mask, dtype or self.dtype
        refuse(given.ndim not in (2, 3), f"a mask is (B, S) or (B, T, S), but has the shape {tuple(given.shape)}.")
        shown = given[:, None, None] if given.ndim == 2 else given[:, None]
        return (1.0 - shown.to(dtype)) * torch.finfo(dtype).min

    def prune_heads(self: Any, heads_to_prune: Mapping[int, Iterable[int]]) -> None:
        """Remove heads of attention layers, by their numbers at first, with their weights; ``config.pruned_heads`` keeps them.

        A model of several stacks, or one whose heads share weights, is refused.
        """
        what = f"{type(self).__name__} is made of several stacks, of which no heads are removed."
        refuse(len(self.stacks) != 1, what, "Call prune_heads() of one of them.", UnsupportedError)
        gone = {int(layer): {*heads} for layer, heads in (self.config.extra.get("pruned_heads") or {}).items()}
        for layer, heads in heads_to_prune.items():
            before = gone.setdefault(int(layer), set())
            places = [head - sum(other < head for other in before) for head in {*heads} - before]
            self.stacks[0].layers[int(layer)].self_attn.prune_heads(places)
            before |= {*heads}
        self.config.pruned_heads = {layer: sorted(heads) for layer, heads in gone.items()}

    def init_weights(self: Any) -> None:
        self.initialize()
        self.tie_weights()

    def add_model_tags(self, tags: str | Sequence[str]) -> None:
        own = dict.fromkeys([tags] if isinstance(tags, str) else tags)
        self.model_tags += [tag for tag in own if tag not in self.model_tags]

    def loss_function(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab_size: int | None = None,
        num_items_in_batch: Items | None = None,
        ignore_index: int = IGNORED,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The cross-entropy of logits (..., C), of a model that predicts next tokens against the labels' next ones.

        ``num_items_in_batch`` counts the labelled positions of the whole batch, where this is a part of one; ``shift_labels``
        are labels that are shifted already. Other arguments have no effect: the logits tell.
        """
        if shift_labels is None and (targets := getattr(type(self), "targets", None)) is not None:
            shift_labels = targets(self, labels, logits)
        term = cross_entropy(logits, labels if shift_labels is None else shift_labels, ignore_index=ignore_index)
        return total({"loss": term}, num_items_in_batch)

    def count(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """How many items each additive term of the loss has, by the term's name, from labels and masks alone.

        It needs no forward pass, and equals the counts in ``loss_terms`` after one with these inputs. Terms that are not
        additive are left out: nothing divides them but the number of parts. Without labels there are none.

        Args:
            inputs: those of a forward pass, by name.
        """
        return {}

    @property
    def rows_apart(self) -> bool:
        """Whether the loss is a sum over rows, of which each depends on its own tokens alone: on no other row or padding."""
        return False

    def inputs_of_rows(self, inputs: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
        """Those inputs that have other than one entry for each row, for the rows from ``start`` to ``stop``; there may be none.

        What none of these rows has is ``None``.
        """
        return {}

    def _get_feat_extract_output_lengths(self, input_lengths: Tensor | int, add_adapter: bool | None = None) -> Any:
        backbone: Any = self.base_model
        if not hasattr(backbone, "state_lengths"):
            raise UnsupportedError(f"{type(self).__name__} reads no sound, whose lengths it could count.")
        return backbone.feature_lengths(input_lengths) if add_adapter is False else backbone.state_lengths(input_lengths)

    def _get_feature_vector_attention_mask(
        self, length: int, attention_mask: Tensor, add_adapter: bool | None = None
    ) -> Tensor:
        """Which of ``length`` states are of real samples (B, S): (B, length) of bool."""
        real = self._get_feat_extract_output_lengths((attention_mask != 0).sum(dim=-1), add_adapter)
        mask: Tensor = torch.arange(length, device=attention_mask.device) < real[:, None]
        return mask


def _require_grad(module: nn.Module, inputs: Any, output: Any) -> None:
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        output.requires_grad_(True)
