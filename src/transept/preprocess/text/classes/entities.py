"""The tokenizer of texts with entities, which says of each entity which tokens it is.

Shapes: N texts, T tokens, E entities, M tokens of an entity at most.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from transept.errors import TranseptWarning, UnsupportedError, refuse
from transept.preprocess.entities import EntityText, are_of_two, read_entities, shares, text_with_entities
from transept.preprocess.features import check_tensor_type, choice, columns_of
from transept.preprocess.settings import need
from transept.preprocess.text import tokens
from transept.preprocess.text.backend import Truncation
from transept.preprocess.text.classes.byte_pairs import RobertaTokenizer
from transept.preprocess.text.encoder import Request
from transept.preprocess.text.encoding import BatchEncoding, Padding, pad_batch
from transept.preprocess.text.settings import TokenizerSettings, as_token
from transept.preprocess.text.tokenizer import Tokenizer
from transept.storage.files import dump_json
from transept.storage.source import Source, model_name, take_source_options

_FILE = "entity_vocab.json"
_KINDS = ("unk", "pad", "mask", "mask2")
# A task -> how many entities a text has; ``None`` where it may have any number.
_TASKS = {"entity_classification": 1, "entity_pair_classification": 2, "entity_span_classification": None}
_Around = list[tuple[int, int, int]]  # ids with their token types, and 1 where they are special
_NAMED = ("entity_spans", "entity_spans_pair", "entities", "entities_pair")
_MARKS = ("entity_1_token", "entity_2_token")


class LukeTokenizer(
    RobertaTokenizer,
    tokens=tokens.ROBERTA_TOKENS | tokens.named(mask="<mask>"),
    options=dict(RobertaTokenizer.family.options)
    | {"task": None, "max_entity_length": 32, "max_mention_length": 30, "entity_vocab": None, "entity_vocab_file": None}
    | {f"entity_{kind}_token": f"[{kind.upper()}]" for kind in _KINDS}
    | {"entity_1_token": "<ent>", "entity_2_token": "<ent2>", "entity_token_1": None, "entity_token_2": None},
    extra_tokens=lambda options: [options[f"entity_token_{n}"] or options[f"entity_{n}_token"] for n in (1, 2)],
    applied=True,
    portable=False,
    model_types=("luke",),
):
    """LUKE's: RoBERTa's byte pairs, and entities of a vocabulary of their own, ``entity_vocab`` (or ``entity_vocab_file``).

    Options: with a ``task`` entities are told by their places alone, and with ``"entity_classification"`` and
    ``"entity_pair_classification"`` the tokens ``entity_1_token`` and ``entity_2_token`` stand around the one or the two;
    of other texts up to ``max_entity_length`` entities are kept where texts are truncated, and of each entity the first
    ``max_mention_length`` tokens.
    """

    entity_vocab: Mapping[str, int]

    def _load(self, name: str | os.PathLike[str], options: dict[str, Any]) -> None:
        if not {"entity_vocab", "entity_vocab_file"} & options.keys() and not os.path.isfile(name):
            found = Source(model_name(name), **take_source_options(dict(options))).find(_FILE)
            options = options if found is None else options | {"entity_vocab_file": found}
        super()._load(name, options)

    def _set(self, settings: TokenizerSettings) -> None:
        super()._set(settings)
        options = self._options
        for number, name in enumerate(_MARKS, 1):
            older = options.pop(f"entity_token_{number}", None)
            options[name] = str(as_token(options[name] if older is None else older, name))
        names = {kind: str(options[f"entity_{kind}_token"]) for kind in _KINDS}
        self.entity_vocab = read_entities(options.pop("entity_vocab", None), options.pop("entity_vocab_file", None), names)
        for kind, token in names.items():
            setattr(self, f"entity_{kind}_token_id", self.entity_vocab[token])
        choice("task", options["task"], {None: None, **dict.fromkeys(_TASKS)})
        for name in ("max_entity_length", "max_mention_length"):
            wrong = type(options[name]) is not int or not 0 < options[name] < 2**20
            refuse(wrong, f"`{name}` is {options[name]!r:.40}, but must be an integer from 1 on.")

    @property
    def max_entity_length(self) -> int:
        """E at most, of one text or one pair of texts."""
        return int(_TASKS.get(self.task) or self._options["max_entity_length"])

    @max_entity_length.setter
    def max_entity_length(self, value: int) -> None:
        self._options["max_entity_length"] = value

    entity_1_token_id = property(lambda self: self._backend.token_to_id(self.entity_1_token))
    entity_2_token_id = property(lambda self: self._backend.token_to_id(self.entity_2_token))

    def _files(self) -> dict[str, str | bytes]:
        return super()._files() | {_FILE: dump_json(dict(self.entity_vocab))}

    def train_new_from_iterator(self, *args: Any, **options: Any) -> Any:
        twin = super().train_new_from_iterator(*args, **options)
        twin.entity_vocab = self.entity_vocab
        for kind in _KINDS:
            setattr(twin, f"entity_{kind}_token_id", getattr(self, f"entity_{kind}_token_id"))
        return twin

    def __call__(  # type: ignore[override]  # the names are the reference's
        self,
        text: Any = None,
        text_pair: Any = None,
        entity_spans: Any = None,
        entity_spans_pair: Any = None,
        entities: Any = None,
        entities_pair: Any = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        max_entity_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        verbose: bool = True,
        **options: Any,
    ) -> BatchEncoding:
        """Encode a text with its entities, a pair of texts, or a batch of either; without entities as RoBERTa's does.

        Args:
            entity_spans: for each text its entities, pairs of the first character and the one after the last.
            entity_spans_pair: those of the second texts.
            entities: for each text the names of its entities, in the same order; ``[MASK]`` for all where they are absent.
            entities_pair: those of the second texts.
            max_entity_length: E at most, where texts are truncated or padded to ``max_length``; by default the option's.

        The other arguments are as for :class:`Tokenizer`.

        Returns:
            ``input_ids`` and ``attention_mask`` (N, T); with entities ``entity_ids`` and ``entity_attention_mask`` (N, E) and
            ``entity_position_ids`` (N, E, M), which are -1 behind an entity's last token; for ``entity_span_classification``
            ``entity_start_positions`` and ``entity_end_positions`` (N, E). One text gives no N, unless tensors are asked for.

        Raises:
            InputTypeError, InputError: what is no text or span, entities that are not as many as spans, or as a task reads.
            UnsupportedError: an argument that is not for texts with entities.
        """
        asked = {name: value for name, value in locals().items() if name not in ("self", "options", "__class__")} | options
        named, most = {name: asked.pop(name) for name in _NAMED}, asked.pop("max_entity_length") or self.max_entity_length
        if self.task is None and all(value is None for value in named.values()):
            return super().__call__(**asked)
        for name in ("stride", "is_split_into_words", "return_overflowing_tokens", "return_offsets_mapping", *options):
            what = f"`{name}` is not for texts with entities."
            refuse(asked[name] not in (None, False, 0), what, "Leave it out, or the entities.", UnsupportedError)
        check_tensor_type(return_tensors)
        single, inputs = isinstance(text, str), self.model_input_names
        wanted = {name: asked[f"return_{name}"] for name in ("token_type_ids", "attention_mask", "special_tokens_mask")}
        wanted = {name: name in inputs if want is None else want for name, want in wanted.items()}
        batch = self._read([text] if single else text, text_pair, named, single)
        rows, cut = self._limits(padding, truncation, max_length, pad_to_multiple_of, padding_side, verbose=verbose)
        columns = self._columns_of(batch, cut, most, add_special_tokens, wanted, verbose)
        found = self._padded(columns, rows, most, bool(wanted["attention_mask"]), None).data if batch else columns
        if return_length:
            found["length"] = [len(row) for row in (found if single else columns)["input_ids"]]  # as in the reference
        found = {name: value[0] for name, value in found.items()} if single else found
        return BatchEncoding(found, tensor_type=return_tensors, prepend_batch_axis=single)

    def tokenize(self, text: Any, pair: Any = None, add_special_tokens: bool = False, **kwargs: Any) -> list[str]:
        """The tokens of a text without entities; takes what a call of :class:`Tokenizer` takes."""
        how: dict[str, Any] = {"verbose": False, **kwargs, "return_offsets_mapping": True}
        return Tokenizer.__call__(self, text, pair, add_special_tokens=add_special_tokens, **how).tokens()

    def pad(  # type: ignore[override]  # the order is the reference's
        self,
        encoded_inputs: Any,
        padding: bool | str = True,
        max_length: int | None = None,
        max_entity_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pad what is encoded already, entities too; see :meth:`Tokenizer.pad`."""
        rows, _ = self._limits(padding, False, max_length, pad_to_multiple_of, padding_side, verbose=verbose)
        mask = "attention_mask" in self.model_input_names if return_attention_mask is None else return_attention_mask
        return self._padded(encoded_inputs, rows, max_entity_length or self.max_entity_length, mask, return_tensors)

    def _padded(self, encoded: Any, rows: Padding | None, most: int, mask: bool, tensors: str | None) -> BatchEncoding:
        columns = columns_of(encoded, "input_ids")
        own = {name.removeprefix("entity_"): columns.pop(name) for name in [*columns] if name.startswith("entity_")}
        words = pad_batch(columns, "input_ids", rows, mask, tensors)
        if "ids" not in own:
            return words
        fill = {"ids": self.entity_pad_token_id, "position_ids": [-1] * self.max_mention_length, "attention_mask": 0}
        fill |= dict.fromkeys(("token_type_ids", "start_positions", "end_positions"), 0)
        if rows is not None:
            rows = Padding(fill, None if rows.length is None else most, rows.multiple, rows.side)
        first = columns["input_ids"]
        single = first.ndim == 1 if hasattr(first, "ndim") else len(first) > 0 and not hasattr(first[0], "__len__")
        found = pad_batch({name: [value] for name, value in own.items()} if single else own, "ids", rows, mask, tensors)
        words.update({f"entity_{name}": value[0] if single else value for name, value in found.items()})
        return words

    # A text or a pair, from what a caller passes to a row

    def _read(self, text: Any, pair: Any, named: Mapping[str, Any], single: bool) -> list[list[EntityText]]:
        """The texts of each row with their entities, checked."""
        need("the text", text, list | tuple, "a text (str), or a list of texts or pairs")
        given = {"text_pair": pair, **named}
        for name, value in given.items():
            given[name] = [value] if single else [None] * len(text) if value is None else value
            need(f"`{name}`", given[name], list | tuple, "a list of one for each text")
            what = f"there are {len(text)} texts, but `{name}` is for {len(given[name])}."
            refuse(len(given[name]) != len(text), what)
        return [
            self._read_row(place, one, *values) for place, (one, *values) in enumerate(zip(text, *given.values(), strict=True))
        ]

    def _read_row(self, place: int, text: Any, pair: Any, spans: Any, more: Any, names: Any, others: Any) -> list[EntityText]:
        if isinstance(text, list | tuple) and len(text) == 2 and pair is None:
            text, pair = text
            spans, more = spans if more is None and are_of_two(spans) else (spans, more)
            names, others = names if others is None and are_of_two(names) else (names, others)
        task, where = self.task, f"text {place}"
        if task is not None:
            what = f"with the task {task!r} a text has no {{}}: its entities are told by their places."
            refuse(pair is not None or more is not None, what.format("second text"), "Make the tokenizer with task=None.")
            refuse(names is not None or others is not None, what.format("names of entities"), "Leave `entities` out.")
            wanted = _TASKS[task]
            count = len(spans) if isinstance(spans, list | tuple) else 0
            what = f"{where} has {count} `entity_spans`, but the task {task!r} reads {wanted or 'at least one'}."
            refuse(count != (wanted or count) or not count, what, "Pass a list of (start, end).")
        found = [text_with_entities(where, text, spans, names)]
        if pair is not None:
            return [*found, text_with_entities(f"the pair of {where}", pair, more, others)]
        refuse(more is not None or others is not None, f"{where} has no second text, but entities of one.")
        return found

    def _encode_pieces(self, texts: Sequence[EntityText]) -> None:
        """Give texts their ids and entities, whose places become those of tokens."""
        cut = [one.pieces() for one in texts]
        request = Request(add_special_tokens=False, split_special_tokens=self.split_special_tokens)
        encoded = iter(self._run([piece for pieces, _ in cut for piece in pieces], request, maps=False))
        for one, (pieces, before) in zip(texts, cut, strict=True):
            parts = [next(encoded).ids for _ in pieces]
            lengths = [0, *itertools.accumulate(map(len, parts))]
            one.ids = [index for part in parts for index in part]
            one.spans = [(lengths[before[start]], lengths[before[end]]) for start, end in one.spans]
            if one.names is not None:
                one.entities = [self.entity_vocab.get(name, self.entity_unk_token_id) for name in one.names]
            else:
                one.entities = [self.entity_mask_token_id] * len(one.spans)
            if (count := _TASKS.get(self.task)) is not None:
                marks: list[Any] = [self.entity_1_token_id, self.entity_2_token_id][:count]
                what = f"the vocabulary lacks {' or '.join(map(repr, (self.entity_1_token, self.entity_2_token)))}."
                refuse(None in marks, what, "Add them: tokenizer.add_special_tokens().")
                one.mark(marks)
                one.entities = [self.entity_mask_token_id, self.entity_mask2_token_id][:count]

    def _columns_of(
        self,
        batch: Sequence[Sequence[EntityText]],
        cut: Truncation | None,
        most: int,
        special: bool,
        wanted: Mapping[str, Any],
        verbose: bool,
    ) -> dict[str, list[Any]]:
        """The columns of a batch of texts and pairs, with so many entities at most where they are truncated."""
        self._encode_pieces([one for pair in batch for one in pair])
        around = {size: self._around(size, special) for size in {len(pair) for pair in batch}}
        lost = sum(self._shorten(pair, cut, len(around[len(pair)]) - len(pair), most) for pair in batch)
        if lost and verbose:
            warnings.warn(f"{lost} entities are left out, since tokens of theirs are cut off.", TranseptWarning, stacklevel=3)
        columns: dict[str, list[Any]] = {"input_ids": []}
        for pair in batch:
            for name, row in self._row_of(pair, around[len(pair)], wanted).items():
                columns.setdefault(name, []).append(row)
        if verbose and cut is None:
            self._warn_of_length(columns["input_ids"])
        return columns

    def _shorten(self, pair: Sequence[EntityText], cut: Truncation | None, special: int, most: int) -> int:
        """Truncate a row of texts, and its entities to so many; returns how many were left out with tokens of theirs."""
        if cut is None:
            return 0
        first, second = (*pair, EntityText("", []))[:2]
        what = "truncation='only_second' is for pairs of texts."
        refuse(len(pair) == 1 and cut.strategy == "only_second", what, "Pass truncation=True.")
        sizes, most_tokens = (len(first.ids), len(second.ids)), cut.max_length
        counts = shares(*sizes, max(sum(sizes) + special - most_tokens, 0), cut.strategy)
        what = f"texts of {sizes[0]} and {sizes[1]} tokens cannot be cut to a `max_length` of {most_tokens}."
        refuse(counts[0] > sizes[0] or counts[1] > sizes[1], what, "Pass a larger max_length, or truncation=True.")
        lost = sum(one.cut(count, cut.direction) for one, count in zip((first, second), counts, strict=True))
        sizes = len(first.spans), len(second.spans)
        counts = shares(*sizes, max(sum(sizes) - most, 0), cut.strategy)
        for one, count in zip((first, second), counts, strict=True):
            one.cut_entities(count, cut.direction)
        return lost

    def _around(self, size: int, special: bool) -> _Around:
        """A row of so many texts in its template, as :meth:`_templated` gives it; the texts are -1 and -2."""
        texts = [[-1], [-2]][:size]
        return self._templated(*texts, *[None] * (2 - size)) if special else [(index, 0, 0) for (index,) in texts]

    def _row_of(self, pair: Sequence[EntityText], around: _Around, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a row."""
        ids, kinds, special, offsets = list[int](), list[int](), list[int](), dict[int, int]()
        for index, kind, is_special in around:
            offsets[index] = len(ids)
            own = [index] if is_special else pair[-index - 1].ids
            ids, kinds, special = ids + own, kinds + [kind] * len(own), special + [is_special] * len(own)
        moved = [(start + offsets[-n], end + offsets[-n]) for n, one in enumerate(pair, 1) for start, end in one.spans]
        entities, longest = [entity for one in pair for entity in one.entities], self.max_mention_length
        found: dict[str, Any] = {"input_ids": ids, "entity_ids": entities}
        places = [list(range(start, end))[:longest] for start, end in moved]
        found["entity_position_ids"] = [row + [-1] * (longest - len(row)) for row in places]
        if self.task == "entity_span_classification":
            found["entity_start_positions"] = [start for start, _ in moved]
            found["entity_end_positions"] = [end - 1 for _, end in moved]
        if wanted["token_type_ids"]:
            found |= {"token_type_ids": kinds, "entity_token_type_ids": [0] * len(entities)}
        return found | ({"special_tokens_mask": special} if wanted["special_tokens_mask"] else {})
