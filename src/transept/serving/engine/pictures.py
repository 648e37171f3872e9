"""Pictures of prompts: they are read once, and stand in the passes of their rows as embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Read(NamedTuple):
    """Embeddings (S, D) of a prompt, its positions (3, S) where pictures number them, and the first position behind it."""

    embeds: Tensor
    positions: Tensor | None
    after: int


class Pictures:
    """The pictures of one prompt, which several rows may share.

    Args:
        ids: of the prompt, with a placeholder for each feature of a picture.
        inputs: what the processor makes of the pictures, as tensors by their names.
    """

    def __init__(self, ids: Sequence[int], inputs: Mapping[str, Tensor]) -> None:
        self.ids, self._inputs = list(ids), dict(inputs)
        digest = hashlib.sha256()
        for name, value in inputs.items():
            if name == "mm_token_type_ids":
                continue  # the ids tell as much, and a longer prompt has more
            digest.update(f"{name} {tuple(value.shape)} ".encode() + value.numpy().tobytes())
        self.digest = digest.digest()  # rows of other pictures share no prefix
        self._read: Read | None = None

    def read(self, model: Any) -> Read:
        """What the model makes of the prompt, in the thread that owns it."""
        if self._read is None:
            kinds = {name: model.dtype if value.is_floating_point() else value.dtype for name, value in self._inputs.items()}
            given: dict[str, Any] = {name: value.to(model.device, kinds[name]) for name, value in self._inputs.items()}
            embeds: Tensor = model.embed_prompt(torch.tensor([self.ids], device=model.device), None, None, given)[0]
            positions = given["position_ids"][0].T if "position_ids" in given else None
            self._read = Read(embeds, positions, len(self.ids) if positions is None else int(positions.max()) + 1)
            self._inputs.clear()
        return self._read


def embedded(model: Any, rows: Iterable[tuple[Pictures | None, int, Tensor]]) -> dict[str, Tensor]:
    """What a pass reads in the place of ids: of each row its pictures, the position of its first id, and its ids (T)."""
    embeds, positions, numbered = list[Tensor](), list[Tensor](), False
    for pictures, begin, ids in rows:
        x, places = model.body.language_model.embed_ids(ids), torch.arange(begin, begin + len(ids), device=ids.device)
        places = places.expand(3, -1)
        if pictures is not None:
            prompt = pictures.read(model)
            own, length = prompt.embeds[begin : begin + len(ids)], len(pictures.ids)
            x = torch.cat([own, x[len(own) :]])
            places = places[:, len(own) :] + prompt.after - length
            if prompt.positions is not None:
                numbered, places = True, torch.cat([prompt.positions[:, begin : begin + len(ids)], places], dim=1)
        embeds.append(x)
        positions.append(places)
    found = {"inputs_embeds": torch.cat(embeds)[None]}
    return found | ({"position_ids": torch.cat(positions, dim=1)[:, None]} if numbered else {})
