"""Mamba (Gu and Dao 2023): layers without attention, each with a state that the inputs decide how to change and to read.

Padding is set to zero before it reaches a state, which leaves that as it is on the left of a row. Shapes: B batch, T positions,
C inner channels, K width of the convolution, N size of the state.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transept.checkpoint.keys import Table
from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation, Layers, PaddingId, derived
from transept.config.model import Config
from transept.errors import InputError
from transept.heads.language import ForCausalLM
from transept.kinds.text import CausalBackbone, PackedOptions
from transept.layers import Context, RMSNorm
from transept.layers.cache import Cache
from transept.layers.layer_cache import States
from transept.layers.links import Layer, Linked
from transept.layers.mlp import activation
from transept.outputs import ModelOutput, RecurrentLogitsOutput, RecurrentOutput


class MambaConfig(Config):
    """Settings of Mamba; the defaults are those of its smallest checkpoint, but for the number of layers.

    ``intermediate_size`` is ``expand`` times ``hidden_size`` unless it is given, and ``time_step_rank`` is a sixteenth of
    ``hidden_size`` when ``"auto"``. Other ``time_step_...`` settings and ``rescale_prenorm_residual`` are for weights before
    training. ``use_mambapy`` and ``use_associative_scan`` have no effect: they choose between equal computations.
    """

    model_type = "mamba"

    vocab_size: int = 50280
    hidden_size: int = 768
    state_size: Count = 16
    num_hidden_layers: Layers = 32
    layer_norm_epsilon: float = 1e-5
    pad_token_id: PaddingId | None = 0
    bos_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0
    expand: int = 2
    intermediate_size: Count = derived(lambda c: c.expand * c.hidden_size)
    conv_kernel: Count = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: str = "silu"
    initializer_range: Deviation = 0.1
    residual_in_fp32: bool = True
    time_step_rank: Count = derived(lambda c: math.ceil(c.hidden_size / 16), absent="auto")
    time_step_scale: float = 1.0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_init_scheme: Literal["constant", "random"] = "random"
    time_step_floor: float = 1e-4
    rescale_prenorm_residual: bool = False
    use_mambapy: bool = False
    use_associative_scan: bool = True

    @property
    def layer_types(self) -> list[str]:
        return ["linear_attention"] * self.num_hidden_layers


# Positions whose factors are made at once: few enough for them to stay in the processor's cache.
_AT_ONCE = 16


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A convolution (C, 1, K) of each channel of (B, C, T) with itself that sees no later positions.

    ``before`` (B, C, K - 1) is what came before ``x``; zeros when absent. Returns (B, C, T), and the last (B, C, K - 1) inputs.
    """
    width = weight.shape[2] - 1
    x = F.pad(x, (width, 0)) if before is None else torch.cat([before, x], dim=2)
    return F.conv1d(x, weight, bias, groups=x.shape[1]), x[:, :, x.shape[2] - width :]


