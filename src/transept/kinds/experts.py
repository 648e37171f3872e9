"""Settings of decoders whose tokens choose experts, and their feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from transept.checkpoint.keys import Table
from transept.config.fields import Experts
from transept.config.gguf import SIGMOID
from transept.kinds.decoder import DecoderConfig
from transept.kinds.text import TextBackbone
from transept.layers import Context, moe
from transept.objectives.terms import LossTerm
from transept.outputs import ModelOutput, SparseOutput


class SparseConfig(DecoderConfig):
    """A decoder some layers of which have experts, ``num_experts_per_tok`` of which work on a token.

    A family has this number, and that of experts, ``num_local_experts``, under the names that its files have for them.
    ``output_router_logits`` shows how experts were chosen.
    """

    hidden_act: str = "silu"
    output_router_logits: bool = False
    router_aux_loss_coef: ClassVar[float | None] = None  # a setting in the families that balance their experts by a loss

    def validate(self) -> None:
        super().validate()
        if self.has_experts and self.num_experts_per_tok is not None:
            self.check_experts()

    def check_model(self) -> None:
        super().check_model()
        if self.has_experts:
            self.check_experts()

    def check_experts(self) -> None:
        """Check that a token has at least one expert, and not more than there are (``ConfigError``)."""
        total, each = (self.aliases.get(name, name) for name in ("num_local_experts", "num_experts_per_tok"))
        count = getattr(self, total)
        if count is not None and not 1 <= (getattr(self, each) or 0) <= count:
            self.fail(each, f"must be between 1 and `{total}` ({count})")

    @property
    def has_experts(self) -> bool:
        """Whether any layer has some."""
        return any(map(self.is_sparse, range(self.num_hidden_layers)))

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return True


class BalancedConfig(SparseConfig):
    """The same, where ``router_aux_loss_coef`` times how unevenly experts are chosen is added to a loss, when that is shown."""

    router_aux_loss_coef: float = 0.001  # type: ignore[misc]


class SharedExpertsConfig(SparseConfig):
    """A decoder whose first ``first_k_dense_replace`` layers are dense, and the others have experts beside shared ones.

    ``n_shared_experts`` of the inner size ``moe_intermediate_size`` work on all tokens. The weights of those that are chosen,
    which sum to one with ``norm_topk_prob``, are multiplied by ``routed_scaling_factor``. Experts are of ``n_group`` groups,
    and chosen from the best ``topk_group``. ``num_nextn_predict_layers`` layers at the end of files, which predict more
    tokens, are not read.
    """

    aliases = {"num_local_experts": "n_routed_experts"}

    n_shared_experts: int | None = 1
    n_routed_experts: Experts | None = 256
    num_experts_per_tok: int | None = 8
    moe_intermediate_size: int = 2048
    first_k_dense_replace: int = 0
    routed_scaling_factor: float = 1.0
    norm_topk_prob: bool = True
    n_group: int | None = 1
    topk_group: int | None = 1
    num_nextn_predict_layers = 0

    def to_gguf(self) -> dict[str, Any]:
        return super().to_gguf() | {"expert_gating_func": SIGMOID}

    def is_sparse(self, layer: int) -> bool:
        return layer >= self.first_k_dense_replace

    def check_model(self) -> None:
        super().check_model()
        groups, kept, count = self.n_group or 1, self.topk_group or 1, self.n_routed_experts
        if self.has_experts and (count is None or count % groups):
            self.fail("n_routed_experts", f"must be a multiple of `n_group` ({groups})")
        if kept > groups:
            self.fail("topk_group", f"must not be greater than `n_group` ({groups})")


def named_experts(count: int, parts: Table) -> Table:
    """The names of what experts that are modules of a :class:`~transept.layers.moe.CapacityMLP` have."""
    return {f"experts.expert_{number}": (f"experts.expert_{number}", parts) for number in range(count)}


class RoutedBackbone(TextBackbone):
    """A backbone whose tokens choose experts: it shows the routers' logits, and what a loss says about them, when asked to."""

    @classmethod
    def options(cls) -> tuple[str, ...]:
        return (*super().options(), "output_router_logits")

    def begin(self, *args: Any, output_router_logits: bool | None = None, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs)
        wanted = self.config.output_router_logits if output_router_logits is None else output_router_logits
        ctx.router_logits = [] if wanted else None
        return x, ctx

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        x = self.finalize(x)
        output = SparseOutput(last_hidden_state=x, past_key_values=ctx.cache)
        if ctx.router_logits:
            output["router_logits"] = tuple(ctx.router_logits)
            real = None if ctx.padding is None else ctx.padding[:, -x.shape[1] :]
            output["loss_terms"] = self.balance(output.router_logits or (), real)
        return self.recorded(output, x, ctx)

    def balance(self, logits: tuple[Tensor, ...], real: Tensor | None) -> dict[str, LossTerm] | None:
        """What a loss has beside, of the routers' logits, one a layer, and of which tokens (B, T) are real."""
        return None


def sparse_mlp(
    c: SparseConfig, hidden: int, router: Callable[..., moe.Router] = moe.Router, *, top: int | None = None, **more: Any
) -> moe.SparseMLP:
    """A layer of experts of the inner size ``hidden``, whose ``router`` is made of D, E and K; ``more`` is of ``SparseMLP``.

    K is ``top``, or the same in all layers.
    """
    experts = moe.Experts(c.num_local_experts, c.hidden_size, hidden, c.hidden_act)
    chooses = router(c.hidden_size, c.num_local_experts, c.num_experts_per_tok if top is None else top)
    return moe.SparseMLP(chooses, experts, chunk_size=c.chunk_size_feed_forward, **more)
