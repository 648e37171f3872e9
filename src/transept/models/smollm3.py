"""SmolLM3 (Bakouche et al. 2025): Llama in which every fourth layer has no rotary positions."""

from __future__ import annotations

from transept.config.fields import Count, Layers, PaddingId, derived
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import LayeredConfig, SwitchedConfig
from transept.models import llama


class SmolLM3Config(SwitchedConfig, LayeredConfig):
    """Settings of SmolLM3; the defaults are those of SmolLM3 with 3 billion parameters.

    ``no_rope_layers`` has a 0 for each layer without rotary positions, and 1 for the others; when absent, every
    ``no_rope_layer_interval`` th is without. With ``use_sliding_window`` those have windows of ``sliding_window``, or
    the layers that ``layer_types`` names.
    """

    model_type = "smollm3"
    default_theta = 2e6

    vocab_size: int = 128256
    hidden_size: int = 2048
    num_hidden_layers: Layers = 36
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    pad_token_id: PaddingId | None = 128004
    bos_token_id: int | None = 128000
    eos_token_id: int | list[int] | None = 128001
    sliding_window: Count | None = None
    no_rope_layers: list[int] = derived(
        lambda c: [int((i + 1) % c.no_rope_layer_interval != 0) for i in range(c.num_hidden_layers)]
    )
    no_rope_layer_interval: Count = 4
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True

    def validate(self) -> None:
        super().validate()
        if len(self.no_rope_layers) < self.num_hidden_layers:
            self.fail("no_rope_layers", f"must have a number for each of {self.num_hidden_layers} layers")

    def slides(self, layer: int) -> bool:
        return self.use_sliding_window and self.sliding_window is not None and not self.no_rope_layers[layer]

    def rope_kind(self, layer: int) -> str | None:
        return super().rope_kind(layer) if self.no_rope_layers[layer] else None


class SmolLM3Model(llama.LlamaModel):
    config_class = SmolLM3Config
    gguf = llama.LlamaModel.gguf


class SmolLM3ForCausalLM(ForCausalLM[SmolLM3Model]): ...


class SmolLM3ForSequenceClassification(llama.LlamaForSequenceClassification, backbone=SmolLM3Model): ...


class SmolLM3ForTokenClassification(llama.LlamaForTokenClassification, backbone=SmolLM3Model): ...


class SmolLM3ForQuestionAnswering(llama.LlamaForQuestionAnswering, backbone=SmolLM3Model): ...
