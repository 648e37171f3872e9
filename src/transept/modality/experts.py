"""Settings of decoders in which tokens choose experts, and the sublayer that follows from them."""

from __future__ import annotations

from functools import partial

from transept.layers.moe import SparseMLP, choose_top
from transept.modality.decoder import DecoderConfig


class SparseConfig(DecoderConfig):
    """What these families have in common.

    ``num_experts_per_tok`` of ``num_local_experts`` work on a token. ``output_router_logits`` shows how they were chosen, and
    adds to a loss ``router_aux_loss_coef`` times how unevenly. ``sliding_window`` is how many positions a query sees, itself
    included; without it, all before it.
    """

    aliases = {"num_experts": "num_local_experts"}

    hidden_act: str = "silu"
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    output_router_logits: bool = False
    router_aux_loss_coef: float = 0.001
    sliding_window: int | None = None

    def validate(self) -> None:
        """A token chooses no more experts than there are."""
        super().validate()
        self.check_window("sliding_window")
        sparse = any(map(self.is_sparse, range(self.num_hidden_layers)))
        if sparse and not 1 <= self.num_experts_per_tok <= self.num_local_experts:
            self.fail("num_experts_per_tok", f"must be between 1 and `num_local_experts` ({self.num_local_experts})")

    def window(self, layer: int) -> int | None:
        """The same in all layers."""
        return self.sliding_window

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return True


def sparse_mlp(c: SparseConfig, hidden: int, *, normalize: bool = True, jitter: float = 0.0) -> SparseMLP:
    """A layer of experts, each of the inner size ``hidden``, that are chosen by a softmax; the others as for its parts."""
    return SparseMLP(
        c.hidden_size,
        hidden,
        c.hidden_act,
        experts=c.num_local_experts,
        route=partial(choose_top, count=c.num_experts_per_tok, normalize=normalize),
        jitter=jitter,
        chunk_size=c.chunk_size_feed_forward,
    )
