"""Finding objects: a class and a box for each query.

Shapes: B batch, Q queries, D hidden size, K classes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.core.task import B
from transept.heads.task import Task
from transept.objectives.matching import cardinality_error, check_targets, count_detections, detection_terms
from transept.objectives.terms import LossTerm
from transept.outputs import DetectionOutput, ModelOutput


class BoxHead(nn.Module):
    """Three layers, (..., D) -> (..., 4): boxes as shares of the image's size."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, size) for size in (dim, dim, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        boxes: Tensor = self.layers[-1](x).sigmoid()
        return boxes


class ForObjectDetection(Task[B]):
    """Boxes ``pred_boxes`` (B, Q, 4), as (x, y, width, height) of their centre, and ``logits`` (B, Q, K + 1) of their classes.

    The last class says that there is nothing. ``labels`` are a list with a mapping for each image: ``class_labels`` (n) and
    ``boxes`` (n, 4). The loss is the set loss (Carion et al. 2020) with the config's ``weights``; its parts: ``loss_dict``.
    """

    names = Names({"class_labels_classifier": "class_head", "bbox_predictor": "box_head"})
    targets: ClassVar[tuple[str, ...]] = ("class_labels", "boxes")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.class_head = nn.Linear(self.backbone.dim, config.num_labels + 1)
        self.box_head = BoxHead(self.backbone.dim)

    def check(self, inputs: dict[str, Any], labels: Any) -> None:
        """Refuse targets that do not fit the images, before they cost anything."""
        first = next((inputs[name] for name in ("pixel_values", "inputs_embeds") if inputs.get(name) is not None), None)
        if labels is not None and isinstance(first, Tensor):
            check_targets(labels, len(first), self.config.num_labels, self.targets)

    def encode(self, inputs: dict[str, Any], labels: Any) -> Any:
        self.check(inputs, labels)
        return super().encode(inputs, labels)

    def predict(self, states: Any, inputs: dict[str, Any]) -> ModelOutput:
        x = states.last_hidden_state
        return DetectionOutput(logits=self.class_head(x), pred_boxes=self.box_head(x), last_hidden_state=x)

    def all_counts(self, labels: list[Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
        c, kinds = self.config, ("class_labels", "boxes")
        targets = check_targets(labels[0], len(labels[0]), c.num_labels, kinds)
        counts = count_detections(targets, c.num_queries, c.weights, masks="masks" in self.targets)
        for layer in range(c.decoder_layers - 1 if c.auxiliary_loss else 0):
            counts |= count_detections(targets, c.num_queries, c.weights, suffix=f"_{layer}")
        return counts

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        weights = self.config.weights
        if states.intermediate_hidden_states is not None:
            middle = states.intermediate_hidden_states[:-1]
            found = zip(self.class_head(middle), self.box_head(middle), strict=True)
            output["auxiliary_outputs"] = [{"logits": logits, "pred_boxes": boxes} for logits, boxes in found]
        terms = detection_terms(output.logits, output.pred_boxes, labels[0], weights, output.pred_masks)
        for layer, each in enumerate(output.auxiliary_outputs or ()):
            terms |= detection_terms(each["logits"], each["pred_boxes"], labels[0], weights, suffix=f"_{layer}")
        with torch.no_grad():
            output["loss_dict"] = {name: term.mean for name, term in terms.items()}
            output["loss_dict"]["cardinality_error"] = cardinality_error(output.logits, labels[0])
        return terms
