"""Tasks over pixels: a class for each.

Shapes: B batch, C channels, K classes, H height, W width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from transept.config.model import Config
from transept.core.task import B
from transept.errors import InputError
from transept.heads.task import Task
from transept.objectives.segmentation import count_pixels, pixel_classes
from transept.objectives.terms import LossTerm
from transept.outputs import LogitsOutput, ModelOutput


class ForSemanticSegmentation(Task[B]):
    """A class for each pixel: ``logits`` (B, K, H', W'), of a size of the family's own.

    ``labels`` (B, H, W) are classes, or the config's ``semantic_loss_ignore_index``; the logits are resized to them.
    A family may have an ``auxiliary`` head, for the loss alone.
    """

    refuses = ("bool_masked_pos",)
    output_class: ClassVar[type[ModelOutput]] = LogitsOutput

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.num_labels < 1:
            raise InputError(f"{type(self).__name__} needs classes, but `num_labels` is {config.num_labels}.")
        self.head = self.make_head(config)
        self.auxiliary = self.make_auxiliary(config)

    def make_head(self, config: Config) -> nn.Module:
        """Hidden states or feature maps -> logits (B, K, H', W')."""
        raise NotImplementedError

    def make_auxiliary(self, config: Config) -> nn.Module | None:
        """One of the feature maps -> logits, for the loss alone: none, where a family has no such head."""
        return None

    def encode(self, inputs: dict[str, Any], labels: Tensor | None) -> Any:
        return self.backbone(return_dict=True, **inputs | {"output_hidden_states": True})

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        states["maps"] = self.maps(states, inputs)  # which the loss of an auxiliary head reads too
        output, asked = self.output_class(logits=self.logits(states["maps"])), inputs.get("output_hidden_states")
        if not (self.config.output_hidden_states if asked is None else asked):
            states["hidden_states"] = None
        return output

    def maps(self, states: Any, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
        """The feature maps (B, C, H', W') that the heads read, of the backbone's output."""
        hidden: tuple[Tensor, ...] = states.hidden_states
        return hidden

    def logits(self, maps: tuple[Tensor, ...]) -> Tensor:
        """What the head says of them."""
        logits: Tensor = self.head(maps)
        return logits

    def auxiliary_logits(self, maps: tuple[Tensor, ...]) -> Tensor:
        """What the auxiliary head says; of the last map, if a family does not choose another."""
        assert self.auxiliary is not None
        logits: Tensor = self.auxiliary(maps[-1])
        return logits

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        found = super().all_terms(output, states, labels, inputs)
        if self.auxiliary is None:
            return found
        (other,) = self.terms(self.auxiliary_logits(states["maps"]), labels[0], inputs).values()
        return found | {"auxiliary": replace(other, weight=self.config.auxiliary_loss_weight)}

    def terms(self, logits: Tensor, labels: Tensor, inputs: dict[str, Any]) -> dict[str, LossTerm]:
        return {"segmentation": pixel_classes(logits, labels, self.config.semantic_loss_ignore_index)}

    def counts(self, labels: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        pixels = count_pixels(labels, self.config.num_labels, self.config.semantic_loss_ignore_index)
        return {"segmentation": pixels} | ({} if self.auxiliary is None else {"auxiliary": pixels})
