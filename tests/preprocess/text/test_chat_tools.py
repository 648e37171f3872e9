"""Functions as tools: the reference's JSON schemas, and errors that name the argument."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Literal, Optional, Union

import pytest
import torch
from PIL import Image
from transformers.utils import get_json_schema as reference

from transept.errors import InputError
from transept.preprocess.text.tools import get_json_schema

from .chats import weather


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


def plain(a: int, b: float, c: str, d: bool, e: list, f: dict, g: tuple, h: Any, i: None) -> None:  # type: ignore[type-arg]
    """Everything plain.

    Args:
        a: one
        b: two,
            which goes on

            and on: with a colon
        c: three
        d: four
        e: five
        f: six
        g: seven
        h: eight
        i: nine

    Returns:
        nothing at all
    """


def nested(
    a: list[int],
    b: dict[str, list[float]],
    c: tuple[int, str],
    d: int | None,
    e: int | str | None = None,
    f: Optional[list[int]] = None,  # noqa: UP045
    g: Union[int, list[str]] = 1,  # noqa: UP007
    h: Literal["x", 1, None] = "x",
    i: Color = Color.RED,
    j: list | tuple = (),  # type: ignore[type-arg]
) -> dict[str, int]:
    """
    A longer description,
    over two lines.

    And a second paragraph.

    Args:
      a: one
      b: two
      c: three
      d: four
      e: five
      f: six
      g: seven
      h: eight
      i: nine
      j: ten

    Returns:
        dict: numbers by name

    Raises:
        ValueError: never
    """
    return {}


def media(picture: Image.Image, sound: torch.Tensor) -> torch.Tensor:
    """Media.

    Args:
        picture: a picture
        sound: a sound
    """
    return sound


def bare() -> int:
    """No arguments."""
    return 1


def odd_return(a: int) -> Callable[[], int]:
    """Return what JSON cannot tell.

    Args:
        a: one (choices: [1, 2])

    Raises:
        ValueError: a: never
    """
    return lambda: a


def half_hint(a: dict[str]) -> None:  # type: ignore[type-arg]
    """A dict of half a hint.

    Args:
        a: one
    """


class Box:
    def open(self, lid: str) -> str:
        """Open the box.

        Args:
            lid: which lid (Choices: ["top ", "side"])
        """
        return lid

    @classmethod
    def make(cls, size: int) -> None:
        """Make one.

        Args:
            size: how large
        """


@pytest.mark.reference
@pytest.mark.parametrize(
    "function",
    [weather, plain, nested, media, bare, odd_return, Box().open, Box.open, Box.make, half_hint],
    ids=lambda f: f.__qualname__,
)
def test_schemas_are_those_of_the_reference(function: Callable[..., Any]) -> None:
    assert get_json_schema(function) == reference(function)


def undocumented(a: int) -> None:
    pass


def unhinted(a) -> None:  # type: ignore[no-untyped-def]
    """No hint.

    Args:
        a: one
    """


def undescribed(a: int, b: int) -> None:
    """No description of b.

    Args:
        a: one
    """


def own_class(a: Box) -> None:
    """A class.

    Args:
        a: one
    """


def single(a: tuple[int]) -> None:
    """A tuple of one.

    Args:
        a: one
    """


def endless(a: tuple[int, ...]) -> None:
    """A tuple without end.

    Args:
        a: one
    """


def bad_choices(a: str) -> None:
    """Choices that are no JSON.

    Args:
        a: one (choices: ['x'])
    """


def odd_literal(a: Literal[b"x"]) -> None:
    """A literal of bytes.

    Args:
        a: one
    """


def unknown_hint(a: Nothing) -> None:  # type: ignore[name-defined]  # noqa: F821
    """A hint that names nothing.

    Args:
        a: one
    """


def no_list(a: str) -> None:
    """Choices that are no list.

    Args:
        a: one (choices: 5)
    """


@pytest.mark.reference
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unknown_hint, "type hints of the tool 'unknown_hint' cannot be read"),
        (no_list, "choices in the docstring of the tool 'no_list' are no list"),
        (undocumented, "'undocumented' has no docstring"),
        (unhinted, "argument 'a' of the tool 'unhinted' has no type hint"),
        (undescribed, "does not describe the argument 'b'"),
        (own_class, "argument 'a' of the tool 'own_class': the type hint .*Box"),
        (single, r"a tuple such as tuple\[int\]"),
        (endless, "a tuple such as"),
        (bad_choices, "choices in the docstring of the tool 'bad_choices' are no JSON"),
        (odd_literal, "the literals must be"),
    ],
)
def test_what_has_no_schema_is_named(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_json_schema(function)
    with pytest.raises(Exception, match=r"."):
        reference(function)
