"""Pictures as tokens: what a vision model makes of pictures stands in a text, in the places of placeholder tokens.

Pictures belong to rows by their order: those of the first row come first.
Shapes: B batch, T new positions, S cached and new ones, P pictures, N features of all pictures, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from transept.core.inputs import RecordOptions
from transept.core.model import Backbone
from transept.core.parts import Composed, CompositeConfig, Part, resolved
from transept.errors import InputError, InputTypeError
from transept.kinds.text import TextBackbone
from transept.layers.caches.cache import Cache
from transept.outputs import BackboneOutput


class PictureTextConfig(CompositeConfig):
    """A config of a model that reads texts with pictures; tied embeddings are stated here, or in ``text_config``."""

    tie_word_embeddings: bool = False

    def validate(self) -> None:
        super().validate()
        self.tie_word_embeddings = self.tie_word_embeddings or self.text_config.tie_word_embeddings


class Pictures(NamedTuple):
    """One kind of pictures that a model reads: its name, those of its inputs, and of the setting that has its placeholder."""

    kind: str
    pixels: str
    token: str
    grids: str | None = None


def check_counts(where: Tensor, sizes: Sequence[int], kind: str) -> None:
    """Refuse placeholders, true in ``where`` (B, T), that are not as many as features of pictures (``InputError``).

    ``sizes`` (P) are the numbers of features of the pictures.
    """
    left = list(sizes)
    hint = f"The processor writes one placeholder for each feature: pass its `input_ids` and its {kind}s as they are."
    for row, count in enumerate(where.sum(dim=1).tolist()):
        found = 0
        while found < count and left:
            found += left.pop(0)
        if found != count:
            what = f"row {row} has {count} placeholders for features of {kind}s, but the {kind}s for it have {found}."
            raise InputError(what, hint=hint)
    if left:
        what = f"{len(left)} of {len(sizes)} {kind}s, with {sum(left)} features, have no placeholders in any row."
        raise InputError(what, hint=hint)


def place(x: Tensor, where: Tensor, features: Sequence[Tensor], kind: str) -> Tensor:
    """Embeddings (B, T, D) in which the features (N, D) of all pictures stand where ``where`` (B, T) is true, in order."""
    joined = torch.cat(list(features)).to(x.device, x.dtype)
    if joined.ndim != 2 or joined.shape[1] != x.shape[2]:
        raise InputError(f"features of {kind}s are {tuple(joined.shape)}, but the text's embeddings have {x.shape[2]} numbers.")
    if not torch.compiler.is_compiling():
        check_counts(where, [len(each) for each in features], kind)
    return x.masked_scatter(where[:, :, None], joined)


class PictureTextOptions(RecordOptions, total=False):
    """What is taken beside the inputs; ``lengths`` are as for text models, and rows with pictures come as embeddings then."""

    lengths: Sequence[int] | None


class PictureTextBackbone(Composed, Backbone):
    """A vision model, and a text model that reads what the first makes of pictures among its tokens.

    A family says in ``kinds`` what pictures there are and in ``parts`` what the two models are, and writes ``features``.
    ``picture_inputs`` are the names of further inputs about pictures.
    """

    kinds: ClassVar[tuple[Pictures, ...]] = (Pictures("image", "pixel_values", "image_token_id"),)
    parts = (Part("visual", resolved("Model"), "vision_config"), Part("language_model", resolved("Model"), "text_config"))
    token_parts = ("language_model",)
    accepts: ClassVar[type] = PictureTextOptions
    picture_inputs: ClassVar[tuple[str, ...]] = ()
    causal = True
    pooling = "last"
    language_model: TextBackbone

    def features(self, kind: str, pixels: Tensor, inputs: Mapping[str, Any]) -> BackboneOutput:
        """What the vision model makes of pictures of one kind, with the features (., D) of each as ``pooler_output``."""
        raise NotImplementedError

    def picked(self, kind: Pictures, given: dict[str, Any], keep: Sequence[bool]) -> dict[str, Any]:
        """The inputs of those pictures of a kind alone that are kept."""
        return {kind.pixels: given[kind.pixels][torch.tensor(keep)]}

    def sizes(self, kind: Pictures, given: Mapping[str, Any]) -> list[int]:
        """How many features each picture of a kind has."""
        raise NotImplementedError

    def numbered(self, x: Tensor, mask: Tensor | None, cache: Cache | None, found: Mapping[str, Any]) -> Tensor | None:
        """Positions of embeddings (B, T, D) behind those of a cache; ``None`` where the text model counts them itself.

        ``mask`` (B, S) is true for real positions; ``found`` has where pictures are, by kind, and what was told of them.
        """
        return None

    def blocks(self, x: Tensor, cache: Cache | None, found: Mapping[str, Any]) -> Tensor | None:
        """Numbers (B, T) of the blocks of embeddings (B, T, D) behind those of a cache, where there are some.

        Those of one block, such as a picture's, see each other in both directions; a negative number is of no block.
        ``found`` is as in :meth:`numbered`.
        """
        return None

    def number(self, positions: Tensor | None, x: Tensor, mask: Any, cache: Any) -> None:
        """Keep in a cache what numbers the positions that follow, once it has read ``positions``."""

    # --- reading -----------------------------------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        return_dict: bool | None = None,
        **inputs: Any,
    ) -> Any:
        """Read texts with pictures.

        Args:
            input_ids: (B, T) with one placeholder for each feature of a picture.
            attention_mask: (B, S), 1 for real tokens.
            position_ids: as for the text model.
            past_key_values: a cache to go on from; the pictures are then those of the new tokens.
            inputs_embeds: (B, T, D) in the ids' place; placeholders are known by their embedding.
            return_dict: ``False`` for a tuple.
            inputs: pixels and what is told of them; ``mm_encoder_outputs``, by kind what :meth:`features` gave for these
                pictures before, in the place of pixels; and options of the text model.

        Raises:
            InputError: placeholders and features that are not as many.
        """
        given = {name: value for name in self.visual_inputs() if (value := inputs.pop(name, None)) is not None}
        self.language_model.check_inputs(input_ids, inputs_embeds)
        x: Any = self.language_model.embed_ids(input_ids) if input_ids is not None else inputs_embeds
        where = self.placeholders(input_ids, x)
        encoded = self.encoded(given)
        if input_ids is not None and past_key_values is None and not encoded and not torch.compiler.is_compiling():
            for kind, places in where.items():
                check_counts(places, [], kind)
        for kind, output in encoded.items():
            x = place(x, where[kind], output.pooler_output, kind)  # type: ignore[arg-type]
        if position_ids is None:
            mask = attention_mask if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 else None
            position_ids = self.numbered(x, mask, past_key_values, where | given)
        if inputs.get("block_sequence_ids") is None and (blocks := self.blocks(x, past_key_values, where | given)) is not None:
            read = 0 if past_key_values is None else past_key_values.get_seq_length()
            inputs["block_sequence_ids"] = nn.functional.pad(blocks, (read, 0), value=-1)
        texts = {"attention_mask": attention_mask, "position_ids": position_ids, "past_key_values": past_key_values}
        output = self.language_model(inputs_embeds=x, **texts, **inputs, return_dict=True)
        self.number(position_ids, x, attention_mask, output.past_key_values)
        output = self.completed(output, encoded)
        as_output = self.config.return_dict if return_dict is None else return_dict
        return output if as_output else output.to_tuple()

    def completed(self, output: BackboneOutput, encoded: Mapping[str, BackboneOutput]) -> BackboneOutput:
        """The text model's output, with what a family shows of pictures beside."""
        return output

    def encoded(self, given: Mapping[str, Any]) -> dict[str, BackboneOutput]:
        """By kind what the vision model makes of the pictures, or has made of them before."""
        before = given.get("mm_encoder_outputs") or {}
        pixels = [kind.pixels for kind in self.kinds if kind.pixels in given]
        if before and pixels:
            raise InputError(f"`{pixels[0]}` and `mm_encoder_outputs` exclude each other.", hint="Pass one of them.")
        if not isinstance(before, Mapping) or before.keys() - {kind.kind for kind in self.kinds}:
            kinds = ", ".join(kind.kind for kind in self.kinds)
            raise InputTypeError(f"`mm_encoder_outputs` must be a mapping from kinds ({kinds}) to outputs.")
        found = {name: output for name, output in before.items() if output is not None}
        new = [kind for kind in self.kinds if kind.pixels in given]
        return found | {kind.kind: self.features(kind.kind, given[kind.pixels], given) for kind in new}

    @classmethod
    def visual_inputs(cls) -> tuple[str, ...]:
        """The names of inputs that tell of pictures."""
        pairs = (name for kind in cls.kinds for name in (kind.pixels, kind.grids) if name is not None)
        return (*pairs, *cls.picture_inputs, "mm_encoder_outputs")

    def placeholders(self, ids: Tensor | None, x: Tensor) -> dict[str, Tensor]:
        """By kind of pictures where their placeholders are, (B, T), in ids or in embeddings (B, T, D)."""
        tokens = {kind.kind: getattr(self.config, kind.token) for kind in self.kinds}
        if ids is not None:
            return {kind: ids == token for kind, token in tokens.items()}
        embed = self.language_model.embed_ids
        return {kind: (x == embed(torch.tensor([token], device=x.device))).all(-1) for kind, token in tokens.items()}

    def read_prompt(self, ids: Tensor, mask: Tensor | None, cache: Cache | None, inputs: dict[str, Any]) -> Tensor | None:
        """Embeddings (B, S, D) of a prompt to write on from, with its pictures; ``None`` where it is plain text.

        The ids (B, S) are those of the cached positions too; pictures are those of all ids, or of the new ones. What tells of
        them is taken out of the inputs. Positions are put in, those of one token side by side: (B, S, 3), and blocks (B, S).
        """
        given = {name: value for name in self.visual_inputs() if (value := inputs.pop(name, None)) is not None}
        seen = any(kind.pixels in given for kind in self.kinds) or bool(given.get("mm_encoder_outputs"))
        read = 0 if cache is None else cache.get_seq_length()
        if not seen and (cache is None or cache.deltas is None):
            return None
        self.language_model.check_inputs(ids, None)
        x = self.language_model.embed_ids(ids)
        every = self.placeholders(ids, x)
        new = {kind: places[:, read:] for kind, places in every.items()}
        given = self._needed(given, every, read)
        late = x[:, read:]
        for kind, output in self.encoded(given).items():
            late = place(late, new[kind], output.pooler_output, kind)  # type: ignore[arg-type]
        types = given.get("mm_token_type_ids")
        given |= {} if types is None else {"mm_token_type_ids": types[:, read:]}
        positions = self.numbered(late, mask, cache, new | given)
        if positions is not None:
            inputs["position_ids"] = nn.functional.pad(positions, (read, 0)).movedim(0, -1)
        if (blocks := self.blocks(late, cache, new | given)) is not None:
            inputs["block_sequence_ids"] = nn.functional.pad(blocks, (read, 0), value=-1)
        return torch.cat([x[:, :read], late], dim=1)

    def _needed(self, given: dict[str, Any], every: Mapping[str, Tensor], read: int) -> dict[str, Any]:
        """What tells of pictures without those of the first ``read`` positions, where it is told of all pictures."""
        for kind in self.kinds:
            places = every[kind.kind]
            total, old = int(places.sum()), int(places[:, :read].sum())
            if kind.pixels not in given or not old or not len(given[kind.pixels]):
                continue
            sizes = self.sizes(kind, given)
            if sum(sizes) != total:
                continue
            late = (torch.arange(places.shape[1], device=places.device) >= read).expand_as(places)[places].tolist()
            starts = [sum(sizes[:number]) for number in range(len(sizes))]
            keep = [late[start] for start in starts]
            picked = self.picked(kind, given, keep) if any(keep) else {}
            given = {name: each for name, each in given.items() if name not in (kind.pixels, kind.grids)} | picked
        return given

    def inputs_of_rows(self, inputs: Mapping[str, Any], start: int, stop: int) -> dict[str, Any]:
        """Pictures stand side by side, as many for each row as it has placeholders for."""
        found: dict[str, Any] = {}
        ids = inputs.get("input_ids")
        for kind in self.kinds if ids is not None else ():
            if inputs.get(kind.pixels) is None:
                continue
            ends = [0, *(ids == getattr(self.config, kind.token)).sum(dim=1).cumsum(dim=0).tolist()]
            begins = accumulate(self.sizes(kind, inputs), initial=0)
            keep = [ends[start] <= begin < ends[stop] for begin in [*begins][:-1]]
            found |= dict.fromkeys(name for name in (kind.pixels, kind.grids) if name is not None)
            found |= self.picked(kind, dict(inputs), keep) if any(keep) else {}
        return found

    # --- parts -------------------------------------------------------------------------------------------------------

    def initialize_own(self, module: nn.Module) -> None:
        self.language_model.initialize_module(module)

    @property
    def dim(self) -> int:
        return self.language_model.dim

    vocab_size = property(lambda self: self.language_model.vocab_size)
    max_positions = property(lambda self: self.language_model.max_positions)
    trained_positions = property(lambda self: self.language_model.trained_positions)
    first_position = property(lambda self: self.language_model.first_position)
    can_continue_rows = property(lambda self: self.language_model.can_continue_rows)
    switches_at = property(lambda self: self.language_model.switches_at)

    def cache_matters(self, inputs: Mapping[str, Any]) -> bool:
        return self.language_model.cache_matters(inputs)


PictureTextB = TypeVar("PictureTextB", bound=PictureTextBackbone)
