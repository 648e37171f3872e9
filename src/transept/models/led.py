"""LED (Beltagy et al. 2020): BART for long texts; its encoder has Longformer's attention, in a window and to global tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.config.model import Config
from transept.core.inputs import check_by_position
from transept.errors import InputError
from transept.heads.seq2seq import ForBiasedGeneration, ForQuestionAnswering
from transept.kinds.seq2seq import Seq2SeqBackbone
from transept.layers import Context, Pattern
from transept.layers.attention.local import GlobalTokens, SlidingAttention
from transept.models.bart import BART_BLOCK, BartConfig, BartDecoder, BartEncoder, BartStack
from transept.models.longformer import GlobalOutput


class LEDConfig(BartConfig):
    """Settings of LED; the defaults are those of a model as large as bart-large.

    ``attention_window`` is how many positions those of the encoder see, half of them on each side: one number, or one a layer.
    """

    model_type = "led"
    aliases = BartConfig.aliases | {"attention_probs_dropout_prob": "attention_dropout"}

    max_position_embeddings: ClassVar[None] = None  # type: ignore[assignment, misc]
    scale_embedding: ClassVar[bool] = False  # type: ignore[misc]
    max_encoder_position_embeddings: int = 16384
    max_decoder_position_embeddings: int = 1024
    attention_window: int | list[int] = 512
    num_labels: int = 2
    forced_eos_token_id: int | list[int] | None = None

    def validate(self) -> None:
        super().validate()
        if isinstance(self.attention_window, list) and len(self.attention_window) != self.encoder_layers:
            self.fail("attention_window", f"must be one number, or one for each of {self.encoder_layers} layers")
        if any(size < 2 or size % 2 for size in self.windows):
            self.fail("attention_window", "must be even, and at least 2")

    @property
    def windows(self) -> list[int]:
        """The window of each layer of the encoder."""
        size = self.attention_window
        return size if isinstance(size, list) else [size] * self.encoder_layers


_PROJECTIONS = {name: f"{name[0]}_proj" for name in ("query", "key", "value")}
_SLIDING = {f"longformer_self_attn.{name}": own for name, own in _PROJECTIONS.items()}
_SLIDING |= {f"longformer_self_attn.{name}_global": f"global_{own}" for name, own in _PROJECTIONS.items()}
ENCODER_BLOCK: Table = {**BART_BLOCK, "self_attn": ("self_attn", {**_SLIDING, "output": "o_proj"})}


class LEDStack(BartStack):
    config_class = LEDConfig

    def make_positions(self, c: Config) -> nn.Module:
        side = "decoder" if self.causal else "encoder"
        return nn.Embedding(getattr(c, f"max_{side}_position_embeddings"), c.d_model)

    @property
    def max_positions(self) -> int:
        return self.embed_positions.num_embeddings  # type: ignore[return-value]


class LEDEncoder(LEDStack, BartEncoder):
    attention_class, ragged = SlidingAttention, False
    reads: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "global_attention_mask", "inputs_embeds")
    names = replace(BartStack.names, table={**BartStack.names.table, "layers.*": ("layers.*", ENCODER_BLOCK)})

    def __init__(self, config: LEDConfig) -> None:
        super().__init__(config)
        for layer, size in zip(self.layers, config.windows, strict=True):
            layer.self_attn.pattern = Pattern(window=size // 2 + 1)  # type: ignore[union-attr]

    def begin(self, *args: Any, global_attention_mask: Tensor | None = None, **inputs: Any) -> tuple[Tensor, Context]:
        """Embed the tokens; those where ``global_attention_mask`` (B, T) is not 0 have global attention."""
        x, ctx = super().begin(*args, **inputs)
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): the pairs that see each other are the family's.")
        if global_attention_mask is not None:
            check_by_position("global_attention_mask", global_attention_mask, x)
            ctx.own = GlobalTokens.of(global_attention_mask.expand(x.shape[:2]), ctx.padding)
        return x, ctx

    def recorded(self, output: Any, last: Tensor, ctx: Context[GlobalTokens | None]) -> Any:
        seen = tuple(ctx.own.attentions) if ctx.own is not None else ()
        return super().recorded(GlobalOutput(**output, global_attentions=seen or None), last, ctx)


class LEDDecoder(LEDStack, BartDecoder): ...


class LEDModel(Seq2SeqBackbone):
    """LED without a head. Tokens where ``global_attention_mask`` (B, T') is not 0 see all others, and all others see them."""

    config_class = LEDConfig
    encoder_class, decoder_class = LEDEncoder, LEDDecoder
    encoder_reads = ("global_attention_mask",)
    reads = (
        *("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs"),
        *("global_attention_mask", "past_key_values", "inputs_embeds", "decoder_inputs_embeds", "labels", "use_cache"),
    )


class LEDForConditionalGeneration(ForBiasedGeneration[LEDModel]): ...


class LEDForQuestionAnswering(ForQuestionAnswering[LEDModel]):
    reads = (
        *("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "encoder_outputs"),
        *("global_attention_mask", "start_positions", "end_positions", "inputs_embeds", "decoder_inputs_embeds", "use_cache"),
    )
