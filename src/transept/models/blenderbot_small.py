"""BlenderBot with 90 million parameters (Roller et al. 2021): post-norm stacks; its decoder norms before it adds positions."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from transept.config.fields import Layers, Multiple, PaddingId
from transept.config.model import Config
from transept.heads.seq2seq import ForBiasedGeneration, StackForCausalLM
from transept.kinds.seq2seq import Seq2SeqBackbone
from transept.layers import Context
from transept.models.bart import BartConfig, BartDecoder, BartEncoder, BartStack


class BlenderbotSmallConfig(BartConfig):
    """Settings of the small BlenderBot; the defaults are those of its checkpoint with 90 million parameters."""

    model_type = "blenderbot-small"

    max_position_embeddings: int = 512
    encoder_layers: Layers = 8
    encoder_ffn_dim: int = 2048
    decoder_layers: Layers = 8
    decoder_ffn_dim: int = 2048
    d_model: Annotated[int, Multiple("encoder_attention_heads"), Multiple("decoder_attention_heads")] = 512
    num_labels: int = 2
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 1
    decoder_start_token_id: int | None = 1


class BlenderbotSmallStack(BartStack):
    config_class = BlenderbotSmallConfig

    def make_positions(self, c: Config) -> nn.Module:
        return nn.Embedding(c.max_position_embeddings, c.d_model)


class BlenderbotSmallEncoder(BlenderbotSmallStack, BartEncoder): ...


class BlenderbotSmallDecoder(BlenderbotSmallStack, BartDecoder):
    """What writes; its embeddings are not scaled."""

    def make_embeddings(self, c: Config) -> None:
        super().make_embeddings(c)
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model, c.pad_token_id)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        assert self.embed_norm is not None
        return self.dropout(self.embed_norm(x) + self.embed_positions(positions))


class BlenderbotSmallModel(Seq2SeqBackbone):
    config_class = BlenderbotSmallConfig
    encoder_class, decoder_class = BlenderbotSmallEncoder, BlenderbotSmallDecoder
    base_model_prefix = "model"


class BlenderbotSmallForConditionalGeneration(ForBiasedGeneration[BlenderbotSmallModel]): ...


class BlenderbotSmallForCausalLM(StackForCausalLM[BlenderbotSmallDecoder]): ...
