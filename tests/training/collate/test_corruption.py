"""Spans and noise for encoder–decoders, pairs, patches and sounds: their definitions, and statistics within 5 sigma."""

from __future__ import annotations

import math
from itertools import chain, groupby, permutations
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.collate.texts import SENTINELS, SYLLABLES, both, restoring, texts
from transept.errors import InputError
from transept.training.collate.language import DataCollatorForNextSentencePrediction
from transept.training.collate.media import (
    DataCollatorForAudio,
    DataCollatorForObjectDetection,
    DataCollatorForPatchMasking,
    DataCollatorForWav2Vec2Pretraining,
    block_mask,
    random_mask,
)
from transept.training.collate.padding import DataCollatorForPairs
from transept.training.collate.spans import DataCollatorForDenoising, DataCollatorForSpanCorruption, random_parts

TOKENS = restoring()
SENTINEL_IDS = [TOKENS.get_vocab()[each] for each in SENTINELS]
FIRST = TOKENS.get_vocab()["."] + 1  # ids from here on are syllables
MASK, END = TOKENS.mask_token_id, TOKENS.eos_token_id


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows_of(*lengths: int) -> list[dict[str, Any]]:
    return [
        {"input_ids": [FIRST + (start + n) % len(SYLLABLES) for n in range(length)]} for start, length in enumerate(lengths)
    ]


# --- span corruption --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 2.0), (0.15, 1.0), (0.9, 30.0)])
def test_span_corruption_by_definition(density: float, mean: float) -> None:
    lengths = [2, 3, 7, 20, 60]
    rows = rows_of(*lengths)
    collator = DataCollatorForSpanCorruption(TOKENS, density, mean, generator=seeded())
    for _ in range(20):
        batch = collator([{"input_ids": [*row["input_ids"], END]} for row in rows])  # its end is dropped, and put back once
        for number, (row, length) in enumerate(zip(rows, lengths)):
            lost = min(max(round(length * density), 1), length - 1)
            spans = min(max(round(lost / mean), 1), length - lost)
            read = batch["input_ids"][number][batch["attention_mask"][number] == 1].tolist()
            written = batch["labels"][number][batch["labels"][number] != -100].tolist()
            assert read[-1] == written[-1] == END
            assert len(read) == length - lost + spans + 1
            assert len(written) == lost + spans + 1
            assert [index for index in read if index in SENTINEL_IDS] == SENTINEL_IDS[:spans]
            pieces: dict[int, list[int]] = {}
            for index in written[:-1]:
                if index in SENTINEL_IDS:
                    pieces[index] = []
                else:
                    pieces[next(reversed(pieces))].append(index)
            assert all(pieces.values())
            restored = [token for index in read[:-1] for token in pieces.get(index, [index])]
            assert restored == row["input_ids"]
            assert read[0] not in SENTINEL_IDS


def test_parts_are_alike_likely() -> None:
    """All ways to split 6 into 3 parts of at least one: ten, each a tenth within 5 sigma."""
    generator, counts = seeded(), {}
    for _ in range(4000):
        parts = tuple(random_parts(6, 3, generator))
        counts[parts] = counts.get(parts, 0) + 1
    assert len(counts) == 10
    assert all(abs(count - 400) < 5 * math.sqrt(4000 * 0.09) for count in counts.values())
    assert all(sum(parts) == 6 for parts in counts)


