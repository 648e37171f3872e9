"""The next token of a text with pictures in it.

Shapes: B batch, T positions, S cached and new ones, D hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.heads.language import WritingTask, next_tokens
from transept.kinds.picture_text import PictureTextB
from transept.layers.caches.cache import Cache
from transept.objectives.classification import counted, cross_entropy
from transept.objectives.terms import LossTerm


class ForImageTextToText(WritingTask[PictureTextB]):
    """The next token. ``labels`` (B, T) are the tokens that are read, -100 where there is nothing to learn.

    ``stored`` are the names below which files have the backbone's parts, where they are others than those of the backbone.
    """

    stored: ClassVar[dict[str, str]] = {}
    names = Names({"lm_head": "lm_head"}, ties={"lm_head.weight": "backbone.language_model.embed_tokens.weight"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(self.backbone.dim, self.backbone.vocab_size, bias=False)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head  # type: ignore[return-value]

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"causal_lm": cross_entropy(logits, next_tokens(labels, logits))}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {"causal_lm": counted(next_tokens(labels))}

    def embed_prompt(self, ids: Tensor, mask: Tensor | None, cache: Cache | None, inputs: dict[str, Any]) -> Tensor | None:
        return self.backbone.read_prompt(ids, mask, cache, inputs)

    def get_image_features(self, *args: Any, **options: Any) -> Any:
        """What the vision model makes of images; see the model without a head."""
        return self.backbone.get_image_features(*args, **options)

    @classmethod
    def names_of(cls, config: Config) -> Names:
        kind: Any = cls.backbone_class
        own = cls.own_names_of(config) | Names(absent=("lm_head",), heads=frozenset(kind.head_names))
        place = cls.base_model_prefix
        whole: Names = Names({place: "backbone"}) | own | kind.part_names_of(config, "backbone.", f"{place}.", cls.stored)
        return whole
