"""CANINE (Clark et al. 2021): an encoder of characters, whose deep layers see a few of them at a time, as molecules."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count
from transept.errors import InputError
from transept.heads import classify, span
from transept.heads.task import Task
from transept.kinds.encoder import EncoderConfig, encoder_layers
from transept.kinds.text import Options, TextBackbone
from transept.layers import Attention, Context, Pooler
from transept.layers.attention.local import in_blocks, out_of_blocks
from transept.layers.context import Attended
from transept.layers.mlp import activation
from transept.models.bert import BERT_BLOCK, BertModel
from transept.outputs import BackboneOutput

PRIMES = (31, 43, 59, 61, 73, 97, 103, 113, 137, 149, 157, 173, 181, 193, 211, 223)
CHARACTERS = 0x110000


class CanineConfig(EncoderConfig):
    """Settings of CANINE.

    Characters have embeddings by ``num_hash_functions`` hashes of ``num_hash_buckets``; ``downsampling_rate`` of them make a
    molecule, and ``upsampling_kernel_size`` is that of the convolution back. The first layer sees ``local_transformer_stride``
    characters at a time.
    """

    model_type = "canine"

    max_position_embeddings: int = 16384
    type_vocab_size: int = 16
    pad_token_id: int | None = 0
    bos_token_id: int | None = 0xE000
    eos_token_id: int | list[int] | None = 0xE001
    downsampling_rate: Count = 4
    upsampling_kernel_size: Count = 4
    num_hash_functions: Count = 8
    num_hash_buckets: Count = 16384
    local_transformer_stride: Count = 128

    def check_model(self) -> None:
        super().check_model()
        self.divided("hidden_size", "num_hash_functions")
        if self.num_hash_functions > len(PRIMES):
            self.fail("num_hash_functions", f"must be at most {len(PRIMES)}")


class LocalAttention(Attention):
    """Attention in which ``stride`` positions see one another and no others."""

    def __init__(self, *args: Any, stride: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stride = stride

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, ctx: Context) -> Attended:
        size, length = self.stride, k.shape[2]
        if length <= size:
            return super().attend(q, k, v, mask, causal, ctx)
        # Where all that a position sees is padding, it sees that evenly: molecules are made of padding, too.
        every = torch.ones(len(q), 1, length, 1, dtype=torch.bool, device=q.device)
        real = every if mask is None else every & mask.mT
        if ctx.attentions is not None:
            part = torch.arange(length, device=q.device) // size
            near = part[:, None] == part
            empty = ~(near & real.mT).any(dim=-1, keepdim=True)
            return super().attend(q.masked_fill(empty, 0.0), k, v, near & (real.mT | empty), causal, ctx)
        queries, keys, values, there, known = (in_blocks(x, size) for x in (q, k, v, real, every))
        empty = ~there.any(dim=2, keepdim=True)
        seen = (there | (known & empty)).mT
        out, _ = super().attend(queries.masked_fill(empty, 0.0), keys, values, seen, causal, ctx)
        return out_of_blocks(out, len(q), length), None


class CharacterEmbeddings(nn.Module):
    """The embeddings of characters by several hashes side by side, of positions and of types, normed: (B, T) -> (B, T, D)."""

    def __init__(self, c: CanineConfig) -> None:
        super().__init__()
        self.buckets, self.embedding_dim = c.num_hash_buckets, c.hidden_size
        for number in range(c.num_hash_functions):
            table = nn.Embedding(c.num_hash_buckets, c.hidden_size // c.num_hash_functions)
            self.add_module(f"HashBucketCodepointEmbedder_{number}", table)
        self.char_position_embeddings = nn.Embedding(c.num_hash_buckets, c.hidden_size)
        self.token_type_embeddings = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.LayerNorm, self.dropout = nn.LayerNorm(c.hidden_size, c.layer_norm_eps), nn.Dropout(c.hidden_dropout_prob)

    def hashed(self, ids: Tensor) -> Tensor:
        """(B, T) numbers of characters -> (B, T, D)."""
        tables = (part for name, part in self._modules.items() if name.startswith("Hash") and part is not None)
        rows = [table((ids + 1) * prime % self.buckets) for table, prime in zip(tables, PRIMES, strict=False)]
        return torch.cat(rows, dim=-1)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        x: Any = inputs_embeds if input_ids is None else self.hashed(input_ids)
        places = torch.arange(x.shape[1], device=x.device)[None] if position_ids is None else position_ids
        types = self.token_type_embeddings
        x = x + (types.weight[0] if token_type_ids is None else types(token_type_ids)) + self.char_position_embeddings(places)
        return self.dropout(self.LayerNorm(x))


class ToMolecules(nn.Module):
    """The first character's state, and those of molecules but the last: (B, T, D) -> (B, M, D)."""

    def __init__(self, c: CanineConfig) -> None:
        super().__init__()
        self.conv = nn.Conv1d(c.hidden_size, c.hidden_size, c.downsampling_rate, stride=c.downsampling_rate)
        self.activation, self.LayerNorm = activation(c.hidden_act), nn.LayerNorm(c.hidden_size, c.layer_norm_eps)

    def forward(self, char_encoding: Tensor) -> Tensor:
        molecules = self.activation(self.conv(char_encoding.mT).mT)
        return self.LayerNorm(torch.cat([char_encoding[:, :1], molecules[:, :-1]], dim=1))


