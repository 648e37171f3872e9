"""Processors: options to the parts, placeholders, chats with pictures, files."""

from __future__ import annotations

import base64
import copy
import io
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from PIL import Image
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from transept.config.fields import Count
from transept.errors import ConfigError, FileError, FormatError, InputError, InputTypeError, UnsupportedError
from transept.preprocess.image.vit import ViTImageProcessor
from transept.preprocess.processor import LabelProcessor, Processor
from transept.preprocess.text.tokenizer import Tokenizer

WORDS = ["[PAD]", "[UNK]", "<s>", "<image>", "user:", "answer:", "a", "b", "c", "what", "is"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}answer:{% endif %}"
)


class Pictured(Processor):
    """Each picture is so many tokens."""

    parts = {"image_processor": (), "tokenizer": ()}

    image_token: str = "<image>"
    features: Count = 3

    def replacements(self, kind, inputs, options):
        return [f"{self.image_token} " * self.features] * len(inputs["pixel_values"])


class Labelled(LabelProcessor):
    parts = {"image_processor": ("ViTImageProcessor",), "tokenizer": ()}
    defaults = {"text": {"padding": True}}


@pytest.fixture
def tokenizer():
    backend = tokenizers.Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", bos_token="<s>")


@pytest.fixture
def ours(tokenizer):
    return Pictured(ViTImageProcessor(size=4), tokenizer, chat_template=TEMPLATE)


def picture(level=0):
    return Image.new("RGB", (5, 6), (level, level, level))


IMAGE = WORDS.index("<image>")


def test_every_option_goes_to_the_part_that_knows_it(ours):
    found = ours(
        [picture(), picture(9)],
        ["a <image> b", "<image>"],
        padding=True,
        do_resize=False,
        return_tensors="np",
        text_kwargs={"padding_side": "left"},
        images_kwargs={"do_rescale": False},
        common_kwargs={"return_tensors": "pt", "padding": False},
    )
    assert list(found) == ["input_ids", "attention_mask", "pixel_values"]
    assert found.pixel_values.shape == (2, 3, 6, 5)
    assert found.pixel_values[1, 0, 0, 0] == 17  # (9 - 0.5) / 0.5
    assert found.input_ids.tolist() == [[6, IMAGE, IMAGE, IMAGE, 7], [0, 0, IMAGE, IMAGE, IMAGE]]
    assert ours.model_input_names == ["pixel_values", "input_ids", "attention_mask"]
    assert list(ours(images=picture())) == ["pixel_values"]
    assert ours(text="a").input_ids == [[6]]
    assert ours.batch_decode([[6, 7]]) == [ours.decode([6, 7])] == ["a b"]
    assert ours.post_process_image_text_to_text(np.array([[2, 6]])) == ["a"]


def test_options_and_inputs_that_nobody_knows(ours, tokenizer):
    for options, wrong in (
        ({"do_resise": True}, r"Pictured has no option 'do_resise'. Did you mean 'do_resize'"),
        ({"text_kwargs": {"paddingx": True}}, r"text_kwargs has no option 'paddingx'. Did you mean 'padding'"),
        ({"common_kwargs": {"return_tensor": "pt"}}, "no option 'return_tensor'"),
        ({"images_kwargs": [1]}, "images_kwargs is"),
    ):
        with pytest.raises((InputError, InputTypeError), match=wrong):
            ours(text="a", **options)
    with pytest.raises(InputError, match="neither images nor text was passed"):
        ours()
    with pytest.raises(InputError, match="Pictured takes no audio, but images and text"):
        ours(audio=np.zeros(5))
    with pytest.raises(InputTypeError, match="BaseImageProcessor is needed, but Tokenizer was passed"):
        Pictured(tokenizer, ours.image_processor)
    with pytest.raises(InputTypeError, match=r"Tokenizer is needed, but nothing was passed. It is the tokenizer of Pictured"):
        Pictured(ours.image_processor)
    with pytest.raises(InputError, match="has no setting 'featuresx'. Did you mean 'features'"):
        Pictured(ours.image_processor, tokenizer, featuresx=2)
    with pytest.raises(ConfigError, match="`features`"):
        Pictured(ours.image_processor, tokenizer, features=0)
    with pytest.raises(InputError, match="two values for 'tokenizer'"):
        Pictured(ours.image_processor, tokenizer, tokenizer=tokenizer)
    with pytest.raises(InputError, match="but got 3 values"):
        Pictured(ours.image_processor, tokenizer, 5)
    with pytest.raises(InputTypeError, match="ViTImageProcessor is needed"):
        Labelled("a", tokenizer)


# Placeholders