def test_span_corruption_refuses() -> None:
    for options, message in (
        ({"noise_density": 1.0}, "between 0 and 1, but is 1.0"),
        ({"mean_noise_span_length": 0.5}, "at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            DataCollatorForSpanCorruption(TOKENS, **options)
    with pytest.raises(InputError, match="needs an end token"):
        DataCollatorForSpanCorruption(both()[0])
    ended = both()[0]
    ended.eos_token = "[SEP]"
    with pytest.raises(InputError, match="the vocabulary has no sentinels <extra_id_0>"):
        DataCollatorForSpanCorruption(ended)
    collator = DataCollatorForSpanCorruption(TOKENS, 0.5, 1.0)
    with pytest.raises(InputError, match="row 1 of 100 tokens needs 50 sentinels, but the vocabulary has 30"):
        collator(rows_of(5, 100))
    with pytest.raises(InputError, match="row 1 has 1 tokens"):
        collator(rows_of(5, 1))


# --- denoising --------------------------------------------------------------------------------------------------------------


def test_spans_become_one_mask_each() -> None:
    """The share is exact, the order stays, and mean length and insertions are those of Poisson(3), within 5 sigma."""
    length, rounds = 200, 200
    collator = DataCollatorForDenoising(TOKENS, permute_sentences=False, generator=seeded())
    ids = [FIRST + n % 59 for n in range(length)]
    lengths: list[int] = []
    for _ in range(rounds):
        lengths += collator._lengths(60)[:-1]  # the last is cut
        noisy = collator.corrupt([0, *ids, END])
        assert (noisy[0], noisy[-1]) == (0, END)
        kept = [index for index in noisy[1:-1] if index != MASK]
        assert len(kept) == length - 60
        place = iter(ids)
        assert all(index in place for index in kept)
    sample = np.array(lengths)
    assert abs(sample.mean() - 3) < 5 * math.sqrt(3 / len(sample)) + 0.1  # those that reach the end are a little longer
    assert abs((sample == 0).mean() - math.exp(-3)) < 5 * math.sqrt(math.exp(-3) / len(sample)) + 0.01


def test_masks_do_not_touch_where_no_span_is_empty() -> None:
    collator = DataCollatorForDenoising(TOKENS, permute_sentences=False, generator=seeded())
    collator._lengths = lambda total: [3, 2, 4, 1]  # type: ignore[method-assign]
    for _ in range(50):
        noisy = collator.corrupt([FIRST + n for n in range(30)])
        assert noisy.count(MASK) == 4
        assert max(len(list(run)) for index, run in groupby(noisy) if index == MASK) == 1
    collator._lengths = lambda total: [3, 0, 0]  # type: ignore[method-assign]
    assert collator.corrupt([FIRST, FIRST + 1, FIRST + 2]).count(MASK) == 3


def test_sentences_change_places() -> None:
    dot = TOKENS.get_vocab()["."]
    first, second, third = [FIRST, FIRST + 1, dot], [FIRST + 2, dot], [FIRST + 3, FIRST + 4]
    collator = DataCollatorForDenoising(TOKENS, mask_ratio=0, generator=seeded())
    seen = set()
    for _ in range(300):
        noisy = collator.corrupt([*first, *second, *third, END])
        assert noisy[-1] == END
        seen.add(tuple(noisy[:-1]))
    sums = {tuple(chain.from_iterable(order)) for order in permutations((first, second, third))}
    assert seen == sums


def test_deleting_and_turning() -> None:
    ids = [FIRST + n for n in range(50)]
    deleting = DataCollatorForDenoising(TOKENS, 0, permute_sentences=False, delete_ratio=0.2, generator=seeded())
    left = [len(deleting.corrupt(ids)) for _ in range(200)]
    assert abs(sum(left) / 200 - 40) < 5 * math.sqrt(50 * 0.16 / 200)
    turning = DataCollatorForDenoising(TOKENS, 0, permute_sentences=False, rotate_ratio=1.0, generator=seeded())
    found = {turning.corrupt(ids)[0] for _ in range(400)}
    assert len(found) > 40
    noisy = turning.corrupt(ids)
    at = noisy.index(FIRST)
    assert noisy[at:] + noisy[:at] == ids


def test_denoising_batches_and_errors() -> None:
    batch = DataCollatorForDenoising(TOKENS, pad_to_multiple_of=8)(rows_of(9, 30))
    assert batch["labels"].shape == (2, 30)
    assert batch["input_ids"].shape[1] % 8 == 0
    assert batch["labels"][0, 9:].eq(-100).all()
    with pytest.raises(InputError, match="row 1 has no tokens but special ones"):
        DataCollatorForDenoising(TOKENS)([{"input_ids": [FIRST]}, {"input_ids": [END]}])
    for options, message in (
        ({"mask_ratio": 1.1}, "`mask_ratio` must be from 0 to 1"),
        ({"poisson_lambda": 0}, "`poisson_lambda` must be above 0"),
    ):
        with pytest.raises(InputError, match=message):
            DataCollatorForDenoising(TOKENS, **options)
    with pytest.raises(InputError, match="no mask token"):
        DataCollatorForDenoising(both(mask=False)[0])


# --- pairs ------------------------------------------------------------------------------------------------------------------


def test_pairs_and_triplets() -> None:
    tokenizer = both()[0]
    a, b, c, d = texts(4)
    rows = [
        {"anchor": a, "positive": b, "negative": dict(tokenizer(c)), "score": 0.5},
        {"anchor": b, "positive": c, "negative": dict(tokenizer(d)), "score": 1},
    ]
    batch = DataCollatorForPairs(tokenizer, max_length=6)(rows)
    assert batch["labels"].tolist() == [0.5, 1.0]
    for name, pair in (("anchor", [a, b]), ("positive", [b, c])):
        expected = tokenizer(pair, padding=True, truncation=True, max_length=6, return_tensors="pt")
        assert torch.equal(batch[f"{name}_input_ids"], expected["input_ids"])
        assert torch.equal(batch[f"{name}_attention_mask"], expected["attention_mask"])
    assert torch.equal(batch["negative_input_ids"], tokenizer([c, d], padding=True, return_tensors="pt")["input_ids"])
    for rows, message in (
        ([{"anchor": a, "label": 1}], "row 0 has 1 texts, but pairs need two"),
        ([{"a": a, "b": b}, {"a": a, "b": 3}], "row 1: `b` must be a text or its encoding, but is '3'"),
    ):
        with pytest.raises(InputError, match=message):
            DataCollatorForPairs(tokenizer)(rows)


def test_half_of_the_texts_follow() -> None:
    tokenizer = both()[0]
    rows = [
        {"first": f"ba {SYLLABLES[n % 60]}", "second": f"be {SYLLABLES[(n + 1) % 60]}", "document": n // 5} for n in range(60)
    ]
    collator = DataCollatorForNextSentencePrediction(tokenizer, mlm=False)
    collator.generator = seeded()
    labels = []
    for _ in range(20):
        batch = collator(rows)
        labels += batch["labels"].tolist()
        for number, row in enumerate(rows):
            right = tokenizer(row["first"], row["second"])["input_ids"]
            assert (batch["input_ids"][number][: len(right)].tolist() == right) == (batch["labels"][number] == 0)
    assert abs(np.mean(labels) - 0.5) < 5 * 0.5 / math.sqrt(len(labels))
    batch = DataCollatorForNextSentencePrediction(tokenizer)(rows)
    assert (batch["labels"] != -100).any()
    assert set(batch["next_sentence_label"].tolist()) == {0, 1}
    alone = DataCollatorForNextSentencePrediction(tokenizer, follow_probability=0.0, mlm=False)(rows[:2])  # of one document
    assert alone["labels"].tolist() == [0, 0]
    with pytest.raises(InputError, match="row 0: `second` must be a text, but is 3"):
        collator([{"first": "a", "second": 3}])
    with pytest.raises(InputError, match="`follow_probability` must be from 0 to 1"):
        DataCollatorForNextSentencePrediction(tokenizer, follow_probability=2)


# --- pictures ---------------------------------------------------------------------------------------------------------------


def test_blocks_hide_just_as_many_patches() -> None:
    generator = seeded()
    chosen = torch.zeros(14, 14)
    for _ in range(300):
        mask = block_mask((14, 14), 75, generator=generator)
        assert int(mask.sum()) == 75
        chosen += mask
    assert int(block_mask((2, 2), 1, generator=generator).sum()) == 1
    assert int(block_mask((3, 5), 15, generator=generator).sum()) == 15
    share = chosen / 300
    assert share.min() > 0.02  # every place is hidden now and then, the middle more often than the edge
    assert share[5:9, 5:9].mean() > share[0].mean()
    near = (mask[:, 1:] == mask[:, :-1]).float().mean()
    assert near > 0.8  # neighbours go together


def test_squares_of_a_share() -> None:
    generator = seeded()
    counts = torch.zeros(4, 4)
    for _ in range(500):
        mask = random_mask((8, 8), 0.6, 2, generator)
        squares = mask[::2, ::2]
        assert torch.equal(mask, squares.repeat_interleave(2, 0).repeat_interleave(2, 1))
        assert int(squares.sum()) == 10
        counts += squares
    assert (counts / 500 - 10 / 16).abs().max() < 5 * math.sqrt(0.625 * 0.375 / 500)


def test_patches_and_visual_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [
        {"pixel_values": torch.rand(3, 32, 32, generator=generator), "visual_tokens": torch.arange(16) + 100 * n}
        for n in range(2)
    ]
    batch = DataCollatorForPatchMasking(8, 0.5)(rows)
    assert batch["bool_masked_pos"].shape == (2, 16)
    assert batch["bool_masked_pos"].sum(dim=1).tolist() == [8, 8]
    assert batch["labels"].tolist() == [
        n for n in (*range(16), *range(100, 116)) if batch["bool_masked_pos"][n // 100, n % 100]
    ]
    plain = [{"pixel_values": row["pixel_values"]} for row in rows]
    made = DataCollatorForPatchMasking(
        8, kind="random", mask_ratio=0.6, mask_patch_size=16, codebook=lambda x: torch.ones(2, 16).long()
    )(plain)
    assert made["labels"].eq(1).all()
    assert made["bool_masked_pos"].sum(dim=1).tolist() == [12, 12]  # three of four squares of four patches
    assert "labels" not in DataCollatorForPatchMasking(8)(plain)
    for options, message in (
        ({"mask_ratio": 0}, "above 0 and at most 1"),
        ({"kind": "stripes"}, "'block' or 'random'"),
        ({"mask_patch_size": 20}, "must be a multiple of `patch_size`, which is 16"),
    ):
        with pytest.raises(InputError, match=message):
            DataCollatorForPatchMasking(**options)
    with pytest.raises(InputError, match="pictures of 32 x 32 pixels have no whole number of squares of 7 x 7"):
        DataCollatorForPatchMasking(7)(plain)
    with pytest.raises(InputError, match=r"visual tokens have the shape \(2, 16\), but the patches \(2, 4\)"):
        DataCollatorForPatchMasking(16)(rows)
    with pytest.raises(InputError, match=r"row 1: `pixel_values` has the shape \(3, 8, 8\)"):
        DataCollatorForPatchMasking(8)([plain[0], {"pixel_values": torch.rand(3, 8, 8)}])


def test_masked_pictures_train_a_model() -> None:
    from transept.models.beit import BeitConfig, BeitForMaskedImageModeling

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 20,
        "image_size": 16,
        "patch_size": 4,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = BeitForMaskedImageModeling(BeitConfig(**sizes, intermediate_size=16, use_mask_token=True))
    rows = [{"pixel_values": torch.rand(3, 16, 16), "visual_tokens": torch.randint(20, (16,))} for _ in range(2)]
    terms = model(**DataCollatorForPatchMasking(4)(rows)).loss_terms
    assert int(terms["masked_patches"].count) == 12


def test_pictures_of_several_sizes() -> None:
    target = {"class_labels": [1, 2], "boxes": [[0.5, 0.5, 0.2, 0.2], [0.1, 0.1, 0.1, 0.1]], "image_id": [7]}
    empty = {"class_labels": [], "boxes": [], "image_id": [8]}
    rows = [
        {"pixel_values": np.ones((3, 4, 6), np.float32), "labels": target},
        {"pixel_values": np.ones((3, 5, 2), np.float32), "labels": empty},
    ]
    batch = DataCollatorForObjectDetection(pad_to_multiple_of=4)(rows)
    assert batch["pixel_values"].shape == (2, 3, 8, 8)
    assert batch["pixel_mask"].sum(dim=(1, 2)).tolist() == [24, 10]
    assert torch.equal(batch["pixel_values"][:, 0], batch["pixel_mask"].float())
    assert batch["labels"][0]["boxes"].shape == (2, 4)
    assert batch["labels"][1]["boxes"].shape == (0, 4)
    assert batch["labels"][1]["class_labels"].dtype == torch.int64
    for labels, message in (
        (None, "row 1: `labels` must have `class_labels` and `boxes`"),
        ({"class_labels": [1], "boxes": [[10, 10, 4, 4]]}, "row 1: `boxes` must be from 0 to 1"),
        ({"class_labels": [1, 2], "boxes": [[0, 0, 1, 1]]}, r"row 1: `boxes` has the shape \(1, 4\) for 2 `class_labels`"),
    ):
        with pytest.raises(InputError, match=message):
            DataCollatorForObjectDetection()([rows[0], rows[1] | {"labels": labels}])
    with pytest.raises(InputError, match=r"row 1: `pixel_values` has the shape \(4, 4\), but must be \(C, H, W\)"):
        DataCollatorForObjectDetection()([{"pixel_values": np.ones((3, 4, 4))}, {"pixel_values": np.ones((4, 4))}])


# --- sounds -----------------------------------------------------------------------------------------------------------------


def extractor() -> Any:
    from transept.preprocess.audio.wav2vec2 import Wav2Vec2FeatureExtractor

    return Wav2Vec2FeatureExtractor(return_attention_mask=True)


def test_waves_with_transcripts_and_classes() -> None:
    waves = [np.ones(5, np.float32), np.ones(3, np.float32)]
    batch = DataCollatorForAudio(extractor())(
        [{"input_values": wave, "labels": [9, 4, 5][: 3 - n]} for n, wave in enumerate(waves)]
    )
    assert batch["input_values"].tolist() == [[1.0] * 5, [1.0, 1.0, 1.0, 0.0, 0.0]]
    assert batch["attention_mask"].sum(dim=1).tolist() == [5, 3]
    assert batch["labels"].tolist() == [[9, 4, 5], [9, 4, -100]]
    dropped = DataCollatorForAudio(extractor(), decoder_start_token_id=9)
    assert dropped([{"input_values": wave, "labels": [9, 4]} for wave in waves])["labels"].tolist() == [[4], [4]]
    classes = DataCollatorForAudio(extractor(), pad_to_multiple_of=4)([{"input_values": wave, "label": 1} for wave in waves])
    assert classes["labels"].tolist() == [1, 1]
    assert classes["input_values"].shape == (2, 8)


def test_hidden_frames_of_waves() -> None:
    from transept.models.wav2vec2 import Wav2Vec2Config, Wav2Vec2ForPreTraining

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "conv_dim": [8, 8]}
    sizes |= {"conv_stride": [5, 4], "conv_kernel": [10, 8], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    sizes |= {"codevector_dim": 8, "proj_codevector_dim": 8, "num_negatives": 4, "mask_time_prob": 0.5, "mask_time_length": 2}
    model = Wav2Vec2ForPreTraining(Wav2Vec2Config(**sizes, feat_extract_norm="layer"))
    collator = DataCollatorForWav2Vec2Pretraining(model, extractor(), generator=seeded())
    batch = collator(
        [{"input_values": np.random.default_rng(n).normal(size=400 + 100 * n).astype(np.float32)} for n in range(2)]
    )
    mask, negatives = batch["mask_time_indices"], batch["sampled_negative_indices"]
    assert negatives.shape == (*mask.shape, 4)
    frames = mask.shape[1]
    for row in range(2):
        for at in mask[row].nonzero()[:, 0].tolist():
            others = negatives[row, at] - row * frames
            assert mask[row][others].all()
            assert not (others == at).any()
    assert model(**batch).loss.isfinite()
