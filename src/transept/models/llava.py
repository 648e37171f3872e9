"""LLaVA (Liu et al. 2023): a text model reads pictures as the states of a vision model, moved to its size by two layers.

Shapes: B batch, T positions, P pictures, N their features, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Signed
from transept.config.model import Config
from transept.core.auto import resolve
from transept.core.parts import Part, resolved
from transept.errors import InputError
from transept.heads.image_text import ForImageTextToText
from transept.kinds.picture_text import Pictures, PictureTextBackbone, PictureTextConfig
from transept.layers.mlp import activation
from transept.outputs import BackboneOutput, PictureTextLogitsOutput, PictureTextOutput

_EYE = {"model_type": "clip_vision_model", "intermediate_size": 4096, "hidden_size": 1024, "patch_size": 14, "image_size": 336}
_EYE |= {"num_hidden_layers": 24, "num_attention_heads": 16, "projection_dim": 768}


class LlavaConfig(PictureTextConfig):
    """Settings of LLaVA; the defaults are those of LLaVA 1.5 with 7 billion parameters.

    Args:
        image_token_index: the placeholder's id (also ``image_token_id``).
        vision_feature_layer: which hidden state of the vision model is read, from the end where it is negative; those of
            several stand side by side.
        vision_feature_select_strategy: ``"default"`` leaves out the first of its positions, ``"full"`` keeps all.
        image_seq_length: has no effect: the processor counts.
    """

    model_type = "llava"
    aliases = {"image_token_id": "image_token_index"}
    parts: ClassVar[dict[str, Any]] = {"vision_config": _EYE, "text_config": {"model_type": "llama"}}

    vision_config: Config | None = None
    text_config: Config | None = None
    image_token_index: int = 32000
    image_seq_length: int = 576
    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: Literal["default", "full"] = "default"
    vision_feature_layer: Signed | list[Signed] = -2
    multimodal_projector_bias: bool = True

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Parts that do not tell their type are CLIP and Llama."""
        given = {name: values[name] for name in cls.parts if isinstance(values.get(name), dict)}
        types = {name: {"model_type": cls.parts[name]["model_type"], **part} for name, part in given.items()}
        return super().upgrade(values | types)

    def validate(self) -> None:
        super().validate()
        layers: int = getattr(self.vision_config, "num_hidden_layers", 0)
        wanted = self.vision_feature_layer if isinstance(self.vision_feature_layer, list) else [self.vision_feature_layer]
        if not wanted or any(not -layers - 1 <= layer <= layers for layer in wanted):
            self.fail("vision_feature_layer", f"must be among the {layers + 1} hidden states of `vision_config`")


class Projector(nn.Module):
    """Moves the vision model's states to the text model's size."""

    def __init__(self, dim: int, out: int, act: str, *, bias: bool) -> None:
        super().__init__()
        self.linear_1, self.linear_2, self.act = nn.Linear(dim, out, bias), nn.Linear(out, out, bias), activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """(P, T', D') -> (P, T', D)."""
        out: Tensor = self.linear_2(self.act(self.linear_1(x)))
        return out