def test_placeholders_become_one_token_a_feature(ours):
    two = ours([[picture(), picture()], []], ["<image> a <image>", "b"], padding=True, return_mm_token_type_ids=True)
    assert two.input_ids == [[IMAGE] * 3 + [6] + [IMAGE] * 3, [7] + [0] * 6]
    assert two.mm_token_type_ids == [[1, 1, 1, 0, 1, 1, 1], [0] * 7]
    types = ours(picture(), "a <image>", return_mm_token_type_ids=True, return_tensors="pt")["mm_token_type_ids"]
    assert types.tolist() == [[0, 1, 1, 1]]


@pytest.mark.parametrize(
    ("texts", "images", "wrong"),
    [
        ("<image> a <image>", 1, r"row 0 of the texts has 2 placeholders '<image>', but there is 1 image\."),
        ("a", 1, r"row 0 of the texts has 0 placeholders '<image>', but there is 1 image\."),
        ("<image>", None, r"row 0 of the texts has 1 placeholder '<image>', but there are 0 images"),
        (
            ["<image>", "<image> <image>"],
            2,
            r"row 1 of the texts has 2 placeholders '<image>', but there is 1 image left for it",
        ),
        (["<image>", "<image>"], 4, r"row 1 of the texts has 1 placeholder '<image>', but there are 3 images left for it"),
        (["<image>", "<image>"], [2, 0], r"row 0 of the texts has 1 placeholder '<image>', but there are 2 images\."),
        (["<image>", "<image>"], [1, 0], r"row 1 of the texts has 1 placeholder '<image>', but there are 0 images\."),
    ],
)
def test_other_numbers_of_placeholders_than_of_pictures(ours, texts, images, wrong):
    if isinstance(images, list):
        images = [[picture() for _ in range(count)] for count in images]
    elif images is not None:
        images = [picture() for _ in range(images)]
    with pytest.raises(InputError, match=wrong):
        ours(images, texts)


def test_truncation_cuts_no_placeholder(ours):
    assert ours(picture(), "<image> a b c", truncation=True, max_length=4).input_ids == [[IMAGE] * 3 + [6]]
    with pytest.raises(InputError, match=r"row 1 has a prompt of 6 tokens, 3 of them placeholders '<image>'.* would leave 1"):
        ours([picture()], ["a b c", "a b c <image>"], truncation=True, max_length=4, padding="max_length", return_tensors="pt")
    with pytest.raises(InputTypeError, match="must be a text or a list of texts"):
        ours(text=[["a"]])


def test_a_class_that_does_not_say_what_its_placeholders_become(ours, tokenizer):
    class Silent(Pictured):
        replacements = Processor.replacements

    with pytest.raises(UnsupportedError, match="Silent does not say"):
        Silent(ours.image_processor, tokenizer)(picture(), "<image>")


def test_texts_beside_pictures_are_labels(tokenizer):
    made = Labelled(ViTImageProcessor(size=4), tokenizer)
    both = made([picture(), picture()], ["a b", "c"])
    assert list(both) == made.model_input_names == ["pixel_values", "labels"]
    assert both.labels == [[6, 7], [8, 0]]
    assert list(made(text=["a"])) == ["input_ids", "attention_mask"]


# Chats


def test_chats_with_pictures(ours, tmp_path):
    picture(50).save(tmp_path / "a.png")
    data = base64.b64encode((tmp_path / "a.png").read_bytes()).decode()

    def chat(**part):
        return [{"role": "user", "content": [{"type": "image", **part}, {"type": "text", "text": "what is a"}]}]

    inputs = {"tokenize": True, "return_dict": True, "return_tensors": "np", "add_generation_prompt": True}
    expected = ours(picture(50), "user: <image> what is a answer:", return_tensors="np")
    for part in (
        {"image": picture(50)},
        {"path": str(tmp_path / "a.png")},
        {"url": f"data:image/png;base64,{data}"},
        {"base64": data},
        {"image": np.full((6, 5, 3), 50, np.uint8)},
    ):
        messages = chat(**part)
        before = [{key: messages[0]["content"][0][key] for key in messages[0]["content"][0]}]
        found = ours.apply_chat_template(messages, **inputs)
        assert all((found[name] == expected[name]).all() for name in expected)
        assert messages[0]["content"][0] is not before
        assert messages[0]["content"][0].keys() == before[0].keys()
    address = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    messages = [{"role": "user", "content": [address, {"type": "text", "text": "what is a"}]}]
    assert (ours.apply_chat_template(messages, **inputs).pixel_values == expected.pixel_values).all()
    assert ours.apply_chat_template(chat(image=picture())) == "user: <image> what is a "
    assert ours.apply_chat_template(chat(image=picture()), tokenize=True)[0][:2] == [4, IMAGE]
    batch = [chat(image=picture()), [{"role": "user", "content": [{"type": "text", "text": "b"}]}]]
    found = ours.apply_chat_template(batch, tokenize=True, return_dict=True, padding=True, do_resize=False)
    assert np.shape(found.input_ids) == (2, 7)
    assert np.shape(found.pixel_values) == (1, 3, 6, 5)
    beside = ours.apply_chat_template(chat(), images=[picture(50)], **inputs)
    assert (beside.pixel_values == expected.pixel_values).all()