class FromBoth(nn.Module):
    """A convolution over states of characters and of their molecules: (B, T, 2 D) -> (B, T, D)."""

    def __init__(self, c: CanineConfig) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2 * c.hidden_size, c.hidden_size, c.upsampling_kernel_size)
        self.activation, self.LayerNorm = activation(c.hidden_act), nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def forward(self, inputs: Tensor) -> Tensor:
        more = self.conv.kernel_size[0] - 1
        x = self.conv(F.pad(inputs.mT, (more // 2, more - more // 2))).mT
        return self.dropout(self.LayerNorm(self.activation(x)))


class CanineModel(TextBackbone):
    """CANINE without a head. ``hidden_states`` are of characters, then of molecules, then of characters again.

    How many molecules there are depends on how far a batch is padded, as it did in training.
    """

    config_class = CanineConfig
    accepts = Options  # without what tells of several texts in a row
    ragged = False
    head_dropouts = ("hidden_dropout_prob",)
    pooling = "pooler"
    reads = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "labels")
    names = Names(
        {
            "char_embeddings": "char_embeddings",
            "initial_char_encoder.layer.*": ("first_layers.*", BERT_BLOCK),
            "chars_to_molecules": "chars_to_molecules",
            "encoder.layer.*": ("deep_layers.*", BERT_BLOCK),
            "projection": "projection",
            "final_char_encoder.layer.*": ("last_layers.*", BERT_BLOCK),
            "pooler": "pooler",
        },
        legacy=BertModel.names.legacy,
        ignore=("position_ids",),
    )
    config: CanineConfig

    def __init__(self, config: CanineConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        c = config
        self.char_embeddings = CharacterEmbeddings(c)
        local = partial(LocalAttention, stride=c.local_transformer_stride)
        self.first_layers, self.chars_to_molecules = encoder_layers(c, attention=local, count=1), ToMolecules(c)
        self.deep_layers, self.projection, self.last_layers = encoder_layers(c), FromBoth(c), encoder_layers(c, count=1)
        self.pooler = Pooler(c.hidden_size) if add_pooling_layer else None

    @property
    def layers(self) -> list[nn.Module]:  # type: ignore[override]
        return [*self.first_layers, *self.deep_layers, *self.last_layers]

    @property
    def vocab_size(self) -> int:
        return CHARACTERS

    @property
    def rows_apart(self) -> bool:
        return False

    def embedding_table(self) -> nn.Module:
        return self.char_embeddings

    def embed_ids(self, ids: Tensor) -> Tensor:
        return self.char_embeddings.hashed(ids)

    def embed(self, x: Tensor, types: Tensor | None, positions: Tensor, ctx: Context) -> Tensor:
        if types is not None:
            self.check_types(types, x, self.char_embeddings.token_type_embeddings)
        if x.shape[1] < (least := self.config.downsampling_rate):
            raise InputError(f"the text has {x.shape[1]} characters, but a molecule is made of {least}.", hint="Pad it.")
        return self.char_embeddings(inputs_embeds=x, token_type_ids=types, position_ids=positions)

    def run(self, x: Tensor, ctx: Context, start: int = 0, stop: int | None = None) -> Tensor:
        """Characters (B, T, D) through one layer, molecules of them through most, and characters through the last one."""
        rate, length, deep = self.config.downsampling_rate, x.shape[1], len(self.layers) - 1
        chars = super().run(x, ctx, 0, 1)
        x, inner = self.chars_to_molecules(chars), replace(ctx, lowered={})
        if ctx.padding is not None:
            inner.padding = F.max_pool1d(ctx.padding[:, None].to(x.dtype), rate, rate)[:, 0] > 0
        inner.queries = inner.keys = x.shape[1]
        self.show(chars, ctx)
        x = super().run(x, inner, 1, deep)
        self.show(x, ctx)
        ctx.own = x
        repeated = torch.cat([x[:, 1:], x[:, -1:]], dim=1).repeat_interleave(rate, dim=1)
        more = x[:, -1:].expand(-1, length - repeated.shape[1], -1)
        both = torch.cat([chars, torch.cat([repeated, more], dim=1)], dim=-1)
        return super().run(self.projection(both), ctx, deep)

    @staticmethod
    def show(x: Tensor, ctx: Context) -> None:
        """Record states that a group of layers gave, where they are asked for."""
        if ctx.hidden_states is not None:
            ctx.hidden_states.append(x)

    def pooled_places(self, x: Tensor, ctx: Context) -> None:
        return None

    def end(self, x: Tensor, ctx: Context) -> Any:
        pooled = None if self.pooler is None else self.pooler(ctx.own)
        return self.recorded(BackboneOutput(last_hidden_state=x, pooler_output=pooled), x, ctx)


class _Task(Task[CanineModel]):
    reads_pooler = True  # it is there in all checkpoints


class CanineForSequenceClassification(classify.ForSequenceClassification[CanineModel]): ...


class CanineForMultipleChoice(classify.ForMultipleChoice[CanineModel]): ...


class CanineForTokenClassification(_Task, classify.ForTokenClassification[CanineModel]): ...


class CanineForQuestionAnswering(_Task, span.ForQuestionAnswering[CanineModel]): ...
