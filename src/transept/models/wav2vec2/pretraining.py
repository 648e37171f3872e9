"""Pretraining on waveforms alone: telling the quantized features of hidden frames from those of others.

Shapes: B batch, S samples, T frames, K negatives, P size of the space that is compared in; of the quantizer, D size of what
comes in, G groups (codebooks), V vectors in each, Q size of what goes out.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.model import Config
from transept.errors import ConfigError, InputError
from transept.heads.audio import A, AudioTask
from transept.kinds.augment import span_mask
from transept.objectives.classification import widened
from transept.objectives.terms import LossTerm
from transept.outputs import ContrastiveOutput


class GumbelQuantizer(nn.Module):
    """Chooses one vector of each codebook and joins them (product quantization, Jégou et al. 2011).

    In training the choice is drawn by Gumbel softmax (Jang et al. 2017) and the gradient goes straight through; otherwise
    it is the likeliest one, and has no gradient. ``temperature`` is that of the draw; trainings lower it step by step.
    """

    def __init__(self, dim: int, groups: int, vectors: int, out: int) -> None:
        super().__init__()
        self.groups, self.temperature = groups, 2.0
        self.codevectors = nn.Parameter(torch.empty(1, groups * vectors, out // groups))
        self.weight_proj = nn.Linear(dim, groups * vectors)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.codevectors)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Quantize (B, T, D) into (B, T, Q), and tell how evenly the codebooks are used in the positions of ``mask`` (B, T).

        That is the sum over codebooks of the perplexity of their use: G where one vector of each is always chosen, G * V where
        all are alike.
        """
        scores = self.weight_proj(x).view(*x.shape[:2], self.groups, -1)
        if self.training:
            wide = scores.float()
            choice = F.gumbel_softmax(wide, tau=self.temperature, hard=True).to(scores.dtype)
            used = wide.softmax(dim=-1)
        else:
            choice = used = F.one_hot(scores.argmax(dim=-1), scores.shape[-1]).to(scores.dtype)
        books = self.codevectors.view(self.groups, scores.shape[-1], -1)
        quantized = torch.einsum("btgv,gvq->btgq", choice, books).flatten(2)
        if mask is None:
            mean = used.mean(dim=(0, 1))
        else:
            mean = (used * mask[:, :, None, None]).sum(dim=(0, 1)) / mask.sum()
        return quantized, torch.exp(-torch.xlogy(mean, mean).sum(dim=-1)).sum()


