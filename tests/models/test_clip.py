"""CLIP and SigLIP beyond the common suite: pictures of other sizes, ends of texts, files of both networks and old ones."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
import transformers

from transept import (
    AutoConfig,
    AutoModel,
    AutoModelForZeroShotImageClassification,
    CLIPConfig,
    CLIPForImageClassification,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    SiglipConfig,
    SiglipModel,
    SiglipTextModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transept.errors import ConfigError, InputError, TranseptWarning, UnsupportedError
from transept.objectives.contrastive import sigmoid_pairs, softmax_pairs

from .families import FAMILIES
from .harness import SINGLE, batch, compare, error, originals, pair

CLIP, SIGLIP = (next(family for family in FAMILIES if family.model_type == name) for name in ("clip", "siglip"))
BOTH = [(CLIP, CLIPModel), (SIGLIP, SiglipModel)]


@pytest.mark.parametrize(("family", "cls"), BOTH)
@pytest.mark.parametrize("size", [(24, 12), (9, 30), (16, 16), (4, 4)])
def test_pictures_of_other_sizes(family, cls, size):
    ours, theirs = pair(family, cls)
    inputs = batch(family, cls) | {"pixel_values": torch.randn(3, 3, *size), "interpolate_pos_encoding": True}
    with torch.no_grad():
        compare(ours(**inputs), theirs(**inputs), SINGLE)
        features = ours.get_image_features(inputs["pixel_values"], True)
        compare(features, theirs.get_image_features(inputs["pixel_values"], True), SINGLE)


@pytest.mark.parametrize(("kind", "config"), [(CLIPVisionModel, CLIPVisionConfig), (SiglipVisionModel, SiglipVisionConfig)])
def test_a_network_for_rectangles(kind, config):
    """The reference takes every table to be square; here rows and columns of the table are those of the pictures."""
    settings = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "patch_size": 4}
    model = kind(config(image_size=[8, 16], **settings)).eval()
    first = model.prefix_tokens
    table = torch.randn(first + 8, 8)
    model.embeddings.position_embedding.weight.data = table
    seen = []
    model.embeddings.positions.register_forward_hook(lambda module, given, positions: seen.append(positions))
    with torch.no_grad():
        assert model(torch.randn(1, 3, 8, 16)).last_hidden_state.shape == (1, first + 8, 8)
        model(torch.randn(1, 3, 12, 8), interpolate_pos_encoding=True)
    assert torch.equal(seen[0][0], table)
    wanted = F.interpolate(table[first:].view(1, 2, 4, 8).permute(0, 3, 1, 2), size=(3, 2), mode="bicubic")
    assert torch.equal(seen[1][0, first:], wanted[0].flatten(1).T)
    assert torch.equal(seen[1][0, :first], table[:first])


def test_where_texts_end():
    model = CLIPTextModel(CLIPTextConfig(**CLIP.tiny["text_config"])).eval()
    ids = torch.tensor([[5, 98, 98, 98], [5, 6, 7, 98]])
    with torch.no_grad():
        output = model(ids)
    assert torch.equal(output.pooler_output, output.last_hidden_state[[0, 1], [1, 3]])
    with pytest.warns(TranseptWarning, match=r"row 1 of `input_ids` has no end token \(98\)"):
        assert model.ends(torch.tensor([[5, 98], [5, 6]])).tolist() == [1, 0]
    # The first files name 2 as the end, where it is the largest id.
    assert (
        CLIPTextModel(CLIPTextConfig(**CLIP.tiny["text_config"] | {"eos_token_id": 2})).ends(torch.tensor([[7, 2, 9, 9]])) == 2
    )
    with pytest.raises(InputError, match="17 positions"):
        model(torch.full((1, 17), 98))


@pytest.mark.parametrize(
    ("family", "whole", "parts"), [(*BOTH[0], (CLIPTextModel, CLIPVisionModel, CLIPForImageClassification))]
)
def test_one_network_of_a_file_of_both(family, whole, parts, tmp_path):
    ours, theirs, _ = originals(family, whole)
    theirs.save_pretrained(tmp_path)
    for cls in parts[:2]:
        alone = cls.from_pretrained(tmp_path)
        found = getattr(ours, f"{'text' if cls is CLIPTextModel else 'vision'}_model").state_dict()
        assert all(torch.equal(tensor, found[name]) for name, tensor in alone.state_dict().items())
        assert not alone.load_report.missing
    with pytest.warns(TranseptWarning, match="newly initialised"):
        classifier = parts[2].from_pretrained(tmp_path)
    assert torch.equal(classifier.backbone.embeddings.class_embedding, ours.vision_model.embeddings.class_embedding)
    assert isinstance(AutoModel.from_pretrained(tmp_path), whole)


def test_parts_are_model_types(tmp_path):
    for cls in (CLIPTextModel, CLIPVisionModel, SiglipTextModel, SiglipVisionModel):
        family = CLIP if cls.__name__.startswith("CLIP") else SIGLIP
        model, _, _ = originals(family, cls)
        model.save_pretrained(tmp_path / cls.__name__)
        assert type(AutoModel.from_pretrained(tmp_path / cls.__name__)) is cls
        assert type(AutoConfig.for_model(model.config.model_type)) is cls.config_class
    model = AutoModelForZeroShotImageClassification.from_config(CLIPConfig(**CLIP.tiny))
    assert type(model) is CLIPModel
    with pytest.raises(UnsupportedError, match=r"CLIPTextModel has no get_image_features\(\)"):
        AutoModelForZeroShotImageClassification.from_config(CLIPTextConfig())


def test_old_files_of_settings(tmp_path):
    """OpenAI's files have each section twice."""
    old = {
        "model_type": "clip",
        "text_config": {"hidden_size": 16, "num_attention_heads": 2},
        "text_config_dict": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2},
        "vision_config": None,
        "vision_config_dict": {"image_size": 32},
    }
    (tmp_path / "config.json").write_text(json.dumps(old))
    ours, theirs = CLIPConfig.from_pretrained(tmp_path), transformers.CLIPConfig.from_pretrained(tmp_path)
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert getattr(ours.text_config, name) == getattr(theirs.text_config, name)
    assert ours.vision_config.image_size == theirs.vision_config.image_size == 32
    assert "text_config_dict" not in ours.to_dict()
    text = CLIPTextConfig.from_pretrained(tmp_path)
    assert (text.hidden_size, text.num_hidden_layers) == (32, 3)
    assert transformers.CLIPConfig.from_dict(ours.to_dict()).text_config.num_hidden_layers == 3
    with pytest.raises(ConfigError, match="`text_config` of CLIPConfig must be a config"):
        CLIPConfig(text_config=5)
    with pytest.raises(ConfigError, match="must be a CLIPTextConfig, but is a CLIPVisionConfig"):
        CLIPConfig(text_config=CLIPVisionConfig())
    with pytest.raises(ConfigError, match="holds a model of type 'bert'"):
        CLIPTextConfig.from_dict({"model_type": "bert"})
    with pytest.raises(ConfigError, match="projection_size"):
        SiglipModel(SiglipConfig(text_config={"projection_size": 5}))


