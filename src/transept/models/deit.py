"""DeiT (Touvron et al. 2021): ViT with a distillation token, which learns what a teacher says, after the class token.

Shapes: B batch, N patches, T = N + 2 positions, D hidden size, C classes.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.heads.image import ForImageClassification, ForMaskedImageModeling
from transept.heads.task import Task
from transept.kinds.feature_maps import PatchFeatureMaps
from transept.layers.grids import GridPositions, MaskedPatchEmbeddings, PatchEmbeddings, Patches, learned_tokens
from transept.models.vit import ViTConfig, ViTModel
from transept.outputs import BackboneOutput, DistilledOutput


class DeiTConfig(ViTConfig):
    """Settings of DeiT, which are ViT's; the defaults are those of deit-base-distilled-patch16-224."""

    model_type = "deit"


class DeiTModel(ViTModel):
    """DeiT without a head, but with a pooler; ``use_mask_token`` makes the embedding that stands for masked patches."""

    config_class = DeiTConfig
    base_model_prefix = "deit"
    names = ViTModel.names | Names({"embeddings.distillation_token": "embeddings.distillation_token"})

    def make_embeddings(self, c: ViTConfig, mask_token: nn.Parameter | None) -> PatchEmbeddings:
        """Patches, two tokens before them, learned positions, dropout."""
        patches = Patches(c.num_channels, c.hidden_size, self.patch_size)
        return MaskedPatchEmbeddings(
            patches,
            mask_token=mask_token,
            tokens=learned_tokens(c.hidden_size, "cls_token", "distillation_token"),
            positions=GridPositions(patches.grid(*self.image_size), c.hidden_size, first=2),
            dropout=c.hidden_dropout_prob,
            image_size=self.image_size,
        )


class DeiTBackbone(PatchFeatureMaps, DeiTModel):
    """DeiT that gives feature maps: the states of patches after each layer, without the last norm."""

    names = DeiTModel.names | Names(optional=("layernorm",))

    def __init__(self, config: DeiTConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.norm = None


class DeiTForImageClassification(ForImageClassification[DeiTModel]): ...


class DeiTForImageClassificationWithTeacher(Task[DeiTModel]):
    """One of C classes, by the mean of what the class token and the distillation token say: ``logits`` (B, C).

    Both are given beside, as ``cls_logits`` and ``distillation_logits``. There is no loss.
    """

    labels = ()
    refuses = ("bool_masked_pos",)
    names = Names({"cls_classifier": "head", "distillation_classifier": "distillation_head"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        dim, classes = self.backbone.dim, config.num_labels
        self.head, self.distillation_head = (nn.Linear(dim, classes) if classes else nn.Identity() for _ in range(2))

    def predict(self, states: BackboneOutput, inputs: dict[str, Any]) -> DistilledOutput:
        first, second = self.head(states.last_hidden_state[:, 0]), self.distillation_head(states.last_hidden_state[:, 1])
        return DistilledOutput(logits=(first + second) / 2, cls_logits=first, distillation_logits=second)


class DeiTForMaskedImageModeling(ForMaskedImageModeling[DeiTModel]):
    """DeiT that paints masked patches (SimMIM, Xie et al. 2022)."""
