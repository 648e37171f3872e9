"""Mamba (Gu and Dao 2023): layers without attention, each with a state that the inputs decide how to change and to read.

Padding is set to zero before it reaches a state, which leaves that as it is on the left of a row. Shapes: B batch, T positions,
C inner channels, K width of the convolution, N size of the state.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.gguf import STATES, Layout
from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, PaddingId, derived
from transept.config.model import Config
from transept.heads.language import ForCausalLM
from transept.kinds.decoder import FULL
from transept.kinds.hybrid import LINEAR, StateBackbone, spread_steps
from transept.layers import Context, RMSNorm
from transept.layers.caches.layer import States
from transept.layers.links import Layer, Linked
from transept.layers.mlp import activation
from transept.layers.recurrent import causal_conv, real_positions, selective_scan
from transept.outputs import RecurrentLogitsOutput, RecurrentOutput


class StateSpaceConfig(Config):
    """What models of state spaces have in common."""

    vocab_size: int = 50280
    hidden_size: int = 768
    state_size: Count = 16
    num_hidden_layers: Layers = 32
    layer_norm_epsilon: float = 1e-5
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0
    expand: int = 2
    conv_kernel: Count = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: str = "silu"
    initializer_range: Deviation = 0.1
    residual_in_fp32: bool = True
    time_step_rank: Count = derived(lambda c: math.ceil(c.hidden_size / 16), absent="auto")
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4
    rescale_prenorm_residual: bool = False

    @property
    def layer_types(self) -> list[str]:
        return [LINEAR] * self.num_hidden_layers


class MambaConfig(StateSpaceConfig):
    """Settings of Mamba; the defaults are those of its smallest checkpoint, but for the number of layers.

    ``intermediate_size`` is ``expand`` times ``hidden_size`` unless it is given, and ``time_step_rank`` is a sixteenth of
    ``hidden_size`` when ``"auto"``. Other ``time_step_...`` settings and ``rescale_prenorm_residual`` are for weights before
    training. ``use_mambapy`` and ``use_associative_scan`` have no effect: they choose between equal computations.
    """

    model_type = "mamba"

    intermediate_size: Count = derived(lambda c: c.expand * c.hidden_size)
    time_step_scale: float = 1.0
    time_step_init_scheme: Literal["constant", "random"] = "random"
    use_mambapy: bool = False
    use_associative_scan: bool = True


class MambaMixer(Linked):
    """Mixes positions: a convolution, then a selective state space, gated by the inputs.

    ``dim``, ``inner``, ``rank``, ``state`` and ``kernel`` are the sizes of inputs, channels, step sizes, states and the
    convolution; ``bias`` is for the projections, ``conv_bias`` for the convolution.
    """

    def __init__(
        self, dim: int, inner: int, rank: int, state: int, kernel: int, act: str, *, bias: bool = False, conv_bias: bool = True
    ) -> None:
        super().__init__()
        self.sizes = (rank, state, state)
        self.in_proj = nn.Linear(dim, 2 * inner, bias)
        self.conv1d = nn.Conv1d(inner, inner, kernel, groups=inner, bias=conv_bias)
        self.act = activation(act)
        self.x_proj = nn.Linear(inner, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log, self.D = nn.Parameter(torch.empty(inner, state)), nn.Parameter(torch.empty(inner))
        self.out_proj = nn.Linear(inner, dim, bias)

    def reset_parameters(self) -> None:
        """Decays of 1 to N in each channel, and outputs to which the inputs are added as they are."""
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1.0, self.A_log.shape[1] + 1, device=self.A_log.device).log())
        nn.init.ones_(self.D)

    def select(self, x: Tensor) -> tuple[Tensor, ...]:
        """What step sizes are made of (B, T, rank), and what is written to and read of states (B, T, N) each."""
        return torch.split(self.x_proj(x), [*self.sizes], dim=-1)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D); padding on the left leaves states as they are."""
        real, kept = real_positions(x, ctx), ctx.kept(States)
        inner, gate = self.in_proj(x if real is None else x * real).chunk(2, dim=-1)
        inner, last = causal_conv(inner.mT, self.conv1d.weight, self.conv1d.bias, kept.get("conv") if kept else None)
        inner = self.act(inner.mT) if real is None else self.act(inner.mT) * real
        rank, write, read = self.select(inner)
        step, decay = F.softplus(self.dt_proj(rank)), -self.A_log.exp()
        y, state = selective_scan(inner, step, decay, write, read, kept.get("recurrent") if kept else None)
        if kept is not None:
            kept.keep(x.shape[1], conv=last, recurrent=state)
        return self.out_proj(((y + inner * self.D) * F.silu(gate)).to(x.dtype))


