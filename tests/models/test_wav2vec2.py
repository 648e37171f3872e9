"""What Wav2Vec2 adds to the derived suite: its variants, frames and padding, masks and chance in training, and bad audio."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from transept.adapt.pack import can_pack, pack
from transept.errors import CheckpointError, ConfigError, FileError, InputError, InputTypeError, TranseptWarning
from transept.models.wav2vec2 import (
    Wav2Vec2Config,
    Wav2Vec2ForAudioFrameClassification,
    Wav2Vec2ForCTC,
    Wav2Vec2ForPreTraining,
    Wav2Vec2ForSequenceClassification,
    Wav2Vec2ForXVector,
    Wav2Vec2Model,
)
from transept.models.wav2vec2.pretraining import GumbelQuantizer

from .families import FAMILIES
from .harness import SINGLE, batch, check_config_file, check_same, compare, error, gradients, labels, pair, stored

FAMILY = next(family for family in FAMILIES if family.model_type == "wav2vec2")
TINY = FAMILY.tiny
STABLE, WEIGHTED = FAMILY.variants["stable"], FAMILY.variants["weighted"]
ADAPTER = {"add_adapter": True, "num_adapter_layers": 2, "output_hidden_size": 24}
# config.json of the published base model.
BASE = {
    "activation_dropout": 0.1,
    "apply_spec_augment": True,
    "architectures": ["Wav2Vec2ForCTC"],
    "attention_dropout": 0.1,
    "bos_token_id": 1,
    "codevector_dim": 256,
    "contrastive_logits_temperature": 0.1,
    "conv_bias": False,
    "conv_dim": [512, 512, 512, 512, 512, 512, 512],
    "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
    "conv_stride": [5, 2, 2, 2, 2, 2, 2],
    "ctc_loss_reduction": "sum",
    "ctc_zero_infinity": False,
    "diversity_loss_weight": 0.1,
    "do_stable_layer_norm": False,
    "eos_token_id": 2,
    "feat_extract_activation": "gelu",
    "feat_extract_dropout": 0.0,
    "feat_extract_norm": "group",
    "feat_proj_dropout": 0.1,
    "feat_quantizer_dropout": 0.0,
    "final_dropout": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout": 0.1,
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "layerdrop": 0.1,
    "mask_feature_length": 10,
    "mask_feature_prob": 0.0,
    "mask_time_length": 10,
    "mask_time_prob": 0.05,
    "model_type": "wav2vec2",
    "num_attention_heads": 12,
    "num_codevector_groups": 2,
    "num_codevectors_per_group": 320,
    "num_conv_pos_embedding_groups": 16,
    "num_conv_pos_embeddings": 128,
    "num_feat_extract_layers": 7,
    "num_hidden_layers": 12,
    "num_negatives": 100,
    "pad_token_id": 0,
    "proj_codevector_dim": 256,
    "transformers_version": "4.7.0.dev0",
    "vocab_size": 32,
}
LARGE = {
    "conv_bias": True,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "hidden_size": 1024,
    "num_attention_heads": 16,
}


def config(**more: Any) -> Wav2Vec2Config:
    return Wav2Vec2Config(**TINY | more)


def run(model: Any, *args: Any, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **inputs)


# --- against the reference -------------------------------------------------------------------------------------------


@pytest.mark.reference
@pytest.mark.parametrize("extra", [{}, LARGE, {"torch_dtype": "float16", "adapter_attn_dim": 16}])
def test_reads_published_config_files(extra: dict[str, Any]) -> None:
    check_config_file(Wav2Vec2Config, BASE | extra)
    ours = Wav2Vec2Config.from_dict(BASE | extra)
    assert (ours.inputs_to_logits_ratio, ours.num_feat_extract_layers) == (320, 7)


@pytest.mark.reference
@pytest.mark.parametrize("pad", ["right", "none"])
@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (Wav2Vec2Model, STABLE),
        (Wav2Vec2Model, STABLE | ADAPTER),
        (Wav2Vec2Model, {"feat_extract_norm": "layer", "feat_extract_activation": "relu", "add_adapter": True}),
        (Wav2Vec2ForCTC, STABLE | {"ctc_loss_reduction": "mean"}),
        (Wav2Vec2ForCTC, ADAPTER | {"ctc_zero_infinity": True, "ctc_loss_reduction": "mean"}),
        (Wav2Vec2ForSequenceClassification, STABLE | WEIGHTED),
        (Wav2Vec2ForAudioFrameClassification, WEIGHTED),
        (Wav2Vec2ForXVector, STABLE | WEIGHTED),
        (Wav2Vec2ForXVector, {"add_adapter": True, "adapter_kernel_size": 3, "num_adapter_layers": 1}),
        (Wav2Vec2ForPreTraining, STABLE),
    ],
)
def test_variants_equal_reference(cls: Any, settings: dict[str, Any], pad: str) -> None:
    ours, theirs = pair(FAMILY, cls, attention="eager", **settings)
    inputs = batch(FAMILY, cls, pad=pad)
    wanted = labels(FAMILY, cls, inputs)
    if pad == "none":
        inputs.pop("attention_mask")
    see = {"output_attentions": True, "output_hidden_states": True}
    for given in (inputs, inputs | wanted, inputs | wanted | see):
        compare(run(ours, **given), run(theirs, **given), SINGLE)


@pytest.mark.reference
@pytest.mark.parametrize("settings", [{}, {"apply_spec_augment": False}])
def test_frames_hidden_by_the_caller(settings: dict[str, Any]) -> None:
    ours, theirs = pair(FAMILY, Wav2Vec2Model, **settings)
    inputs = batch(FAMILY, Wav2Vec2Model)
    hidden = labels(FAMILY, Wav2Vec2ForPreTraining, inputs)["mask_time_indices"]
    compare(run(ours, **inputs, mask_time_indices=hidden), run(theirs, **inputs, mask_time_indices=hidden), SINGLE)


@pytest.mark.reference
def test_numbers_of_frames_and_states() -> None:
    ours, theirs = pair(FAMILY, Wav2Vec2Model, **ADAPTER)
    samples = torch.arange(300, 400)
    for adapted, lengths in ((False, ours.feature_lengths), (True, ours.state_lengths)):
        expected = theirs._get_feat_extract_output_lengths(samples, add_adapter=adapted)
        assert torch.equal(lengths(samples), expected)
        assert [lengths(int(n)) for n in samples] == expected.tolist()
    assert ours.receptive_field == 10 + 7 * 5
    assert ours.feature_lengths(ours.receptive_field) == 1
    assert ours.feature_lengths(ours.receptive_field - 1) == 0
    assert Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=0, hidden_size=96)).receptive_field == 400


@pytest.mark.reference
def test_quantizer_equals_reference_in_training() -> None:
    import transformers
    from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2GumbelVectorQuantizer

    ours = GumbelQuantizer(24, 2, 8, 16)
    theirs = Wav2Vec2GumbelVectorQuantizer(transformers.Wav2Vec2Config(**TINY))
    theirs.load_state_dict(ours.state_dict())
    theirs.temperature = ours.temperature = 0.7
    x, mask = torch.randn(2, 9, 24), torch.rand(2, 9) < 0.5
    found = []
    for model in (ours, theirs):
        torch.manual_seed(3)
        vectors, perplexity = model.train()(x, mask)
        (vectors.square().sum() + perplexity).backward()
        found.append((vectors, perplexity, model.weight_proj.weight.grad, model.codevectors.grad))
    assert error(*found) <= SINGLE


@pytest.mark.reference
def test_old_names_of_normed_weights(tmp_path: Path) -> None:
    ours, _ = pair(FAMILY, Wav2Vec2ForCTC)
    ours.save_pretrained(tmp_path)
    weights = stored(tmp_path)
    parts = {".parametrizations.weight.original0": ".weight_g", ".parametrizations.weight.original1": ".weight_v"}
    for new, old in parts.items():
        (name,) = [name for name in weights if name.endswith(new)]
        weights[name.replace(new, old)] = weights.pop(name)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    inputs = batch(FAMILY, Wav2Vec2ForCTC)
    again = Wav2Vec2ForCTC.from_pretrained(tmp_path)
    check_same(again, ours, lambda model: run(model, **inputs))
    ours.load_state_dict(weights)


@pytest.mark.reference
@pytest.mark.parametrize("cls", [Wav2Vec2ForPreTraining, Wav2Vec2ForXVector])
def test_starts_as_the_reference_does(cls: Any) -> None:
    import transformers

    more = {
        "hidden_size": 64,
        "initializer_range": 0.02,
        "conv_dim": [48, 64],
        "conv_bias": True,
        "use_weighted_layer_sum": True,
    }
    torch.manual_seed(0)
    ours, theirs = cls(config(**more)), getattr(transformers, cls.__name__)(transformers.Wav2Vec2Config(**TINY | more))
    expected = theirs.state_dict()
    names, keys = ours.checkpoint_names().canonical(expected), ours.checkpoint_names().keys
    for name, mine in ours.state_dict().items():
        if "pos_conv_embed" in name:  # the reference's own scheme for it has no effect: it fills a computed tensor
            continue
        other = expected[names[keys.recipe(name).stored]]
        assert float(mine.std()) == pytest.approx(float(other.std()), rel=0.35, abs=1e-6), name
        assert float(mine.abs().max()) <= 1.6 * float(other.abs().max()), name


def test_positions_start_with_the_variance_of_a_full_kernel() -> None:
    positions = Wav2Vec2Model(config(hidden_size=128)).embed_positions
    norm = positions.direction.detach().norm(dim=(0, 1), keepdim=True)
    assert error(positions.gain.detach(), norm) < 0.1
    assert float(positions.direction.detach().std()) == pytest.approx(2 / (16 * 128) ** 0.5, rel=0.05)


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_backbone_checkpoints_load_into_every_task(tmp_path: Path) -> None:
    base = Wav2Vec2Model(config())
    base.save_pretrained(tmp_path)
    for cls in (Wav2Vec2ForCTC, Wav2Vec2ForXVector, Wav2Vec2ForPreTraining, Wav2Vec2ForSequenceClassification):
        with pytest.warns(TranseptWarning, match="newly initialised"):
            task, info = cls.from_pretrained(tmp_path, output_loading_info=True)  # type: ignore[attr-defined]
        assert not info["unexpected_keys"]
        assert not any(name.startswith("model.") for name in info["missing_keys"])
        for name, tensor in base.state_dict().items():
            assert torch.equal(tensor, task.backbone.state_dict()[name]), name


def test_tasks_load_from_each_other(tmp_path: Path) -> None:
    Wav2Vec2ForPreTraining(config()).save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match=r"newly initialised.*: lm_head\.weight, lm_head\.bias\."):
        _, info = Wav2Vec2ForCTC.from_pretrained(tmp_path, output_loading_info=True)
    assert {name.split(".")[0] for name in info["unexpected_keys"]} == {"quantizer", "project_hid", "project_q"}
    # Without the embedding of masked frames, as in checkpoints that were tuned without masks.
    with pytest.warns(TranseptWarning, match="newly initialised"):
        Wav2Vec2ForCTC.from_pretrained(tmp_path, mask_time_prob=0.0).save_pretrained(tmp_path / "tuned")
    with pytest.warns(TranseptWarning, match=r"newly initialised.*: wav2vec2\.masked_spec_embed\."):
        Wav2Vec2ForCTC.from_pretrained(tmp_path / "tuned", mask_time_prob=0.1)


def test_adapters_may_be_added_to_a_checkpoint(tmp_path: Path) -> None:
    Wav2Vec2Model(config(do_stable_layer_norm=True)).save_pretrained(tmp_path)
    with pytest.warns(TranseptWarning, match=r"newly initialised.*adapter_layer\.norm"):
        model = Wav2Vec2Model.from_pretrained(tmp_path, adapter_attn_dim=5, **ADAPTER)
    assert run(model, torch.randn(1, 900)).last_hidden_state.shape[2] == 24


# --- languages -------------------------------------------------------------------------------------------------------


@pytest.fixture
def languages(tmp_path: Path) -> Path:
    """A checkpoint with the weights of two more languages, as the reference saves them."""
    torch.manual_seed(0)
    for language, rows in {"fra": 40, "azj-script_latin": 32, "eng": 32}.items():
        theirs = transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**TINY | STABLE | {"vocab_size": rows}))
        for weight in theirs._get_adapters().values():
            torch.nn.init.normal_(weight, std=0.3)
        save_file({k: v.detach() for k, v in theirs._get_adapters().items()}, tmp_path / f"adapter.{language}.safetensors")
    theirs.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.reference
def test_languages_are_those_of_the_reference(languages: Path, tmp_path: Path) -> None:
    inputs = {"input_values": torch.randn(2, 900)}
    ours = Wav2Vec2ForCTC.from_pretrained(languages)
    theirs = transformers.Wav2Vec2ForCTC.from_pretrained(languages).eval()
    weight = ours.backbone.layers[0].adapter.up_proj.weight
    for language in ("fra", "azj-script_latin", "fra", "eng"):
        ours.load_adapter(language)
        theirs.load_adapter(language)
        expected = run(theirs, **inputs).logits
        assert error(run(ours, **inputs).logits, expected) < 1e-5
        assert ours.config.vocab_size == expected.shape[-1] == (40 if language == "fra" else 32)
        assert ours.target_lang == language
        at_once = Wav2Vec2ForCTC.from_pretrained(languages, target_lang=language)
        assert torch.equal(run(at_once, **inputs).logits, run(ours, **inputs).logits)
        packed = pack(Wav2Vec2ForCTC.from_pretrained(languages)) if can_pack() else at_once
        packed.load_adapter(language)
        assert error(run(packed, **inputs).logits, expected) < 1e-5
    assert ours.backbone.layers[0].adapter.up_proj.weight is weight  # an optimizer goes on with it
    ours.load_adapter("fra")
    ours.save_pretrained(tmp_path / "saved")
    assert torch.equal(run(Wav2Vec2ForCTC.from_pretrained(tmp_path / "saved"), **inputs).logits, run(ours, **inputs).logits)


def test_what_is_no_language(languages: Path) -> None:
    model = Wav2Vec2ForCTC.from_pretrained(languages, token="hf_secret")
    assert model.source.token is None
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(FileError, match=r"adapter\.frz\.safetensors.*Did you mean 'fra'"):
        model.load_adapter("frz")
    for wrong in ("../fra", "", "a.b", "x" * 65, None):
        with pytest.raises(InputError, match="must be the name of a language"):
            model.load_adapter(wrong)
    with pytest.raises(InputError, match="no option 'revisions'.*'revision'"):
        model.load_adapter("fra", revisions="main")
    with pytest.raises(InputError, match="no layers for languages.*adapter_attn_dim"):
        Wav2Vec2ForCTC(config(), target_lang="fra")
    with pytest.raises(InputError, match="not loaded from a checkpoint"):
        Wav2Vec2ForCTC(config(**STABLE)).load_adapter("fra")
    good = load_file(languages / "adapter.fra.safetensors")
    first, *_ = (name for name in good if "linear_1.weight" in name)
    for change, kind in [
        ({"lm_head.bias": torch.zeros(39)}, "mismatched"),
        ({"lm_head.weight": torch.zeros(40, 7)}, "mismatched"),
        ({first: torch.zeros(3, 3)}, "mismatched"),
        ({first: None}, "missing"),
        ({"lm_head.weight": None}, "missing"),
        ({"other.weight": torch.zeros(3)}, "unexpected"),
    ]:
        changed = {name: tensor for name, tensor in (good | change).items() if tensor is not None}
        save_file(changed, languages / "adapter.bad.safetensors")
        with pytest.raises(CheckpointError, match="does not hold the weights of a language") as caught:
            model.load_adapter("bad")
        assert next(iter(change)) in getattr(caught.value, kind)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    (languages / "adapter.eng.safetensors").unlink()
    model.target_lang = "eng"
    model.load_adapter("eng", force_load=False)


def test_the_weights_of_a_language_can_be_made_anew(languages: Path) -> None:
    model = Wav2Vec2ForCTC.from_pretrained(languages)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.init_adapter_layers()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name.startswith("lm_head.") or ".adapter" in name}


# --- padding ---------------------------------------------------------------------------------------------------------


def test_padding_changes_nothing_with_layer_norm_and_something_with_group_norm() -> None:
    inputs = batch(FAMILY, Wav2Vec2Model)
    for norm, exact in (("layer", True), ("group", False)):
        torch.manual_seed(0)
        model = Wav2Vec2Model(config(feat_extract_norm=norm)).eval()
        together = run(model, **inputs).last_hidden_state
        for row, samples in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
            alone = run(model, inputs["input_values"][row : row + 1, :samples]).last_hidden_state
            found = error(together[row : row + 1, : alone.shape[1]], alone)
            assert found <= SINGLE if exact or row == 0 else found > 100 * SINGLE


def test_classes_and_speakers_of_a_padded_batch() -> None:
    inputs = batch(FAMILY, Wav2Vec2Model)
    samples = int(inputs["attention_mask"][2].sum())
    torch.manual_seed(0)
    model = Wav2Vec2ForSequenceClassification(config(feat_extract_norm="layer", **WEIGHTED)).eval()
    alone = run(model, inputs["input_values"][2:, :samples]).logits
    assert error(run(model, **inputs).logits[2:], alone) <= SINGLE
    # One layer without dilation, so that the count of real positions is right.
    one = {"tdnn_dim": [16], "tdnn_kernel": [5], "tdnn_dilation": [1]}
    speaker = Wav2Vec2ForXVector(config(feat_extract_norm="layer", **one)).eval()
    alone = run(speaker, inputs["input_values"][2:, :samples]).embeddings
    assert error(run(speaker, **inputs).embeddings[2:], alone) <= SINGLE


# --- training --------------------------------------------------------------------------------------------------------


def test_training_hides_spans_reproducibly() -> None:
    torch.manual_seed(0)
    plain = {"hidden_dropout": 0.0, "activation_dropout": 0.0, "attention_dropout": 0.0}
    model = Wav2Vec2Model(config(mask_time_length=4, mask_time_prob=0.4, **plain)).train()
    values = torch.randn(2, 2000)

    def states(seed: int) -> Tensor:
        torch.manual_seed(seed)
        found: Tensor = run(model, values).last_hidden_state
        return found

    assert torch.equal(states(1), states(1))
    assert not torch.equal(states(1), states(2))
    model.config.apply_spec_augment = False  # read at each call
    assert torch.equal(states(1), states(2))
    model.config.apply_spec_augment, model.config.mask_time_prob, model.config.mask_feature_prob = True, 0.0, 0.5
    assert not torch.equal(states(1), states(2))
    assert torch.equal(run(model.eval(), values).last_hidden_state, states(1))


def test_layers_are_dropped_in_training_only() -> None:
    model = Wav2Vec2Model(config(layerdrop=1.0, hidden_dropout=0.0, apply_spec_augment=False)).train()
    values = torch.randn(2, 500)
    states = run(model, values, output_hidden_states=True).hidden_states
    assert len(states) == 3
    assert all(torch.equal(state, states[0]) for state in states)
    assert not torch.equal(run(model.eval(), values).last_hidden_state, states[0])


def test_training_compiles_whole() -> None:
    model = Wav2Vec2ForPreTraining(config(layerdrop=0.5, mask_feature_prob=0.2, mask_time_prob=0.5)).train()
    values = torch.randn(2, 1000)
    targets = model.sample_targets(values)
    torch._dynamo.reset()
    whole = torch.compile(model, fullgraph=True, backend="eager")
    whole(values, **targets).loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    torch._dynamo.reset()
    sampled = torch.compile(Wav2Vec2Model(config()).train(), fullgraph=True, backend="eager")
    assert torch.isfinite(sampled(values).last_hidden_state).all()


def test_pretraining_samples_its_targets() -> None:
    torch.manual_seed(0)
    model = Wav2Vec2ForPreTraining(config(mask_time_prob=0.5, mask_time_length=4)).train()
    inputs = batch(FAMILY, Wav2Vec2ForPreTraining)
    targets = model.sample_targets(**inputs, generator=torch.Generator().manual_seed(1))
    mask, negatives = targets["mask_time_indices"], targets["sampled_negative_indices"]
    lengths = model.backbone.feature_lengths(inputs["attention_mask"].sum(dim=1))
    frames = mask.shape[1]
    for row in range(3):
        assert not mask[row, lengths[row] :].any()
        chosen = negatives[row][mask[row]] - row * frames
        assert mask[row][chosen].all()
        assert (chosen != torch.arange(frames)[mask[row]][:, None]).all()
    again = model.sample_targets(**inputs, generator=torch.Generator().manual_seed(1))
    assert all(torch.equal(again[name], targets[name]) for name in targets)
    out = model(**inputs, **targets)
    assert not any(term.additive for term in out.loss_terms.values())
    assert torch.equal(out.loss, out.contrastive_loss + 0.1 * out.diversity_loss)
    model.set_gumbel_temperature(0.5)
    assert model.quantizer.temperature == 0.5


def test_frozen_parts_get_no_gradient() -> None:
    model = Wav2Vec2ForCTC(config())
    inputs = batch(FAMILY, Wav2Vec2ForCTC)
    inputs |= labels(FAMILY, Wav2Vec2ForCTC, inputs)
    model.freeze_feature_encoder()
    found = gradients(model, model(**inputs).loss)
    assert not any("feature_extractor" in name for name in found)
    assert "wav2vec2.encoder.layers.0.feed_forward.intermediate_dense.weight" in found
    model.freeze_base_model()
    assert set(gradients(model, model(**inputs).loss)) == {"lm_head.weight", "lm_head.bias"}


def test_mean_reduction_accumulates_exactly() -> None:
    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(config(ctc_loss_reduction="mean")).eval().double()
    inputs = batch(FAMILY, Wav2Vec2ForCTC)
    inputs |= labels(FAMILY, Wav2Vec2ForCTC, inputs)
    inputs["input_values"] = inputs["input_values"].double()
    whole = model(**inputs)
    assert int(whole.loss_terms["ctc"].count) == 3
    parts = [{name: value[rows] for name, value in inputs.items()} for rows in (slice(0, 1), slice(1, 3))]
    losses = [model(**part, num_items_in_batch=3).loss for part in parts]
    assert error(sum(losses), whole.loss) <= 1e-12


def test_weighted_layers_show_hidden_states_only_when_asked() -> None:
    model = Wav2Vec2ForSequenceClassification(config(**WEIGHTED)).eval()
    values = torch.randn(1, 500)
    assert "hidden_states" not in run(model, values)
    assert len(run(model, values, output_hidden_states=True).hidden_states) == 3
    model.config.output_hidden_states = True
    assert len(run(model, values).hidden_states) == 3
    assert "hidden_states" not in run(model, values, output_hidden_states=False)


@pytest.mark.reference
def test_labels_of_frames_as_classes_or_as_scores() -> None:
    ours, _ = pair(FAMILY, Wav2Vec2ForAudioFrameClassification)
    inputs = batch(FAMILY, Wav2Vec2ForAudioFrameClassification)
    scores = labels(FAMILY, Wav2Vec2ForAudioFrameClassification, inputs)["labels"]
    expected = run(ours, **inputs, labels=scores).loss
    assert torch.equal(run(ours, **inputs, labels=scores.argmax(dim=-1)).loss, expected)
    some = scores.argmax(dim=-1)
    some[:, 5:] = -100
    assert int(run(ours, **inputs, labels=some).loss_terms["classification"].count) == 15


# --- bad input -------------------------------------------------------------------------------------------------------

BAD = [
    ([0.0] * 100, InputTypeError, "must be a tensor, but is list"),
    (torch.zeros(100), InputError, r"must be \(batch, samples\) of floats, but is \(100,\)"),
    (torch.zeros(1, 1, 100), InputError, r"must be \(batch, samples\)"),
    (torch.zeros(1, 100, dtype=torch.int16), InputError, r"torch\.int16.*feature extractor"),
    (torch.zeros(1, 44), InputError, "has 44 samples, but Wav2Vec2Model needs at least 45"),
    (torch.zeros(1, 0), InputError, "has 0 samples"),
    (torch.tensor([[0.0] * 60 + [torch.inf]]), InputError, r"holds inf at \[0, 60\]"),
    (torch.full((2, 60), torch.nan), InputError, r"holds nan at \[0, 0\]"),
]


@pytest.mark.parametrize(("values", "kind", "message"), BAD)
def test_bad_audio_is_named(values: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Wav2Vec2Model(config())(values)


def test_bad_masks_are_named() -> None:
    model, values = Wav2Vec2Model(config()).eval(), torch.randn(2, 500)
    with pytest.raises(InputError, match=r"`attention_mask` has the shape \(2, 20\), but `input_values` has \(2, 500\)"):
        model(values, attention_mask=torch.ones(2, 20))
    short = torch.ones(2, 500)
    short[1, 30:] = 0
    with pytest.raises(InputError, match="row 1 of `input_values` has 30 real samples"):
        model(values, short)
    with pytest.raises(InputError, match=r"`mask_time_indices` has the shape \(2, 500\), but must be \(2, 23\)"):
        model(values, mask_time_indices=torch.ones(2, 500))
    with pytest.raises(InputError, match=r"no embedding for masked positions.*mask_time_prob"):
        Wav2Vec2Model(config(mask_time_prob=0.0))(values, mask_time_indices=torch.ones(2, 23))


@pytest.mark.reference
def test_padding_on_the_left_warns_and_equals_the_reference() -> None:
    ours, theirs = pair(FAMILY, Wav2Vec2Model)
    inputs = batch(FAMILY, Wav2Vec2Model)
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    with pytest.warns(TranseptWarning, match="Pad audio on the right"):
        mine = run(ours, **inputs)
    compare(mine, run(theirs, **inputs), SINGLE)


def test_bad_labels_are_named() -> None:
    model, values = Wav2Vec2ForCTC(config()), torch.randn(2, 500)
    with pytest.raises(InputError, match=r"label 32 at \[1, 0\] is not one of the 32 classes"):
        model(values, labels=torch.tensor([[1], [32]]))
    with pytest.raises(InputError, match=r"`labels` has the shape \(2,\), but must be \(2, labels\)"):
        model(values, labels=torch.tensor([1, 3]))
    pretraining = Wav2Vec2ForPreTraining(config())
    with pytest.raises(InputError, match="`sampled_negative_indices` needs `mask_time_indices`"):
        pretraining(values, sampled_negative_indices=torch.zeros(2, 23, 5))
    with pytest.raises(InputError, match=r"negatives .* and mask"):
        pretraining(values, mask_time_indices=torch.ones(2, 23), sampled_negative_indices=torch.zeros(2, 22, 5))
    with pytest.raises(InputError, match="have 5 frames, but speaker embeddings need at least 9"):
        Wav2Vec2ForXVector(config())(torch.randn(1, 45 + 4 * 20))


@pytest.mark.parametrize(
    "cls", [Wav2Vec2ForSequenceClassification, Wav2Vec2ForAudioFrameClassification, Wav2Vec2ForPreTraining]
)
def test_tasks_over_layers_refuse_an_adapter(cls: Any) -> None:
    with pytest.raises(ConfigError, match=f"{cls.__name__} cannot have an adapter.*add_adapter=False"):
        cls(config(add_adapter=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 34}, "multiple of `num_attention_heads`"),
        ({"num_conv_pos_embedding_groups": 5}, "multiple of `num_conv_pos_embedding_groups`"),
        ({"conv_stride": [5]}, "`conv_stride` .* must hold as many positive numbers as `conv_dim`"),
        ({"conv_kernel": [10, 0]}, "`conv_kernel` .* must be at least 1"),
        ({"conv_dim": [], "conv_stride": [], "conv_kernel": []}, "`conv_dim` .* at least one"),
        ({"num_conv_pos_embeddings": 0}, "`num_conv_pos_embeddings` .* must be at least 1"),
        ({"tdnn_dilation": [1]}, "`tdnn_dilation` .* as `tdnn_dim`"),
        ({"feat_extract_norm": "batch"}, "`feat_extract_norm` .* must be Literal"),
        ({"ctc_loss_reduction": "none"}, "`ctc_loss_reduction`"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Wav2Vec2Model(config(**settings))


def test_settings_of_heads_are_checked_by_heads() -> None:
    with pytest.raises(ConfigError, match="Wav2Vec2ForCTC needs `vocab_size`"):
        Wav2Vec2ForCTC(config(vocab_size=None))
    with pytest.raises(ConfigError, match=r"`codevector_dim` \(16\) must be a multiple of `num_codevector_groups` \(3\)"):
        Wav2Vec2ForPreTraining(config(num_codevector_groups=3))
    with pytest.raises(InputError, match="no token embeddings"):
        Wav2Vec2ForCTC(config()).resize_token_embeddings(40)


def test_half_precision_and_copies() -> None:
    model = Wav2Vec2ForCTC(config(**STABLE)).eval().to(torch.bfloat16)
    inputs = batch(FAMILY, Wav2Vec2ForCTC)
    out = run(model, **inputs, **labels(FAMILY, Wav2Vec2ForCTC, inputs))
    assert out.logits.dtype == torch.bfloat16
    assert out.loss.dtype == torch.float32
    twin = copy.deepcopy(model)
    assert twin.backbone.augment.config is twin.config
    assert torch.equal(run(twin, **inputs).logits, out.logits)
