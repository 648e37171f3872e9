"""How much memory rows have for keys and values, and which prefixes are kept for later prompts: plain numbers, no tensors."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

BLOCK = 32  # positions that memory is counted in, and prefixes are compared by


class Kept(NamedTuple):
    """A prefix: the blocks that it takes, and their digests."""

    blocks: int
    digests: list[bytes]


class Memory:
    """The positions that running rows and kept prefixes may have together, counted in blocks.

    A row's buffers grow by a quarter, so that few positions are copied. A prefix is what a row has read: it is kept when the
    row ends, until others need the memory; the one that was used longest ago goes first.

    Args:
        positions: how many there are.
        keeps: whether prefixes are kept.
        forget: called with the number of a row whose keys and values go.
    """

    def __init__(self, positions: int, *, keeps: bool = True, forget: Callable[[int], object] = id) -> None:
        self.blocks, self.keeps, self.forget = positions // BLOCK, keeps, forget
        self.rows: dict[int, int] = {}  # blocks of each running row, by its number
        self.kept: OrderedDict[int, Kept] = OrderedDict()  # by the number of the row that read it
        self._owners: dict[bytes, int] = {}  # of digests: the prefix that has such a block

    @property
    def positions(self) -> int:
        """How many there are in all."""
        return self.blocks * BLOCK

    @property
    def row_blocks(self) -> int:
        """Blocks of running rows."""
        return sum(self.rows.values())

    @property
    def kept_blocks(self) -> int:
        """Blocks of kept prefixes."""
        return sum(prefix.blocks for prefix in self.kept.values())

    @property
    def _free(self) -> int:
        return self.blocks - self.row_blocks - self.kept_blocks

    def fits(self, positions: int) -> bool:
        """Whether a row of so many positions could run, were it alone."""
        return _blocks(positions) <= self.blocks

    def room(self, number: int) -> int:
        """How many positions a row has memory for."""
        return self.rows.get(number, 0) * BLOCK

    def reserve(self, number: int, positions: int) -> bool:
        """Give a row memory for so many positions, and for some more where that is free; ``False`` where there is none."""
        have, need = self.rows.get(number, 0), _blocks(positions)
        if need <= have:
            return True
        if have + self.blocks - self.row_blocks < need:
            return False  # whatever prefixes go
        while have + self._free < need:
            self.drop(next(iter(self.kept)))
        self.rows[number] = min(max(need, have + have // 4), have + self._free)
        return True

    def release(self, number: int) -> None:
        """Take a row's memory."""
        if self.rows.pop(number, None) is not None:
            self.forget(number)

    def keep(self, number: int, ids: Sequence[int], salt: bytes) -> None:
        """Keep what a row has read as a prefix, or take its memory where there is nothing in it that others have not."""
        digests = digests_of(ids, salt) if self.keeps else []
        if number not in self.rows or all(digest in self._owners for digest in digests):
            return self.release(number)
        self.kept[number] = Kept(self.rows.pop(number), digests)
        self._owners |= dict.fromkeys(digests, number)
        return None

    def match(self, digests: Sequence[bytes]) -> tuple[int, int] | None:
        """The longest kept prefix of a prompt: the number of the row that read it, and its length."""
        found = None
        for count, digest in enumerate(digests, 1):
            if (owner := self._owners.get(digest)) is None:
                break
            found = owner, count * BLOCK
        if found is not None:
            self.kept.move_to_end(found[0])
        return found

    def drop(self, number: int) -> None:
        """Forget a prefix."""
        del self.kept[number]
        # Made anew, since another prefix may have some of the blocks.
        self._owners = {digest: owner for owner, prefix in self.kept.items() for digest in prefix.digests}
        self.forget(number)


def digests_of(ids: Sequence[int], salt: bytes) -> list[bytes]:
    """What tells prefixes of one salt apart, for each whole block."""
    found, digest = [], hashlib.sha256(salt).digest()
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        digest = hashlib.sha256(digest + array("q", ids[start : start + BLOCK]).tobytes()).digest()
        found.append(digest)
    return found


def _blocks(positions: int) -> int:
    return -(-positions // BLOCK)