def selective_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A linear recurrence whose step sizes, inputs and outputs depend on the position.

    ``state[t] = exp(step[t] * decay) * state[t - 1] + step[t] * x[t] * write[t]`` and ``y[t] = state[t] @ read[t]``, in float32
    at least, of which ``y`` and the last state are returned. All factors are made for many positions at once; what is left for
    each is one multiplication and addition. ``x`` and ``step`` are (B, T, C), ``decay`` (C, N), the others (B, T, N).
    """
    half = x.dtype in (torch.float16, torch.bfloat16)
    x, step, decay, write, read = (part.float() if half else part for part in (x, step, decay, write, read))
    state = x.new_zeros(x.shape[0], *decay.shape) if state is None else state
    outputs = []
    blocks = (torch.split(part, _AT_ONCE, dim=1) for part in (x, step, write, read))
    for x_part, step_part, write_part, read_part in zip(*blocks, strict=True):
        factors = torch.exp(step_part[..., None] * decay)
        inputs = (step_part * x_part)[..., None] * write_part[:, :, None]
        states = []
        for factor, given in zip(factors.unbind(1), inputs.unbind(1), strict=True):
            state = torch.addcmul(given, factor, state)
            states.append(state)
        outputs.append((torch.stack(states, dim=1) @ read_part[..., None]).squeeze(-1))
    return torch.cat(outputs, dim=1), state


class MambaMixer(Linked):
    """Mixes positions: a convolution, then a selective state space, gated by the inputs."""

    def __init__(self, c: MambaConfig) -> None:
        super().__init__()
        inner, rank = c.intermediate_size, int(c.time_step_rank)
        self.sizes = (rank, c.state_size, c.state_size)
        self.in_proj = nn.Linear(c.hidden_size, 2 * inner, c.use_bias)
        self.conv1d = nn.Conv1d(inner, inner, c.conv_kernel, groups=inner, bias=c.use_conv_bias)
        self.act = activation(c.hidden_act)
        self.x_proj = nn.Linear(inner, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log, self.D = nn.Parameter(torch.empty(inner, c.state_size)), nn.Parameter(torch.empty(inner))
        self.out_proj = nn.Linear(inner, c.hidden_size, c.use_bias)

    def reset_parameters(self) -> None:
        """Decays of 1 to N in each channel, and outputs to which the inputs are added as they are."""
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1.0, self.A_log.shape[1] + 1, device=self.A_log.device).log())
        nn.init.ones_(self.D)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        real = None if ctx.padding is None else ctx.padding[:, -x.shape[1] :, None]
        kept = ctx.kept(States)
        inner, gate = self.in_proj(x if real is None else x * real).chunk(2, dim=-1)
        inner, last = causal_conv(inner.mT, self.conv1d.weight, self.conv1d.bias, kept.get("conv") if kept else None)
        inner = self.act(inner.mT) if real is None else self.act(inner.mT) * real
        rank, write, read = self.x_proj(inner).split(self.sizes, dim=-1)
        step, decay = F.softplus(self.dt_proj(rank)), -self.A_log.exp()
        y, state = selective_scan(inner, step, decay, write, read, kept.get("recurrent") if kept else None)
        if kept is not None:
            kept.keep(x.shape[1], conv=last, recurrent=state)
        return self.out_proj(((y + inner * self.D) * F.silu(gate)).to(x.dtype))


class MambaBlock(Layer):
    def __init__(self, c: MambaConfig) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = RMSNorm(c.hidden_size, c.layer_norm_epsilon), MambaMixer(c)
        self.wide = c.residual_in_fp32

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        mixed = self.mixer(self.mixer_norm(x.to(self.mixer_norm.weight.dtype)), ctx)
        return mixed + (x.float() if self.wide and x.dtype.itemsize < 4 else x)


MAMBA_BLOCK: Table = {
    "norm": "mixer_norm",
    "mixer": ("mixer", {name: name for name in ("A_log", "D", "conv1d", "in_proj", "x_proj", "dt_proj", "out_proj")}),
}


class MambaModel(CausalBackbone):
    config_class = MambaConfig
    base_model_prefix = "backbone"
    names = Names(
        {"embeddings": "embed_tokens", "layers.*": ("layers.*", MAMBA_BLOCK), "norm_f": "norm"},
        legacy={"embedding": "embeddings"},
    )
    accepts, keeps, ragged = PackedOptions, (States,), False
    reads = ("input_ids", "inputs_embeds", "cache_params", "use_cache", "labels", "attention_mask")

    def __init__(self, config: MambaConfig) -> None:
        super().__init__(config)
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(MambaBlock(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.layer_norm_epsilon)

    @torch.no_grad()
    def initialize_module(self, module: nn.Module) -> None:
        super().initialize_module(module)
        c = self.config
        for mixer in (block.mixer for block in self.layers if isinstance(block, MambaBlock)):
            if module is mixer.conv1d or module is mixer.out_proj:
                nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
                if c.rescale_prenorm_residual and module is mixer.out_proj:
                    module.weight /= math.sqrt(c.num_hidden_layers)
            elif module is mixer.dt_proj:
                bound = int(c.time_step_rank) ** -0.5 * c.time_step_scale
                nn.init.uniform_(module.weight, bound if c.time_step_init_scheme == "constant" else -bound, bound)
                low, high = math.log(c.time_step_min), math.log(c.time_step_max)
                step = torch.empty_like(module.bias).uniform_(low, high).exp().clamp(min=c.time_step_floor)
                module.bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus gives the step back

    def begin(self, *args: Any, cache_params: Cache | None = None, **inputs: Any) -> tuple[Tensor, Context]:
        x, ctx = super().begin(*args, **inputs | ({} if cache_params is None else {"past_key_values": cache_params}))
        if ctx.full_mask is not None:
            raise InputError("`attention_mask` must be (batch, positions): a state has no pairs of positions.")
        ctx.attentions = ctx.cross_attentions = None
        return x, ctx

    def end(self, x: Tensor, ctx: Context) -> ModelOutput | tuple[Any, ...]:
        if ctx.hidden_states is not None:
            ctx.hidden_states = [*ctx.hidden_states[1:], x]  # each layer's own output, and not what goes into the first
        x = self.finalize(x)
        return self.recorded(RecurrentOutput(last_hidden_state=x, past_key_values=ctx.cache), x, ctx)


class MambaForCausalLM(ForCausalLM[MambaModel]):
    output_class = RecurrentLogitsOutput
    reads = ("input_ids", "attention_mask", "inputs_embeds", "cache_params", "labels")

    def score(self, hidden: Tensor) -> Tensor:
        logits = super().score(hidden.to(self.dtype))
        return logits.float() if logits.dtype.itemsize < 4 else logits
