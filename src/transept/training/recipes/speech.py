"""What is said in sounds: letter by letter by a model with a CTC loss, or written by an encoder–decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transept.core.auto import AutoModelForCTC, AutoModelForSpeechSeq2Seq
from transept.errors import InputError
from transept.objectives.classification import IGNORED
from transept.preprocess.auto import AutoProcessor
from transept.training.arguments.training import Seq2SeqTrainingArguments
from transept.training.data.columns import Column, is_media, is_text
from transept.training.data.media import heard, resolved
from transept.training.data.table import Row, TableDataset
from transept.training.metrics.written import CharacterErrorRate, WordErrorRate
from transept.training.recipes.base import LazyRows, Recipe, texts_of, written_at_evaluation
from transept.training.trainers.seq2seq import Seq2SeqTrainer

LONGEST = 128  # tokens of a transcript that an evaluation has written at most
AUDIO = Column("audio", ("audio", "file", "wav", "path", "audio_filepath", "file_name"), is_media)
TRANSCRIPT = Column("transcript", ("transcript", "transcription", "text", "sentence"), is_text)


class SpeechRecipe(Recipe):
    """A sound and what is said in it; sounds are read and resampled when their turn comes."""

    reader_class = AutoProcessor
    columns = (AUDIO, TRANSCRIPT)
    metric = "wer"
    batch_size = 8

    @property
    def rate(self) -> int:
        """Samples a second that the model reads."""
        return int(self.reader.feature_extractor.sampling_rate)

    def encode(self, dataset: TableDataset) -> Sequence[Row]:
        pairs = zip(dataset.column(self.found["audio"]), dataset.column(self.found["transcript"]))
        rows = [
            {"audio": resolved(audio, dataset.path), "labels": self.letters(text, dataset.place(index))}
            for index, (audio, text) in enumerate(pairs)
        ]
        return LazyRows(TableDataset(rows, path=dataset.path, lines=dataset.lines), self.sound)

    def letters(self, text: str, place: str) -> list[int]:
        """A transcript as labels (``InputError``: nothing is left of it)."""
        ids = list(self.reader.tokenizer(text)["input_ids"])
        if not ids:
            raise InputError("the transcript is empty.", path=place)
        return ids

    def sound(self, row: Row, place: str) -> Row:
        """A sound as the model reads it."""
        found = self.reader.feature_extractor(heard(row["audio"], self.rate, place), sampling_rate=self.rate)
        return {name: found[name][0] for name in found} | {"labels": row["labels"]}

    def collator(self) -> Callable[[list[Any]], Any]:
        return self.batch

    def batch(self, rows: list[Row]) -> dict[str, Any]:
        """Sounds padded to the longest, and their labels."""
        names = [name for name in rows[0] if name != "labels"]
        sounds = [{name: row[name] for name in names} for row in rows]
        found = self.reader.feature_extractor.pad(sounds, padding=True, return_tensors="pt")
        return {name: found[name] for name in found} | {"labels": self.padded([row["labels"] for row in rows])}

    def padded(self, labels: list[list[int]]) -> Any:
        import torch

        longest = max(map(len, labels))
        return torch.tensor([[*row, *[IGNORED] * (longest - len(row))] for row in labels])

    def reduce(self) -> Callable[[Any, Any], Any] | None:
        return lambda logits, labels: (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)

    def scores(self) -> Callable[[Any], dict[str, float]]:
        def scores(prediction: Any) -> dict[str, float]:
            pair = texts_of(self.reader.tokenizer, prediction.predictions), self.right(prediction.label_ids)
            return WordErrorRate()(*pair) | CharacterErrorRate()(*pair)

        return scores

    def right(self, labels: Any) -> list[str]:
        """Labels as texts."""
        return texts_of(self.reader.tokenizer, labels)

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        found = super().defaults(rows, parameters, evaluated=evaluated) | {"include_num_input_tokens_seen": "no"}
        return found | ({"greater_is_better": False} if evaluated else {})

    def shown(self, batch: Mapping[str, Any], index: int) -> dict[str, str]:
        name = next(iter(batch))
        return {name: str(tuple(batch[name][index].shape)), "labels": self.right(batch["labels"][index : index + 1].numpy())[0]}


class CTC(SpeechRecipe):
    """Letters of a sound (connectionist temporal classification, Graves et al. 2006); unknown ones are left out."""

    task = "ctc"
    tag = "automatic-speech-recognition"
    auto = AutoModelForCTC

    def settings(self) -> dict[str, Any]:
        return {"ctc_loss_reduction": "mean", "ctc_zero_infinity": True}

    def right(self, labels: Any) -> list[str]:
        kept = [[int(token) for token in row if token != IGNORED] for row in labels]
        return [str(self.reader.tokenizer.decode(row, group_tokens=False)) for row in kept]


class SpeechToText(SpeechRecipe):
    """The transcript of each sound, written by an encoder–decoder such as Whisper (Radford et al. 2022).

    Evaluations have the model write each transcript, and compare what it wrote. The first token, with which every text begins,
    is left to the model.
    """

    task = "speech-to-text"
    tag = "automatic-speech-recognition"
    auto = AutoModelForSpeechSeq2Seq
    trainer_class = Seq2SeqTrainer
    arguments_class = Seq2SeqTrainingArguments

    def letters(self, text: str, place: str) -> list[int]:
        ids = super().letters(text, place)
        start = getattr(self.model.config, "decoder_start_token_id", None)
        return ids[1:] if ids[:1] == [start] else ids

    def reduce(self) -> None:
        return None  # what is written is ids already

    def defaults(self, rows: int, parameters: int, *, evaluated: bool) -> dict[str, Any]:
        return super().defaults(rows, parameters, evaluated=evaluated) | written_at_evaluation(self.model, LONGEST)