def test_losses_over_pairs():
    logits = torch.randn(4, 4, dtype=torch.float64)
    right = logits.softmax(1).diag().log().mean() + logits.softmax(0).diag().log().mean()
    assert error(softmax_pairs(logits).mean, -right / 2) < 1e-12
    likely = torch.where(torch.eye(4).bool(), logits.sigmoid(), 1 - logits.sigmoid())
    assert error(sigmoid_pairs(logits).mean, -likely.log().sum() / 4) < 1e-12
    assert not softmax_pairs(logits).additive
    ours, _ = pair(CLIP, CLIPModel)
    inputs = batch(CLIP, CLIPModel)
    with pytest.raises(InputError, match="as many texts as images, but there are 3 and 2"):
        ours(**inputs | {"pixel_values": inputs["pixel_values"][:2]}, return_loss=True)
    assert len(ours(**inputs, return_loss=True, return_dict=False)) == 7


@pytest.mark.parametrize(
    ("pixels", "wrong"),
    [
        (torch.zeros(1, 3, 1, 1), "images of 1 x 1 pixels"),
        (torch.zeros(1, 1, 16, 16), "has 1 channels, but the model takes 3"),
        (torch.full((1, 3, 16, 16), torch.nan), "holds nan"),
        (torch.zeros(1, 3, 2, 4000), "hold no patch"),
    ],
)
def test_pictures_that_do_not_fit(pixels, wrong):
    ours, _ = pair(CLIP, CLIPModel)
    with pytest.raises(InputError, match=wrong):
        ours.get_image_features(pixels, "no patch" in wrong)


@pytest.mark.parametrize(("family", "cls"), BOTH)
def test_new_weights_are_as_wide_as_the_reference_makes_them(family, cls):
    wide = {"hidden_size": 64, "intermediate_size": 96}
    settings = family.tiny | {part: family.tiny[part] | wide for part in ("text_config", "vision_config")}
    torch.manual_seed(0)
    ours = cls(cls.config_class(**settings))
    theirs = getattr(transformers, cls.__name__)
    theirs = theirs(theirs.config_class(**settings)).state_dict()
    stored = ours.checkpoint_names().keys.save(ours.state_dict())
    assert stored.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if tensor.numel() > 500:
            assert stored[name].std() == pytest.approx(float(tensor.std()), rel=0.12), name
        elif tensor.numel() == 1 or "norm" in name:
            assert torch.equal(stored[name], tensor), name
