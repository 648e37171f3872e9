"""What TrOCR has beyond the derived suite: fixed positions, states of another size, and what it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from transept.core.auto import AutoModelForCausalLM
from transept.errors import ConfigError, InputError
from transept.models.trocr import TrOCRConfig, TrOCRForCausalLM

from .families.settings import SHARP, STACKS
from .harness import ROUNDED, SINGLE, compare, error, stored

TINY: dict[str, Any] = {name: value for name, value in STACKS.items() if not name.startswith("encoder_")}
TINY |= {"init_std": SHARP}
WAVES = TINY | {"use_learned_position_embeddings": False, "layernorm_embedding": False, "scale_embedding": True}
STATES = torch.randn(2, 5, 20, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([[2, 7, 8, 9, 10, 11], [1, 1, 2, 12, 13, 14]])  # the second is padded on the left


def pair(tmp_path: Path, **settings: Any) -> tuple[Any, Any]:
    """Ours read from the reference's file, and theirs as it was made: loaded, it cannot run with fixed positions."""
    import transformers

    torch.manual_seed(0)
    theirs = transformers.TrOCRForCausalLM(transformers.TrOCRConfig(**settings)).eval()
    theirs.save_pretrained(tmp_path)
    return AutoModelForCausalLM.from_pretrained(tmp_path), theirs


def run(model: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.reference
@pytest.mark.parametrize("settings", [WAVES, WAVES | {"d_model": 36}, TINY | {"layernorm_embedding": False}])
def test_states_of_another_size_and_fixed_positions(settings: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = pair(tmp_path, **settings, cross_attention_hidden_size=20)
    assert ours.backbone.layers[0].cross_attn.k_proj.in_features == 20
    inputs = {"input_ids": IDS, "encoder_hidden_states": STATES, "use_cache": False}
    mask = (IDS != 1).long()
    real = {"attention_mask": mask, "labels": IDS.masked_fill(mask == 0, -100), "output_hidden_states": True}
    compare(run(ours, **inputs, **real), run(theirs, **inputs, **real), SINGLE, only=mask)
    wide = {"input_ids": IDS[:1], "encoder_hidden_states": STATES[:1].double()}
    found, expected = run(ours.double(), **wide).logits, run(theirs.double(), **wide).logits
    assert error(found, expected) <= ROUNDED  # the reference's waves are float32
    ours.save_pretrained(tmp_path / "ours")
    mine, other = stored(str(tmp_path / "ours")), stored(str(tmp_path))
    assert mine.keys() == other.keys()


@pytest.mark.reference
@pytest.mark.parametrize("settings", [TINY, WAVES])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_writes_what_the_reference_writes(settings: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = pair(tmp_path, **settings, cross_attention_hidden_size=20)
    given = options | {"input_ids": torch.tensor([[2, 5], [2, 7]]), "encoder_hidden_states": STATES, "max_new_tokens": 8}
    # Without a cache: alone, the reference's decoder appends the encoder's keys to its own.
    assert torch.equal(ours.generate(**given), theirs.generate(**given, use_cache=False))


def test_older_files_hold_what_is_computed(tmp_path: Path) -> None:
    ours = TrOCRForCausalLM(TrOCRConfig(**WAVES)).eval()
    ours.save_pretrained(tmp_path)
    old = stored(str(tmp_path)) | {"backbone.decoder.embed_positions._float_tensor": torch.zeros(1)}
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again = TrOCRForCausalLM.from_pretrained(tmp_path)
    assert error(run(again, input_ids=IDS).logits, run(ours, input_ids=IDS).logits) <= SINGLE
    half = again.to(torch.bfloat16)
    assert run(half, input_ids=IDS).logits.dtype == torch.bfloat16


def test_embeddings_count_as_real_tokens() -> None:
    ours = TrOCRForCausalLM(TrOCRConfig(**WAVES)).eval()
    given = run(ours, inputs_embeds=ours.get_input_embeddings()(IDS[:1])).logits
    assert error(given, run(ours, input_ids=IDS[:1]).logits) <= SINGLE


def test_what_cannot_be() -> None:
    ours = TrOCRForCausalLM(TrOCRConfig(**TINY))
    with pytest.raises(InputError, match="states of 20, but cross-attention reads such of 32"):
        ours(IDS, encoder_hidden_states=STATES)
    with pytest.raises(InputError, match="1 rows, but the batch has 2"):
        ours(IDS, encoder_hidden_states=STATES[:1])
    with pytest.raises(ConfigError, match="use_learned_position_embeddings"):
        TrOCRConfig(**TINY | {"use_learned_position_embeddings": False, "pad_token_id": None})
    with pytest.raises(ConfigError, match="d_model"):
        TrOCRForCausalLM(TrOCRConfig(**TINY | {"d_model": 30}))
    with pytest.raises(InputError, match="65 positions, but TrOCRDecoder has embeddings for 64"):
        ours(torch.full((1, 65), 5))
