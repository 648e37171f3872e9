"""The task `image-text-to-text`: equal to the reference's pipeline, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

from tests.models.families import FAMILIES
from tests.preprocess.image.test_pictures_as_tokens import LLAVA, SPECIAL, TEMPLATE, WORDS, backend, drawn, made
from transept.errors import InputError, InputTypeError
from transept.models.llava import LlavaForConditionalGeneration
from transept.models.qwen2_vl import Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transept.pipelines import pipeline

pytestmark = pytest.mark.reference

TINY = {each.model_type: each.tiny for each in FAMILIES}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    torch.manual_seed(0)
    settings = TINY["llava"] | {"image_token_index": WORDS.index("<image>")}
    settings |= {"text_config": settings["text_config"] | {"vocab_size": len(WORDS)}}
    model = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(**settings)).eval()
    model.generation_config.eos_token_id = None
    directory: Path = tmp_path_factory.mktemp("llava")
    model.save_pretrained(directory)
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=backend(), **SPECIAL)
    pictures = LlavaImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    template = TEMPLATE.replace("IMAGE", "<image>")
    processor = transformers.LlavaProcessor(pictures, words, **LLAVA | {"patch_size": 4}, chat_template=template)
    processor.save_pretrained(directory)
    ours = pipeline(model=str(directory), max_new_tokens=7)  # the task is told
    assert isinstance(ours.model, LlavaForConditionalGeneration)
    return ours, transformers.pipeline("image-text-to-text", model=model, processor=processor)


CHAT = [{"role": "user", "content": [{"type": "image", "image": drawn(40, 30)}, {"type": "text", "text": "ab"}]}]
BEGUN = [*CHAT, {"role": "assistant", "content": [{"type": "text", "text": "c"}]}]
ONE = drawn(20, 30, 1)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "text and image": ((ONE, "u: <image>ab"), {}),
    "only what is new": ((ONE, "u: <image>ab"), {"return_full_text": False}),
    "text alone": ((), {"text": "abc"}),
    "two images": (([ONE, drawn(9, 9)], "<image>a<image>"), {}),
    "several texts": (([ONE, drawn(9, 9)], ["<image>a", "bb<image>c"]), {}),
    "chat": ((CHAT,), {}),
    "chat by name": ((), {"text": CHAT}),
    "chats": (([CHAT, BEGUN],), {}),
    "a begun answer": ((BEGUN,), {}),
    "not gone on": ((CHAT,), {"continue_final_message": False}),
    "gone on": ((CHAT,), {"continue_final_message": True, "return_full_text": False}),
    "beams": ((ONE, "<image>a"), {"generate_kwargs": {"num_beams": 2}}),
    "mapping": (({"images": ONE, "text": "<image>"},), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_equals_the_references_pipeline(name: str, both: tuple[Any, Any]) -> None:
    ours, theirs = both
    inputs, options = CALLS[name]
    options = options | ({} if "generate_kwargs" in options else {"max_new_tokens": 7})
    if "generate_kwargs" in options:
        options = {"generate_kwargs": options["generate_kwargs"] | {"max_new_tokens": 7}}
    assert ours(*inputs, **options) == theirs(*inputs, **options)


def test_ids_in_the_place_of_text(both: tuple[Any, Any]) -> None:
    ours = both[0]
    (mine,), (other,) = (each(ONE, "<image>a", return_tensors=True, max_new_tokens=5) for each in both)
    assert mine["generated_token_ids"] == other["generated_token_ids"].tolist()
    several = ours(ONE, "<image>a", num_return_sequences=3, do_sample=True, seed=1)
    assert len(several) == 3
    assert ours.with_options({"stop_sequence": "b"}).generation["stop_strings"] == "b"


def test_pictures_of_any_size_share_a_batch() -> None:
    torch.manual_seed(0)
    processor = made("qwen2_vl")
    tokens = {"image_token_id": processor.image_token_id, "video_token_id": processor.video_token_id}
    settings = TINY["qwen2_vl"] | tokens
    settings |= {"vision_config": settings["vision_config"] | {"patch_size": 14}}
    settings |= {"text_config": settings["text_config"] | {"vocab_size": len(WORDS)}}
    model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(**settings)).eval()
    ours = pipeline("image-text-to-text", model=model, processor=processor, max_new_tokens=6, eos_token_id=None)
    image = processor.image_token
    inputs = [{"images": drawn(60, 90), "text": f"u:{image}a"}, {"images": [ONE, drawn(99, 40)], "text": f"{image}b{image}"}]
    alone = [ours(one) for one in inputs]
    assert ours(inputs, batch_size=2) == alone
    assert ours(inputs, batch_size=1) == alone
    clip = [{"role": "user", "content": [{"type": "video", "video": np.zeros((4, 30, 40, 3), np.uint8)}]}]
    assert ours(clip)[0]["generated_text"][-1]["role"] == "assistant"


BAD: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((ONE,), {}, "there is no text"),
    ((ONE, "ab"), {}, "0 placeholders '<image>', but there is 1 image"),
    (([ONE, ONE, ONE], ["<image>", "a"]), {}, "1 placeholders, but there are 3 pictures"),
    ((ONE,), {"text": CHAT}, "beside a chat"),
    (("missing.png", "<image>"), {}, "missing.png"),
    (([{"role": "user", "content": [{"type": "image", "image": "missing.png"}]}],), {}, "missing.png"),
    ((ONE, "<image>"), {"max_new_tokens": 3, "generate_kwargs": {"max_new_tokens": 3}}, "'max_new_tokens' was passed twice"),
    ((ONE, "<image>"), {"return_tensors": True, "return_full_text": True}, "exclude each other"),
    (({"images": ONE},), {}, "must have a `text`"),
    ((ONE, "<image>"), {"colour": 1}, "no option 'colour'"),
]


@pytest.mark.parametrize(("inputs", "options", "message"), BAD, ids=[message for *_, message in BAD])
def test_what_cannot_be_answered(inputs: Any, options: dict[str, Any], message: str, both: tuple[Any, Any]) -> None:
    with pytest.raises((InputError, InputTypeError, OSError), match=message):
        both[0](*inputs, **options)


def test_a_broken_picture_does_not_fail_the_others(both: tuple[Any, Any]) -> None:
    ours = both[0]
    inputs = [{"images": Image.new("RGB", (8, 8)), "text": "<image>"}, {"images": "missing.png", "text": "<image>"}]
    first, second = ours(inputs, on_error="return")
    assert first[0]["generated_text"].startswith("<image>")
    assert isinstance(second, OSError)
    with pytest.raises(InputTypeError, match="needs a processor"):
        pipeline("image-text-to-text", model=ours.model, processor=ours.processor.tokenizer)
