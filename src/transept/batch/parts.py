"""One of several parts of long work: any machine may do any part, twice if need be."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from transept.batch.inputs import Inputs, Item, between
from transept.errors import InputError
from transept.files import make_directory


@dataclass(frozen=True)
class Part:
    """The ``number``-th of ``count`` parts, from 1."""

    number: int
    count: int

    @classmethod
    def read(cls, text: str) -> Part:
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise argparse.ArgumentTypeError(f"{text!r} is not one of N parts, which are 1/N to N/N, such as 3/16")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def path(self, folder: str) -> str:
        """Its file in a directory, which is made; names of all parts sort in their order."""
        return str(make_directory(folder) / f"part-{self.number:05}-of-{self.count:05}.npy")

    def of(self, inputs: Inputs) -> tuple[Iterator[list[Item]], int]:
        """Its inputs, and how many these are: parts follow one another, and differ by one input at most.

        Raises:
            InputError: there are none in all files.
        """
        total = inputs.count() or 0
        if not total:
            raise InputError("there are no inputs.", hint="Pass files that hold some.")
        start, stop = ((self.number - step) * total // self.count for step in (1, 0))
        return between(inputs.groups(), start, stop), stop - start
