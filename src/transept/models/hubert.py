"""HuBERT (Hsu et al. 2021): Wav2Vec2's network, trained to tell the clusters of hidden frames, without a quantiser."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.core.waves import WaveConfig
from transept.heads.audio import ForAudioClassification, ForCTC
from transept.layers.activation import activation
from transept.layers.context import Context
from transept.models.wav2vec2 import Wav2Vec2Model
from transept.outputs import BackboneOutput, ModelOutput


class HubertConfig(WaveConfig):
    """Settings of HuBERT; the defaults are those of hubert-base-ls960."""

    model_type = "hubert"

    feat_proj_layer_norm: bool = True
    conv_pos_batch_norm: bool = False


class NormedPositions(nn.Conv1d):
    """Relative positions (B, T, D) by a wide grouped convolution of states whose features are normed over the batch."""

    def __init__(self, c: HubertConfig) -> None:
        sizes = c.hidden_size, c.hidden_size, c.num_conv_pos_embeddings
        super().__init__(*sizes, padding=sizes[2] // 2, groups=c.num_conv_pos_embedding_groups)
        self.norm, self.act = nn.BatchNorm1d(c.hidden_size), activation(c.feat_extract_activation)

    def forward(self, input: Tensor) -> Tensor:
        y = super().forward(self.norm(input.transpose(1, 2)))
        placed: Tensor = self.act(y[:, :, : input.shape[1]])  # an even kernel makes one position too many
        return placed.transpose(1, 2)


class HubertModel(Wav2Vec2Model):
    config_class = HubertConfig
    base_model_prefix = "hubert"
    names = Wav2Vec2Model.names | Names({"encoder.pos_conv_embed.batch_norm": "embed_positions.norm"})

    def __init__(self, config: HubertConfig) -> None:
        super().__init__(config)
        if not config.feat_proj_layer_norm:
            self.feature_projection.norm = nn.Identity()
        if config.conv_pos_batch_norm:
            self.embed_positions = NormedPositions(config)

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        return self.recorded(BackboneOutput(last_hidden_state=self.finalize(x)), x, ctx)


class HubertForCTC(ForCTC[HubertModel]): ...


class HubertForSequenceClassification(ForAudioClassification[HubertModel]): ...
