"""Permutation language modelling: tokens predicted by targets at their places, in any order (Yang et al. 2019).

Shapes: B batch, T positions, G targets, M remembered positions, V vocabulary, D hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transept.errors import InputError
from transept.heads.language import ForCausalLM
from transept.kinds.text import TextB
from transept.layers.caches.cache import Cache, DynamicCache
from transept.layers.caches.layer import States

# What a step leaves to be read by the next one: the last token, and the target's place, where a token stands then.
READ_AGAIN = 2


class Memories(States):
    """What a layer remembers: states of the last positions, and in the first layer the embedding of the last token."""

    name = "memories"


class ForPermutationLM(ForCausalLM[TextB]):
    """The tokens at the targets, or without targets those at all positions.

    ``labels``, (B, G) or (B, T), are the tokens at those very places; nothing is shifted. Text is written greedily, by sampling
    or with beams: at each step a target stands behind the last token. With memories, what was read stays as it was read, while
    without them all is read anew and looks at what was written; so the two write different texts.
    """

    bias = True

    @property
    def rows_apart(self) -> bool:
        return False

    def targets(self, labels: Tensor, logits: Tensor | None = None) -> Tensor:
        return labels

    def step(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = True,
        use_mems: bool | None = None,
        logits_to_keep: int = 1,
        **inputs: Any,
    ) -> Any:
        """Predict the token behind new ones (B, T), by a target at an empty place that no token looks at.

        ``attention_mask`` is for all positions so far; ``token_type_ids`` that do not reach the end go on with the last one.

        Raises:
            InputError, InputTypeError: wrong inputs, logits of more than one position, or a cache of another kind.
        """
        if logits_to_keep != 1:
            hint = "Use greedy search, sampling or beams, without an assistant."
            raise InputError(f"{type(self).__name__} predicts one token at a time, not {logits_to_keep}.", hint=hint)
        self.backbone.check_inputs(input_ids, inputs_embeds)
        table = self.get_input_embeddings()
        new = table(input_ids) if inputs_embeds is None else inputs_embeds
        cache = DynamicCache() if past_key_values is None else past_key_values
        cache.check(self.backbone.layer_kinds(), new.shape[0])
        layers = [cache.part(index, Memories) for index in range(len(self.backbone.layers))]
        empty, again = table(torch.zeros_like(new[:, :1, 0], dtype=torch.long)), layers[0].get("token")
        x = torch.cat([new, empty] if again is None else [again, new, empty], dim=1)
        mems = [states.transpose(0, 1) for layer in layers if (states := layer.get("states")) is not None]
        length, end = x.shape[1], cache.get_seq_length() + new.shape[1]
        if attention_mask is not None:
            seen = length + (mems[0].shape[0] if mems else 0)
            attention_mask = F.pad(attention_mask, (0, 1), value=1)[:, -seen:]
        if token_type_ids is not None:
            last = token_type_ids[:, -1:].expand(-1, max(end + 1 - token_type_ids.shape[1], 0))
            token_type_ids = torch.cat([token_type_ids, last], dim=1)[:, end + 1 - length : end + 1]
        target = (torch.arange(length, device=x.device) == length - 1).to(x.dtype).expand(x.shape[0], 1, -1)
        inputs |= {"perm_mask": target.expand(-1, length, -1), "target_mapping": target, "token_type_ids": token_type_ids}
        inputs |= {"mems": mems, "use_mems": use_mems if use_cache else False}
        output = self(None, attention_mask, inputs_embeds=x, **inputs)
        if output.mems is not None:
            for index, (layer, memory) in enumerate(zip(layers, output.mems, strict=True)):
                token = {} if index else {"token": x[:, -READ_AGAIN:-1]}
                layer.keep(new.shape[1], states=memory[:-READ_AGAIN].transpose(0, 1), **token)
            output["past_key_values"] = cache
        return output
