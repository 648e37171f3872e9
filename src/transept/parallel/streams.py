"""Files of tensors of which processes have parts: put together one by one, or parts that each process writes.

Either way no process has all of them. The parts are in safetensors files that say where in the whole tensors they
belong (PyTorch's distributed checkpoints), which any number of processes reads.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from transept.checkpoint.keys import KeyMap, Recipe
from transept.checkpoint.store import TensorStore, file_names, size_in_bytes, split, write_checkpoint
from transept.checkpoint.writing import in_order, write_stream
from transept.config.fields import Range
from transept.config.schema import typed
from transept.errors import CheckpointError, FileError
from transept.parallel.processes import gather_objects, same_on_all
from transept.storage.files import parse_json

_PLACES = "DCP_SHARDING_INFO"  # the key of a file's metadata that says where in the whole tensors its parts begin
_PLACE: Any = {"saved_offsets": list[Annotated[int, Range(0)]]}
_Box = tuple[tuple[int, ...], tuple[int, ...]]  # where a part begins and ends in the whole tensor


def whole(tensor: Any) -> Tensor:
    """All of a tensor; the processes that have parts of it must ask for it together."""
    # The method is asked for, since the class takes a while to import, and who shares nothing does without.
    return cast(Tensor, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor)


@dataclass(frozen=True)
class Piece:
    """A tensor that is put together when its turn has come."""

    shape: tuple[int, ...]  # of the whole tensor
    dtype: torch.dtype
    tensor: Tensor | None  # this process's part, if it has one
    gather: Callable[[Piece], Tensor]  # gives the whole, to the first process at least; all call it together

    @classmethod
    def of(cls, tensor: Tensor) -> Piece:
        """A tensor of which all processes have a part, or one that this process has whole."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.detach(), lambda piece: whole(piece.tensor))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __iter__(self) -> Iterator[Piece]:
        """The rows of a stack of tensors."""
        rows: Iterable[Any] = [None] * self.shape[0] if self.tensor is None else self.tensor
        return (replace(self, shape=self.shape[1:], tensor=row) for row in rows)

    def chunk(self, count: int) -> list[Piece]:
        """So many equal parts along the first axis, each of which is cut out of the whole."""
        shape = (self.shape[0] // count, *self.shape[1:])
        return [replace(self, shape=shape, gather=partial(_cut, self, number, count)) for number in range(count)]

    def whole(self) -> Tensor:
        """The tensor; all processes ask for it together."""
        return self.gather(self)


def _cut(source: Piece, number: int, count: int, piece: Piece) -> Tensor:
    tensor = source.whole()
    return tensor.chunk(count)[number] if dist.get_rank() == 0 else tensor  # others may have nothing of it


def _join(recipe: Recipe, parts: Sequence[Piece], piece: Piece) -> Tensor:
    tensors = [part.whole() for part in parts]
    # Others may have nothing of it, and so no shape that it could be made of.
    return recipe.join(tensors).contiguous() if dist.get_rank() == 0 else tensors[0]


class Stream:
    """Pieces in the order in which files have them, the same on all processes.

    The first process takes them while it writes, and the others by :meth:`finish`, which all processes call, whatever
    failed before, since the others wait until all were taken.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._left = iter(pieces)

    def write_file(self, entries: Mapping[str, Piece], path: Path) -> None:
        """Write a file of the next pieces; raises as :func:`transept.checkpoint.writing.write_stream` does."""
        write_stream(entries, lambda name: next(self._left).whole(), path)

    def finish(self) -> None:
        for piece in self._left:
            piece.whole()


@contextmanager
def written_together(*streams: Any) -> Iterator[None]:
    """Around the first process's writing: the others give what it takes, and a failure is that of all.

    At the end all pieces that are left are taken, those of the last stream first.
    """
    with same_on_all(), ExitStack() as ending:
        for stream in streams:
            ending.callback(stream.finish)
        yield


class ModelFiles(Stream):
    """The files of a model that processes share: those that one process with the whole model would write.

    All processes make one together. The first of them calls :meth:`write`, and all of them :meth:`finish` at the end.
    ``state`` has our names and tensors or pieces, no tied ones, and ``keys`` says how these are stored. ``order`` has
    the stored names in the order of the whole model, where that of ``state`` is another.
    """

    def __init__(
        self, state: Mapping[str, Any], keys: KeyMap, max_shard_size: int | str = "50GB", order: Sequence[str] = ()
    ) -> None:
        pieces: Any = {name: Piece.of(item) if isinstance(item, Tensor) else item for name, item in state.items()}
        slots: Any = keys.slots(pieces)
        stored = dict[str, Piece]()
        for name, piece in slots.items():
            recipe = keys.recipe(name)
            if recipe.stored not in stored:
                parts = [slots[part] for part in recipe.parts] or [piece]
                shape = recipe.stored_shape([torch.Size(part.shape) for part in parts])
                stored[recipe.stored] = Piece(tuple(shape), parts[0].dtype, None, partial(_join, recipe, parts))
        self.sizes = {name: stored[name].nbytes for name in order or stored}
        self.shards = split(self.sizes, size_in_bytes(max_shard_size))
        self.entries = [{name: stored[name] for name in names} for names in self.shards]
        super().__init__(file[name] for file in self.entries for name in in_order(file))

    def write(self, texts: Mapping[str, str], directory: Any, variant: str | None = None) -> None:
        """Write all files, with arguments and errors of :func:`transept.checkpoint.store.save_checkpoint`."""
        entries = iter(self.entries)

        def write(names: list[str], path: Path) -> None:
            self.write_file(next(entries), path)

        write_checkpoint(self.shards, self.sizes, texts, directory, write, variant=variant)

    def save(self, texts: Mapping[str, str], directory: Any, variant: str | None = None, *, writes: bool = True) -> bool:
        """Write all files, where the first process ``writes``; returns whether this process wrote them.

        All call this together, and fail where one does (``TrainingError``); the old files are still there then.
        """
        file_names(variant)
        is_writer = writes and dist.get_rank() == 0
        with written_together(self):
            if is_writer:
                self.write(texts, directory, variant)
        return is_writer


def _in_boxes(tensor: Any) -> Tensor:
    """A tensor of which each process has one part in one piece, as files of parts need it; all ask for it together."""
    if not hasattr(tensor, "placements"):
        return cast(Tensor, tensor)
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    places, boxes = [*tensor.placements], []
    for number, each in enumerate(places):
        is_cut_again = any(
            isinstance(other, Shard) and other.dim == getattr(each, "dim", None) for other in places[number + 1 :]
        )
        boxes.append(Shard(each.dim) if isinstance(each, _StridedShard) and not is_cut_again else each)
    return cast(Tensor, tensor if boxes == places else tensor.redistribute(placements=boxes))


class Shards:
    """Tensors of which all processes write their parts at once, into the folder that the first of them names.

    The first process calls :meth:`write`, and all of them :meth:`finish` at the end, whatever failed before.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors, self.is_done = {name: _in_boxes(tensor.detach()) for name, tensor in tensors.items()}, False

    def write(self, folder: Path) -> list[Path]:
        """Write the files of all processes (``FileError``: one of them could not); returns their paths."""
        folder.mkdir()
        self.finish(folder)
        return sorted(folder.iterdir())

    def finish(self, folder: Path | None = None) -> None:
        """Write this process's file, once; nothing where the first process names no folder."""
        if self.is_done:
            return
        self.is_done = True
        folder = gather_objects(folder)[0]
        if folder is None:
            return
        import torch.distributed.checkpoint  # which takes a while

        dcp: Any = torch.distributed.checkpoint
        try:
            writer = dcp.HuggingFaceStorageWriter(path=str(folder), save_distributed=True)
            dcp.save(self.tensors, storage_writer=writer)
        except dcp.CheckpointException as error:  # the same in all processes
            reason = next(iter(error.failures.values()))[0]
            raise FileError(f"cannot be written ({' '.join(str(reason).split())[:200]}).", path=folder) from error


def shapes_in(folder: Path) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """The whole shapes and the types of the tensors in a folder, which hold no more than what their parts do.

    ``CheckpointError``, ``FileError``, ``FormatError``: files that cannot be read, or do not belong together.
    """
    parts, kinds = dict[str, list[_Box]](), dict[str, tuple[int, torch.dtype]]()
    for path in sorted(folder.glob("*.safetensors")):
        store = TensorStore([path])
        note = store.metadata(path).get(_PLACES)
        # Files without such a note hold whole tensors.
        every_place: Any = dict.fromkeys(store, _PLACE)
        places: Any = typed(parse_json(note, path=path), every_place, path=path) if note else {}
        for name, tensor in store.items():
            begin = tuple(places[name]["saved_offsets"]) if name in places else (0,) * tensor.ndim
            kind = (len(begin), tensor.dtype)
            if len(begin) != tensor.ndim or kinds.setdefault(name, kind) != kind:
                what = f"holds a part of {name[:200]!r} of {tensor.dtype} and {tuple(tensor.shape)} at {begin[:20]}"
                raise CheckpointError(f"{what}, which does not belong to the others.", path=path)
            end = tuple(start + size for start, size in zip(begin, tensor.shape))
            parts.setdefault(name, []).append((begin, end))
    shapes = {name: tuple(map(max, zip(*(end for _, end in boxes)))) for name, boxes in parts.items()}
    for name, boxes in parts.items():
        if not _fills(boxes, shapes[name]):
            raise CheckpointError(f"does not hold all parts of {name[:200]!r}, or some of them twice.", path=folder)
    return {name: (shape, kinds[name][1]) for name, shape in shapes.items()}


def _fills(boxes: Sequence[_Box], shape: tuple[int, ...]) -> bool:
    """Whether parts are the cells of a grid that fills a tensor, as those of any division between processes are."""
    cells = [(begin, end) for begin, end in boxes if all(low < high for low, high in zip(begin, end))]
    cuts = [sorted({begin[axis] for begin, _ in cells} | {0, size}) for axis, size in enumerate(shape)]
    after = [dict(pairwise(cut)) for cut in cuts]
    is_inside = all(after[axis][at] == end[axis] for begin, end in cells for axis, at in enumerate(begin))
    return is_inside and len({begin for begin, _ in cells}) == len(cells) == math.prod(map(len, after))


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, of which each process reads its own part (``CheckpointError``: the files do not hold all of it).

    PyTorch reads the files' metadata by itself, which :func:`shapes_in` must have checked before.
    """
    import torch.distributed.checkpoint

    dcp: Any = torch.distributed.checkpoint
    wanted: Any = {name: _in_boxes(tensor.detach()) for name, tensor in tensors.items()}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads for itself
            dcp.load(wanted, storage_reader=dcp.HuggingFaceStorageReader(path=str(folder)), no_dist=True)
    except (dcp.CheckpointException, RuntimeError, ValueError, KeyError) as error:
        what = f"does not hold what its tensors are made of ({' '.join(str(error).split())[:200]})."
        raise CheckpointError(what, path=folder) from error
    for name, tensor in tensors.items():
        if (placements := getattr(tensor, "placements", None)) != getattr(wanted[name], "placements", None):
            tensor.detach().copy_(wanted[name].redistribute(placements=placements))
