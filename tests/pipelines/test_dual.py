"""Pictures compared with texts, and vectors of pictures and sounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from transept import pipeline
from transept.errors import InputError, InputTypeError, UnsupportedError
from transept.models import clip, siglip
from transept.models.vit import ViTConfig, ViTModel
from transept.pipelines.base import InputsError
from transept.pipelines.draw import draw
from transept.preprocess.image.clip import CLIPImageProcessor
from transept.preprocess.image.siglip import SiglipImageProcessor
from transept.preprocess.image.vit import ViTImageProcessor
from transept.preprocess.processors.clip import CLIPProcessor
from transept.preprocess.processors.siglip import SiglipProcessor
from transept.preprocess.text.classes import CLIPTokenizer

from .media_models import picture

IMAGES = [Image.fromarray(picture(seed, *size)) for seed, size in enumerate(((40, 50), (97, 61), (64, 64), (33, 120)))]
LABELS = ["a cat", "two dogs", "boats at sea"]
ALPHABET = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
VOCAB = {t: i for i, t in enumerate([*ALPHABET, *(f"{c}</w>" for c in ALPHABET), "<|startoftext|>", "<|endoftext|>"])}
TOWER: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
TEXT = TOWER | {"vocab_size": len(VOCAB), "max_position_embeddings": 64, "eos_token_id": VOCAB["<|endoftext|>"]}
VISION = TOWER | {"image_size": 32, "patch_size": 8}


def saved(directory: Path, kind: str) -> Path:
    """A tiny model with its processor, of which texts and pictures differ."""
    torch.manual_seed(0)
    tokenizer = CLIPTokenizer(dict(VOCAB), [])
    if kind == "clip":
        sizes = {"projection_dim": 12, "initializer_factor": 8.0}
        config = clip.CLIPConfig(text_config=TEXT | sizes, vision_config=VISION | sizes, **sizes)
        model: Any = clip.CLIPModel(config)
        processor: Any = CLIPProcessor(CLIPImageProcessor(size=32, crop_size=32), tokenizer)
    else:
        model = siglip.SiglipModel(siglip.SiglipConfig(text_config=TEXT, vision_config=VISION))
        torch.nn.init.constant_(model.logit_scale, 2.0)
        processor = SiglipProcessor(SiglipImageProcessor(size={"height": 32, "width": 32}), tokenizer)
    model.eval().save_pretrained(directory)
    processor.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module", params=["clip", "siglip"])
def model(request, tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def clip_model(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("clip"), "clip")


@pytest.mark.reference
@pytest.mark.parametrize("options", [{}, {"hypothesis_template": "{}"}], ids=str)
def test_scores_equal_the_reference(model, options):
    import transformers

    processor = f"{'CLIP' if model.name[:4] == 'clip' else 'Siglip'}ImageProcessorPil"
    theirs = transformers.pipeline(
        "zero-shot-image-classification",
        model=str(model),
        image_processor=getattr(transformers, processor).from_pretrained(model),
        device="cpu",
    )
    ask = pipeline("zero-shot-image-classification", model)
    for image, found in zip(IMAGES, ask(IMAGES, LABELS, **options), strict=True):
        other = theirs(image, candidate_labels=LABELS, **options)
        assert [each["label"] for each in found] == [each["label"] for each in other]
        assert [each["score"] for each in found] == pytest.approx([each["score"] for each in other], abs=1e-5)
    if model.name.startswith("clip"):
        assert sum(each["score"] for each in found) == pytest.approx(1)


def test_labels_in_all_their_forms(clip_model):
    ask = pipeline("zero-shot-image-classification", clip_model, candidate_labels="a cat, two dogs,boats at sea")
    assert ask(IMAGES[0]) == ask(IMAGES[0], LABELS)
    together = ask(IMAGES)[0]  # sums of a batch round otherwise
    assert [each["score"] for each in ask(IMAGES[0])] == pytest.approx([each["score"] for each in together], abs=1e-5)
    assert ask(IMAGES[0], tokenizer_kwargs={"add_special_tokens": True, "padding": "max_length", "max_length": 40})
    assert draw(IMAGES[0], ask(IMAGES[0])).height > IMAGES[0].height
    assert draw(IMAGES[0].resize((5, 5)), ask(IMAGES[0])).width > 60  # labels are whole
    assert ask(IMAGES[0], candidate_labels=["a cat"])[0]["score"] == 1
    with pytest.raises(InputError, match="`candidate_labels` must be a list of labels"):
        pipeline("zero-shot-image-classification", clip_model)(IMAGES[0])
    with pytest.raises(InputError, match=r"no \{\} for the label"):
        ask(IMAGES[0], hypothesis_template="A photo.")
    with pytest.raises(InputError, match="has no option 'labels'"):
        ask(IMAGES[0], labels=LABELS)
    with pytest.raises(InputError, match="positions"):
        ask(IMAGES[0], candidate_labels=["long" * 30])


def test_what_cannot_be_compared(clip_model, tmp_path):
    ask = pipeline("zero-shot-image-classification", clip_model, candidate_labels=LABELS)
    with pytest.raises(InputsError) as caught:
        ask([IMAGES[0], tmp_path / "nothing.png", np.zeros((4, 4, 0))])
    assert caught.value.positions == [1, 2]
    assert caught.value.answers[0][0]["label"] == ask(IMAGES[0])[0]["label"]
    ViTModel(ViTConfig(**VISION)).save_pretrained(tmp_path)
    ViTImageProcessor(size=32).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="ViTModel has no get_image_features"):
        pipeline("zero-shot-image-classification", tmp_path)
    with pytest.raises(InputTypeError, match="compares images with texts"):
        pipeline("zero-shot-image-classification", ViTModel(ViTConfig(**VISION)), image_processor=1, tokenizer=1)


def test_vectors_of_pictures(model, tmp_path):
    embed = pipeline("image-embedding", model)
    vectors = embed(IMAGES)
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, embed.size)
    np.testing.assert_allclose(vectors[2], embed(IMAGES[2]), atol=1e-5)
    prepared = embed.image_processor(IMAGES[1], return_tensors="pt")
    with torch.no_grad():
        expected = embed.model.get_image_features(**prepared).pooler_output[0]
    np.testing.assert_allclose(vectors[1], expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(embed(IMAGES, normalize=True), axis=1), 1, atol=1e-6)


def test_vectors_by_other_networks(tmp_path):
    ViTModel(ViTConfig(**VISION), add_pooling_layer=False).save_pretrained(tmp_path)
    ViTImageProcessor(size=32).save_pretrained(tmp_path)
    embed = pipeline("image-embedding", tmp_path)
    with torch.no_grad():
        states = embed.model(**embed.image_processor(IMAGES[0], return_tensors="pt")).last_hidden_state
    np.testing.assert_allclose(embed(IMAGES[0]), states[0, 1:].mean(0), atol=1e-5)


def test_vectors_of_sounds():
    from transept.models.wav2vec2 import Wav2Vec2Config, Wav2Vec2Model
    from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 37}
    sizes |= {"conv_dim": [16, 24], "conv_stride": [5, 4], "conv_kernel": [10, 8], "num_conv_pos_embeddings": 16}
    sizes |= {"num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
    net = Wav2Vec2Model(Wav2Vec2Config(**sizes)).eval()
    embed = pipeline("audio-embedding", net, feature_extractor=Wav2Vec2FeatureExtractor(return_attention_mask=True))
    sounds = [(np.sin(np.arange(length) / 9).astype(np.float32), 16000) for length in (4000, 2500)]
    vectors = embed(sounds)
    assert vectors.shape == (2, 32)
    for sound, vector in zip(sounds, vectors, strict=True):
        np.testing.assert_allclose(embed(sound), vector, atol=1e-5)


@pytest.mark.reference
@pytest.mark.parametrize("options", [{}, {"pool": True}], ids=str)
def test_features_of_the_image_network_equal_the_reference(clip_model, tmp_path, options):
    import transformers

    clip.CLIPVisionModel.from_pretrained(clip_model).save_pretrained(tmp_path)
    CLIPImageProcessor(size=32, crop_size=32).save_pretrained(tmp_path)
    loaded = transformers.CLIPImageProcessorPil.from_pretrained(tmp_path)
    theirs = transformers.pipeline("image-feature-extraction", model=str(tmp_path), image_processor=loaded, device="cpu")
    ours = pipeline("image-feature-extraction", tmp_path)
    expected = np.array(theirs(IMAGES[1], **options))  # up to 145: weights are large, so that pictures differ
    np.testing.assert_allclose(ours(IMAGES[1], **options), expected, atol=1e-5 * np.abs(expected).max())


def test_the_task_is_told_from_the_checkpoint(model: Path) -> None:
    assert pipeline(model=model).task == "zero-shot-image-classification"