def test_chats_whose_pictures_cannot_be_used(ours, tmp_path):
    def ask(*parts, **options):
        chat = [{"role": "user", "content": list(parts)}]
        return ours.apply_chat_template(chat, tokenize=True, return_dict=True, **options)

    with pytest.raises(FileError, match=r"nothing\.png"):
        ask({"type": "image", "path": str(tmp_path / "nothing.png")})
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(FormatError, match="image 1 of the batch.*corrupt"):
        ask({"type": "image", "image": picture()}, {"type": "image", "image": str(tmp_path / "bad.png")})
    with pytest.raises(InputError, match="is a URL"):
        ask({"type": "image", "url": "https://example.org/a.png"})
    with pytest.raises(InputError, match="message 0 of chat 0 has 5 under 'path'"):
        ask({"type": "image", "path": 5})
    with pytest.raises(InputError, match="1 placeholder '<image>', but there are 0 images"):
        ask({"type": "image"})
    with pytest.raises(InputTypeError, match="the conversation is .hello. .str., but must be a list of messages"):
        ours.apply_chat_template("hello")
    with pytest.raises(UnsupportedError, match="tokenizer"):
        ask(return_assistant_tokens_mask=True)


# Files


@pytest.mark.parametrize("legacy", [False, True])
def test_files_in_both_layouts(ours, tmp_path, legacy):
    ours.features = 2
    names = {path.rpartition("/")[2] for path in ours.save_pretrained(tmp_path, legacy_format=legacy)}
    assert ("preprocessor_config.json" in names) == legacy
    assert "chat_template.jinja" in names
    values = json.loads((tmp_path / "processor_config.json").read_text())
    assert values["processor_class"] == "Pictured"
    assert values["features"] == 2
    loaded = Pictured.from_pretrained(tmp_path, do_resize=False, padding_side="left", image_token="[UNK]")
    assert loaded.features == 2
    assert loaded.image_token == "[UNK]"
    assert not loaded.image_processor.do_resize
    assert loaded.tokenizer.padding_side == "left"
    assert loaded.chat_template == TEMPLATE
    assert Pictured.from_pretrained(tmp_path) == ours
    ours.save_pretrained(tmp_path, legacy_format=not legacy)
    assert (tmp_path / "preprocessor_config.json").exists() != legacy
    with pytest.raises(InputError, match="no setting 'do_resise'"):
        Pictured.from_pretrained(tmp_path, do_resise=False)


def test_a_processor_without_a_tokenizer(tmp_path):
    class Seeing(Processor):
        parts = {"image_processor": ()}

    Seeing(ViTImageProcessor(size=4)).save_pretrained(tmp_path)
    loaded = Seeing.from_pretrained(tmp_path, do_resize=False, use_fast=True, backend="pil")
    assert list(loaded(picture())) == ["pixel_values"]
    assert not loaded.image_processor.do_resize
    with pytest.raises(InputError, match="Seeing has no setting 'do_resise'"):
        Seeing.from_pretrained(tmp_path, do_resise=True)
    with pytest.raises(InputError, match="Seeing takes no text, but images"):
        loaded(text="a")


def test_older_files_of_templates(ours, tmp_path):
    ours.chat_template = None
    ours.save_pretrained(tmp_path)
    assert Pictured.from_pretrained(tmp_path).chat_template is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert Pictured.from_pretrained(tmp_path).chat_template == "older"
    assert Pictured.from_pretrained(tmp_path, chat_template="mine").chat_template == "mine"
    (tmp_path / "chat_template.json").write_text('{"chat_template": 5}')
    with pytest.raises(FormatError, match="must hold a text under 'chat_template'"):
        Pictured.from_pretrained(tmp_path)
    values = json.loads((tmp_path / "processor_config.json").read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps(values | {"features": "many"}))
    (tmp_path / "chat_template.json").unlink()
    with pytest.raises(ConfigError, match="`features`"):
        Pictured.from_pretrained(tmp_path)


def test_copies_and_the_tokenizers_template(ours):
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert twin == ours
        assert twin(picture(), "<image>").input_ids == ours(picture(), "<image>").input_ids
    ours.chat_template = None
    ours.tokenizer.chat_template = TEMPLATE
    assert ours.chat_template == TEMPLATE
    assert "ViTImageProcessor" in repr(ours)


def test_no_torch_and_no_compiled_library_is_imported():
    script = "import sys; import transept.preprocess.processor, transept.preprocess.auto;"
    script += "print([name for name in ('torch', 'tokenizers', 'PIL') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_pictures_as_bytes(ours):
    content = io.BytesIO()
    picture(7).save(content, "PNG")
    assert np.array_equal(ours(content.getvalue()).pixel_values, ours(picture(7)).pixel_values)