class MambaBlock(Layer):
    """The mixer reads the normed input, and is added to the input, which is then float32 at least if ``wide``."""

    def __init__(self, mixer: nn.Module, norm: RMSNorm, *, wide: bool) -> None:
        super().__init__()
        self.mixer_norm, self.mixer, self.wide = norm, mixer, wide

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        mixed = self.mixer(self.mixer_norm(x.to(self.mixer_norm.weight.dtype)), ctx)
        return mixed + (x.float() if self.wide and x.dtype.itemsize < 4 else x)


# What older files of hybrids call kinds of layers.
OLDER_KINDS = {"mamba": LINEAR, "attention": FULL}
MAMBA_BLOCK: Table = {
    "norm": "mixer_norm",
    "mixer": ("mixer", {name: name for name in ("A_log", "D", "conv1d", "in_proj", "x_proj", "dt_proj", "out_proj")}),
}


_PARTS = {"a": "A_log", "d": "D", "conv1d": "conv1d", "in": "in_proj", "x": "x_proj", "dt": "dt_proj", "out": "out_proj"}
STATE_FILES = Layout(
    {f"ssm_{stored}": f"mixer.{ours}" for stored, ours in _PARTS.items()} | {"attn_norm": "mixer_norm"}, changes=STATES
)


def mixer_files(layout: Layout) -> dict[str, Any]:
    """What GGUF files call the parts of the mixers of a layout, in families that have a norm of their own before these."""
    return {name: ours for name, ours in layout.layer.items() if name != "attn_norm"}


class MambaModel(StateBackbone):
    config_class: ClassVar[type[StateSpaceConfig]] = MambaConfig
    base_model_prefix = "backbone"
    names = Names(
        {"embeddings": "embed_tokens", "layers.*": ("layers.*", MAMBA_BLOCK), "norm_f": "norm"},
        legacy={"embedding": "embeddings"},
    )
    gguf = STATE_FILES
    cache_name, output_class = "cache_params", RecurrentOutput
    mixer_class: ClassVar[type[MambaMixer]] = MambaMixer
    reads = ("input_ids", "inputs_embeds", "cache_params", "use_cache", "labels", "attention_mask")
    config: StateSpaceConfig

    def __init__(self, config: StateSpaceConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        blocks = (
            MambaBlock(self.mixer(layer), self.make_norm(), wide=c.residual_in_fp32) for layer in range(c.num_hidden_layers)
        )
        self.layers = nn.ModuleList(blocks)
        self.norm = self.make_norm()

    def make_norm(self) -> RMSNorm:
        return RMSNorm(self.config.hidden_size, self.config.layer_norm_epsilon)

    def mixer(self, layer: int) -> nn.Module:
        c: Any = self.config  # a kin with other mixers has not these settings
        sizes = (c.hidden_size, c.intermediate_size, int(c.time_step_rank), c.state_size, c.conv_kernel)
        return self.mixer_class(*sizes, c.hidden_act, bias=c.use_bias, conv_bias=c.use_conv_bias)

    @torch.no_grad()
    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        part: Any = module
        mixers: list[Any] = [block.mixer for block in self.layers if isinstance(block, MambaBlock)]
        for mixer in mixers:
            if part is mixer.conv1d or part is mixer.out_proj:
                nn.init.kaiming_uniform_(part.weight, a=math.sqrt(5))
                if self.config.rescale_prenorm_residual and part is mixer.out_proj:
                    part.weight /= math.sqrt(self.config.num_hidden_layers)
            else:
                self.initialize_steps(part, mixer)

    def initialize_steps(self, part: Any, mixer: Any) -> None:
        """Begin with step sizes that are spread over the range of the config, if the part gives those of a mixer."""
        c: Any = self.config
        if part is mixer.dt_proj:
            bound = int(c.time_step_rank) ** -0.5 * c.time_step_scale
            nn.init.uniform_(part.weight, bound if c.time_step_init_scheme == "constant" else -bound, bound)
            spread_steps(part.bias, c)


class MambaForCausalLM(ForCausalLM[MambaModel]):
    output_class = RecurrentLogitsOutput
    reads: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "inputs_embeds", "cache_params", "labels")

    def score(self, hidden: Tensor) -> Tensor:
        logits = super().score(hidden.to(self.dtype))
        return logits.float() if logits.dtype.itemsize < 4 else logits