class ForContrastivePreTraining(AudioTask[A]):
    """The contrastive task over quantized features (Baevski et al. 2020): projected states and targets (B, T, P).

    ``mask_time_indices`` (B, T) are true for hidden frames, and ``sampled_negative_indices`` (B, T, K) index the B * T frames
    of the batch; :meth:`sample_targets` draws both. With negatives there is a ``loss``, whose two parts are sums over hidden
    frames, as in the reference; ``num_items_in_batch`` has no effect, since both belong to their own batch.

    Its config has ``codevector_dim``, ``num_codevector_groups``, ``num_codevectors_per_group``, ``proj_codevector_dim``,
    ``feat_quantizer_dropout``, ``num_negatives``, ``contrastive_logits_temperature`` and ``diversity_loss_weight``.
    """

    labels = ("sampled_negative_indices",)
    reads = ("input_values", "attention_mask", "mask_time_indices", "sampled_negative_indices")
    names = Names({"quantizer": "quantizer", "project_hid": "project_hid", "project_q": "project_q"})

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.refuse_adapter()
        c, groups = config, config.num_codevector_groups
        if groups < 1 or c.codevector_dim % groups:
            size = c.codevector_dim
            raise ConfigError(f"`codevector_dim` ({size}) must be a multiple of `num_codevector_groups` ({groups}).")
        self.dropout = nn.Dropout(c.feat_quantizer_dropout)
        self.quantizer = GumbelQuantizer(c.conv_dim[-1], groups, c.num_codevectors_per_group, c.codevector_dim)
        self.project_hid = nn.Linear(self.backbone.dim, c.proj_codevector_dim)
        self.project_q = nn.Linear(c.codevector_dim, c.proj_codevector_dim)

    def initialize_module(self, module: nn.Module) -> None:
        """Scores of codevectors with a deviation of one, projections as PyTorch's, and the rest as the family's."""
        if module is self.quantizer.weight_proj:
            nn.init.normal_(self.quantizer.weight_proj.weight)
            nn.init.zeros_(self.quantizer.weight_proj.bias)
        elif module is self.project_hid or module is self.project_q:
            module.reset_parameters()
        else:
            super().initialize_module(module)

    def set_gumbel_temperature(self, temperature: float) -> None:
        """Choose how random codevectors are in training."""
        self.quantizer.temperature = temperature

    def sample_targets(
        self, input_values: Tensor, attention_mask: Tensor | None = None, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """What to hide of a batch (B, S) and what to compare it with: ``mask_time_indices`` and ``sampled_negative_indices``.

        Spans are drawn by ``mask_time_prob``, ``mask_time_length`` and ``mask_time_min_masks``.

        Raises:
            InputError: a row of which fewer than two frames are hidden.
        """
        c, (rows, samples) = self.config, input_values.shape
        full = torch.full((rows,), samples, device=input_values.device)
        lengths = self.backbone.feature_lengths(full if attention_mask is None else (attention_mask != 0).sum(dim=1))
        mask = span_mask(
            lengths,
            self.backbone.feature_lengths(samples),
            generator=generator,
            prob=c.mask_time_prob,
            span=c.mask_time_length,
            least=c.mask_time_min_masks,
        )
        return {"mask_time_indices": mask, "sampled_negative_indices": sample_negatives(mask, c.num_negatives, generator)}

    def predict(self, states: Any, inputs: dict[str, Any]) -> ContrastiveOutput:
        mask = inputs.get("mask_time_indices")
        chosen, perplexity = self.quantizer(self.dropout(states.extract_features), None if mask is None else mask != 0)
        projected, targets = self.project_hid(states.last_hidden_state), self.project_q(chosen)
        made = {"projected_states": projected, "projected_quantized_states": targets, "codevector_perplexity": perplexity}
        return ContrastiveOutput(**made)

    def all_counts(self, labels: list[Any], inputs: dict[str, Any]) -> dict[str, Tensor]:
        return {}

    def all_terms(self, output: Any, states: Any, labels: list[Any], inputs: dict[str, Any]) -> dict[str, LossTerm]:
        if (mask := inputs.get("mask_time_indices")) is None:
            raise InputError("`sampled_negative_indices` needs `mask_time_indices`.", hint="See sample_targets().")
        c, mask, pair = self.config, mask != 0, (output.projected_states, output.projected_quantized_states)
        codes = c.num_codevector_groups * c.num_codevectors_per_group
        nearness = contrastive(*pair, labels[0], mask, c.contrastive_logits_temperature)
        evenness = diversity(output.codevector_perplexity, codes, mask, c.diversity_loss_weight)
        output["contrastive_loss"], output["diversity_loss"] = nearness.sum, evenness.sum
        return {"contrastive": nearness, "diversity": evenness}


def contrastive(states: Tensor, targets: Tensor, negatives: Tensor, mask: Tensor, temperature: float) -> LossTerm:
    """Cross-entropy of the right target (B, T, P) among K wrong ones, by cosine, summed over masked positions (B, T).

    ``negatives`` (B, T, K) index the B * T targets, so that a part of a batch is another task; those equal to the right target
    are left out. The sum counts as one item, as the reference does not divide it.
    """
    if negatives.shape[:2] != states.shape[:2] or mask.shape != states.shape[:2]:
        given, needed = f"negatives {tuple(negatives.shape)} and mask {tuple(mask.shape)}", tuple(states.shape[:2])
        raise InputError(f"{given} must be for the {needed} (batch, frames) of the states.")
    others = targets.flatten(0, 1)[negatives.long()]
    same = (others == targets[:, :, None]).all(dim=-1)
    candidates = widened(torch.cat([targets[:, :, None], others], dim=2))
    logits = F.cosine_similarity(widened(states)[:, :, None], candidates, dim=-1) / temperature
    logits = logits.masked_fill(F.pad(same, (1, 0)), -torch.inf)
    losses = logits.logsumexp(dim=-1) - logits[:, :, 0]
    return LossTerm(losses.masked_fill(~mask, 0.0).sum(), torch.ones((), device=states.device), additive=False)


def diversity(perplexity: Tensor, codes: int, mask: Tensor, weight: float) -> LossTerm:
    """The share of a codebook's vectors that is not used, once for each masked position (B, T)."""
    loss = (codes - perplexity) / codes * mask.sum()
    return LossTerm(loss, torch.ones((), device=loss.device), weight=weight, additive=False)


def sample_negatives(mask: Tensor, number: int, generator: torch.Generator | None = None) -> Tensor:
    """For each masked position (B, T), K others of the same row, drawn alike and with replacement.

    They are (B, T, K) indices into the B * T positions; those of positions that are not masked mean nothing.
    """
    rows, size = mask.shape
    mask, place = mask != 0, mask.device
    count = mask.sum(dim=1)
    if not torch.compiler.is_compiling() and mask.device.type == "cpu" and (few := count < 2).any():
        row = int(few.nonzero()[0])
        what = f"row {row} has {int(count[row])} masked frames, but negatives are drawn from the others of a row."
        raise InputError(what, hint="Mask at least two frames of each row.")
    places = (~mask).to(torch.int8).argsort(dim=1, stable=True)  # masked positions first, in order
    rank = (mask.cumsum(dim=1) - 1)[:, :, None]
    drawn = (torch.rand((rows, size, number), device=place, generator=generator) * (count - 1)[:, None, None]).long()
    drawn = (drawn + (drawn >= rank)).clamp(max=size - 1)  # leaves the position itself out
    chosen = places.gather(1, drawn.flatten(1)).view(rows, size, number)
    return chosen + torch.arange(rows, device=place)[:, None, None] * size
