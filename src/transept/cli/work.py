"""Inputs through a pipeline into a sink: group by group, with a progress bar, and failures counted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, NamedTuple, TypeVar

from transept.cli.inputs import Groups, Item
from transept.cli.messages import complain, explained
from transept.cli.outputs import Sink
from transept.errors import InputError, TranseptError

MOST_REPORTED = 20
BAR_DELAY = 0.5  # seconds, so that quick work shows none

Group = TypeVar("Group", bound=Sized)


class Tally(NamedTuple):
    """How many inputs there were, and how many of them failed."""

    inputs: int
    failed: int

    @property
    def code(self) -> int:
        """The exit code."""
        return 1 if self.failed else 0

    def report(self, path: str, *, as_json: bool) -> None:
        """Tell on standard output what a file holds now."""
        if as_json:
            print(json.dumps({"output": path, "inputs": self.inputs, "failed": self.failed}))
        else:
            missed = f", {self.failed} failed" if self.failed else ""
            print(f"{path}: {self.inputs - self.failed} answered{missed}")


def answer_all(pipe: Any, groups: Groups, sink: Sink, *, total: int | None, bar: bool) -> Tally:
    """Answer every input, in order.

    Args:
        pipe: the pipeline.
        groups: inputs as they come.
        sink: where answers go.
        total: number of inputs, where it is known.
        bar: show a progress bar where stderr is a terminal.

    Raises:
        InputError: there are no inputs.
    """
    inputs = failures = 0
    for pairs in shown(answered(pipe, groups), pipe.task, total, bar=bar):
        sink.write(pairs)
        inputs += len(pairs)
        for item, answer in pairs:
            if isinstance(answer, TranseptError):
                failures += 1
                report_failure(item, answer, failures)
    if not inputs:
        raise InputError("there are no inputs.", hint="Pass some as arguments, in files or on standard input.")
    if failures and inputs > 1:
        complain(f"{failures} of {inputs} inputs could not be answered.")
    return Tally(inputs, failures)


def report_failure(item: Item, error: TranseptError, number: int) -> None:
    """One line on stderr for one of the first inputs that fail; the answers tell of all."""
    if number <= MOST_REPORTED:
        place = "" if error.path == item.where else f"{item.where}: "
        complain(f"{place}{explained(error)}")
    elif number == MOST_REPORTED + 1:
        complain("more inputs fail, which the answers tell of.")


def answered(pipe: Any, groups: Groups) -> Iterator[list[tuple[Item, Any]]]:
    """Each group of inputs with its answers, errors in the places of those that failed."""
    for group in groups:
        good = [item.value for item in group if not isinstance(item.value, TranseptError)]
        found = pipe.answers(good, pipe.options)  # a call would unwrap the answer to a list of one for some tasks
        yield [(item, item.value if isinstance(item.value, TranseptError) else next(found)) for item in group]


def shown(groups: Iterable[Group], name: str, total: int | None, *, bar: bool) -> Iterator[Group]:
    """Groups as they come, with a progress bar where stderr is a terminal."""
    if not (bar and sys.stderr.isatty()):
        yield from groups
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=name, leave=False, delay=BAR_DELAY) as progress:
        for group in groups:
            yield group
            progress.update(len(group))