class LlavaModel(PictureTextBackbone):
    """LLaVA without a head; ``vision_feature_layer`` and ``vision_feature_select_strategy`` replace the config's."""

    config_class = LlavaConfig
    base_model_prefix = "model"
    parts = (
        Part("vision_tower", resolved("Model"), "vision_config"),
        Part("language_model", resolved("Model"), "text_config", stored="language_model.model"),
    )
    picture_inputs = ("vision_feature_layer", "vision_feature_select_strategy", "image_sizes")
    reads: ClassVar[tuple[str, ...]] = (
        *("input_ids", "pixel_values", "attention_mask", "position_ids", "past_key_values", "inputs_embeds"),
        *("vision_feature_layer", "vision_feature_select_strategy", "labels", "image_sizes", "mm_encoder_outputs", "use_cache"),
    )

    names = Names(
        {name: name for name in ("vision_tower", "multi_modal_projector", "language_model")},
        legacy={f"language_model.{part}": f"language_model.model.{part}" for part in ("layers", "embed_tokens", "norm")},
        heads=frozenset({"lm_head"}),
    )

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        c: Any = config
        layers = len(c.vision_feature_layer) if isinstance(c.vision_feature_layer, list) else 1
        sizes = c.vision_config.hidden_size * layers, c.text_config.hidden_size
        self.multi_modal_projector = Projector(*sizes, c.projector_hidden_act, bias=c.multimodal_projector_bias)

    @classmethod
    def part_names_of(cls, config: Config, whole: str = "", tree: str = "", stored: Mapping[str, str] | None = None) -> Names:
        name = "vision_tower"
        tower: Any = resolve(config.vision_config.model_type, "Model")
        if (inner := tower.base_model_prefix) != "vision_model":
            return super().part_names_of(config, whole, tree, stored)
        # Such towers stand below their own name too, which the reference now leaves out.
        parts = {key.split(".")[0] for key in tower.names.table}
        shorter = {f"{place}.{part}": f"{name}.{inner}.{part}" for place in (name, f"{tree}{name}") for part in parts}
        stored = {**(stored or {}), name: f"{name}.{inner}"}
        return super().part_names_of(config, whole, tree, stored) | Names(legacy=shorter)

    def get_image_features(
        self,
        pixel_values: Tensor,
        vision_feature_layer: int | list[int] | None = None,
        vision_feature_select_strategy: str | None = None,
        image_sizes: Any = None,
        **asked: Any,
    ) -> BackboneOutput:
        """The vision model's output for images (P, C, H, W); ``pooler_output`` has the features (., D) of each one.

        ``output_hidden_states``, ``output_attentions`` and ``return_dict`` are the vision model's.

        Raises:
            InputError: a layer that there is not, or ``image_sizes``, which vision models of one size do not take.
        """
        if image_sizes is not None:
            raise InputError(f"{type(self.vision_tower).__name__} takes no `image_sizes`.", hint="Leave them out.")
        c: Any = self.config
        layers = c.vision_feature_layer if vision_feature_layer is None else vision_feature_layer
        strategy = vision_feature_select_strategy or c.vision_feature_select_strategy
        output: Any = self.vision_tower(pixel_values, **asked | {"output_hidden_states": True, "return_dict": True})
        states, chosen = output.hidden_states, layers if isinstance(layers, list | tuple) else [layers]
        if wrong := [layer for layer in chosen if not -len(states) <= layer < len(states)]:
            raise InputError(f"`vision_feature_layer` is {wrong[0]}, but there are {len(states)} hidden states.")
        x = torch.cat([states[layer] for layer in chosen], dim=-1)
        x = self.multi_modal_projector(x[:, 1:] if strategy == "default" else x)
        output["pooler_output"] = tuple(x)
        if not (c.output_hidden_states if asked.get("output_hidden_states") is None else asked["output_hidden_states"]):
            output["hidden_states"] = None
        return output if asked.get("return_dict") in (None, True) else output.to_tuple()

    def sizes(self, kind: Pictures, given: Mapping[str, Any]) -> list[int]:
        tower: Any = self.vision_tower
        rows, columns = tower.grid(*given[kind.pixels].shape[2:])
        strategy = given.get("vision_feature_select_strategy") or self.config.vision_feature_select_strategy
        return [rows * columns + tower.prefix_tokens - (strategy == "default")] * len(given[kind.pixels])

    def features(self, kind: str, pixels: Tensor, inputs: Mapping[str, Any]) -> BackboneOutput:
        return self.get_image_features(pixels, *(inputs.get(name) for name in self.picture_inputs))

    def completed(self, output: BackboneOutput, encoded: Mapping[str, BackboneOutput]) -> BackboneOutput:
        found = PictureTextOutput(**output)
        if "image" in encoded:
            found.image_hidden_states = torch.cat(list(encoded["image"].pooler_output))  # type: ignore[arg-type]
        return found


class LlavaForConditionalGeneration(ForImageTextToText[LlavaModel]):
    """LLaVA that writes."""

    output_class = PictureTextLogitsOutput
    names = Names(
        {"lm_head": "lm_head"},
        files={"language_model.lm_head": "lm_head", "multi_modal_projector": "model.multi_modal_projector"},
        ties=ForImageTextToText.names.ties,
        legacy={
            "model.language_model": "language_model.model",
            "model.vision_tower": "vision_tower",
            "model.multi_modal_projector": "multi_modal_projector",
            "lm_head": "language_model.lm_head",
        },
    )
