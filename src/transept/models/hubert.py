"""HuBERT (Hsu et al. 2021): Wav2Vec2's network, trained to tell the clusters of hidden frames, without a quantiser."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.heads.audio import ForAudioClassification, ForCTC
from transept.kinds.audio import WaveConfig
from transept.layers.context import Context
from transept.layers.links import Linked
from transept.layers.mlp import activation
from transept.models.wav2vec2 import POSITIONS, WEIGHTED, Wav2Vec2Model
from transept.outputs import BackboneOutput, ModelOutput


class HubertConfig(WaveConfig):
    """Settings of HuBERT; the defaults are those of hubert-base-ls960."""

    model_type = "hubert"

    feat_proj_layer_norm: bool = True
    conv_pos_batch_norm: bool = False


class NormedPositions(Linked):
    """Relative positions (B, T, D) by a wide grouped convolution of states whose features are normed over the batch."""

    def __init__(self, c: HubertConfig) -> None:
        super().__init__()
        size, kernel, groups = c.hidden_size, c.num_conv_pos_embeddings, c.num_conv_pos_embedding_groups
        self.conv = nn.Conv1d(size, size, kernel, padding=kernel // 2, groups=groups)
        self.norm, self.act = nn.BatchNorm1d(size), activation(c.feat_extract_activation)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.norm(x.transpose(1, 2)))
        placed: Tensor = self.act(y[:, :, : x.shape[1]])  # an even kernel makes one position too many
        return placed.transpose(1, 2)


_NORMED = "embed_positions", {"conv": "conv", "batch_norm": "norm"}


class HubertModel(Wav2Vec2Model):
    config_class = HubertConfig
    base_model_prefix = "hubert"
    names = Wav2Vec2Model.names | Names({POSITIONS: lambda c: _NORMED if c.conv_pos_batch_norm else WEIGHTED})

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
