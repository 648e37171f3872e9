"""An autoencoder: rows become short codes, and codes rows again (Vincent et al. 2008; variational: Kingma and Welling 2014).

The names in its checkpoints are ours, since no other library stores one. Shapes: B rows, N numbers a row, Z size of a code.
"""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from transept.checkpoint.names import Names
from transept.config.fields import Count, Deviation
from transept.config.model import Config
from transept.core.inputs import check_finite, check_tensor
from transept.core.model import Backbone
from transept.core.task import TaskModel
from transept.errors import InputError
from transept.layers.mlp import activation
from transept.objectives.terms import Items, LossTerm
from transept.objectives.variational import divergence_from_normal, reconstruction, sample_code
from transept.outputs import ModelOutput


class AutoencoderConfig(Config):
    """Settings of an autoencoder.

    With ``noise`` above 0, inputs are disturbed in training by normal noise of that deviation, and the clean ones are to be
    made again. A ``variational`` one draws its codes, and ``beta`` times their divergence from a normal distribution is added
    to the loss, at least ``free_bits`` for each number of the code. ``bernoulli`` is for inputs from 0 to 1.
    """

    model_type = "autoencoder"

    input_size: Count = 784
    hidden_sizes: list[Count] = field(default_factory=lambda: [256])
    latent_size: Count = 32
    hidden_act: str = "relu"
    noise: Deviation = 0.0
    variational: bool = False
    beta: Deviation = 1.0
    free_bits: Deviation = 0.0
    loss_type: Literal["squares", "bernoulli"] = "squares"
    initializer_range: Deviation = 0.05


class CodeOutput(ModelOutput):
    """Codes (B, Z): the means where they are drawn, with the logarithms of their variances."""

    latents: Tensor
    log_variance: Tensor | None = None


class ReconstructionOutput(ModelOutput):
    """Rows made again, in the shape of the inputs (logits for ``bernoulli``), and their codes."""

    loss: Tensor | None = None
    reconstruction: Tensor | None = None
    latents: Tensor | None = None
    log_variance: Tensor | None = None
    loss_terms: dict[str, LossTerm] | None = None


def dense(sizes: list[int]) -> nn.ModuleList:
    """Linear layers from each size to the next."""
    return nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes))


class AutoencoderModel(Backbone):
    """The encoder: rows (B, ...) of N numbers -> codes (B, Z)."""

    config_class = AutoencoderConfig
    base_model_prefix = "encoder"
    main_input_name = "values"
    names = Names({"layers.*": "layers.*"})

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__(config)
        c = config
        last = c.latent_size * (2 if c.variational else 1)
        self.layers, self.act = dense([c.input_size, *c.hidden_sizes, last]), activation(c.hidden_act)

    def forward(self, values: Tensor, *, return_dict: bool | None = None) -> Any:
        """Rows of any shape with N numbers each -> their codes."""
        rows: Any = values
        rows = rows.flatten(1) if isinstance(rows, Tensor) and rows.ndim > 1 else rows
        x = check_tensor("values", rows, (), "(batch, numbers)")
        if x.shape[1] != self.config.input_size:
            what = f"`values` has {x.shape[1]} numbers a row, but `input_size` is {self.config.input_size}."
            raise InputError(what, hint="Set `input_size`, or resize the inputs.")
        check_finite(x, "values")
        x = run(self.layers, x.to(self.dtype), self.act)
        mean, log_variance = x.chunk(2, dim=1) if self.config.variational else (x, None)
        output = CodeOutput(latents=mean, log_variance=log_variance)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()


def run(layers: nn.ModuleList, x: Tensor, act: Any) -> Tensor:
    for layer in layers[:-1]:
        x = act(layer(x))
    out: Tensor = layers[-1](x)
    return out


class AutoencoderForReconstruction(TaskModel[AutoencoderModel]):
    """Encoder and decoder; the loss is what the rows made again miss of the inputs."""

    names = Names({"decoder.*": "decoder.*"})

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__(config)
        self.decoder = dense([config.latent_size, *config.hidden_sizes[::-1], config.input_size])

    def forward(
        self, values: Tensor, *, num_items_in_batch: Items | None = None, return_dict: bool | None = None
    ) -> ReconstructionOutput:
        """Make rows (B, ...) again."""
        c, noisy = self.config, values
        if self.training and c.noise:
            noisy = values + c.noise * torch.randn_like(values)
        codes = self.backbone(noisy, return_dict=True)
        drawn = self.training and codes.log_variance is not None
        made = self.decode(sample_code(codes.latents, codes.log_variance) if drawn else codes.latents)
        terms = {"reconstruction": reconstruction(made, values.flatten(1), c.loss_type)}
        if codes.log_variance is not None:
            terms["divergence"] = divergence_from_normal(codes.latents, codes.log_variance, beta=c.beta, free_bits=c.free_bits)
        output = ReconstructionOutput(reconstruction=made.view(values.shape), **codes)
        return self.answer(output, ModelOutput(), terms, num_items_in_batch, return_dict)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (B, Z) -> rows (B, N)."""
        return run(self.decoder, codes, self.backbone.act)

    def count(self, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Both terms count rows."""
        rows = torch.tensor(len(inputs["values"]))
        return dict.fromkeys(("reconstruction", "divergence") if self.config.variational else ("reconstruction",), rows)
