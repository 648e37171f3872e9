"""Settings of watermarks, as ``watermarking_config`` takes them. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Self

from transept.errors import ConfigError, nearest
from transept.generation.checks import Range, number

MAX_TABLE = 2**24


@dataclass(frozen=True)
class Watermark:
    """Settings of a watermark, which are checked, and go to a dict and back.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    # Of numbers: their ranges, and whether they are whole.
    ranges: ClassVar[dict[str, tuple[Range, bool]]] = {}

    def __post_init__(self) -> None:
        for name, (allowed, whole) in self.ranges.items():
            number(name, getattr(self, name), allowed, whole=whole, kind=ConfigError)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], **more: Any) -> Self:
        """The settings of a mapping.

        Raises:
            ConfigError: one that there is not, that is missing, or that has a wrong value.
        """
        given, known = {**settings, **more}, {field.name: field for field in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigError(f"`watermarking_config` has no setting {name!r}.", hint=nearest(str(name), known))
        for name, field in known.items():
            if name not in given and field.default is MISSING:
                raise ConfigError(f"`watermarking_config` lacks {name!r}.", hint="A marked text can only be told by it.")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class WatermarkingConfig(Watermark):
    """A watermark of favoured tokens (Kirchenbauer et al. 2023): which ones they are follows from the tokens before.

    Args:
        greenlist_ratio: the share of the vocabulary that is favoured.
        bias: what is added to the logits of those.
        hashing_key: the secret.
        seeding_scheme: ``lefthash``, by the last token, or ``selfhash``, by the token itself too, which is slow.
        context_width: how many tokens before count.
    """

    ranges = {
        "greenlist_ratio": (Range(0, 1, open="()"), False),
        "bias": (Range(-1e9, 1e9), False),
        "hashing_key": (Range(1), True),
        "context_width": (Range(1), True),
    }

    greenlist_ratio: float = 0.25
    bias: float = 2.0
    hashing_key: int = 15485863
    seeding_scheme: str = "lefthash"
    context_width: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeding_scheme not in ("lefthash", "selfhash"):
            raise ConfigError(f"`seeding_scheme` must be one of lefthash, selfhash, but is {self.seeding_scheme!r}.")


@dataclass(frozen=True)
class SynthIDTextWatermarkingConfig(Watermark):
    """A watermark by a tournament of tokens (Dathathri et al. 2024), which leaves the distribution of texts as it is.

    Args:
        ngram_len: tokens that decide a draw, the new one included.
        keys: the secret, one number for each round of the tournament.
        context_history_size: contexts that are remembered, since one that comes again is not marked again.
        sampling_table_seed, sampling_table_size: of the table of random bits.
        skip_first_ngram_calls: leave the first ``ngram_len - 1`` tokens unmarked.
        debug_mode: mark as if all tokens were equally likely.
    """

    ranges = {
        "ngram_len": (Range(2, 2**16), True),
        "context_history_size": (Range(1, MAX_TABLE), True),
        "sampling_table_size": (Range(1, MAX_TABLE), True),
        "sampling_table_seed": (Range(0), True),
    }

    ngram_len: int
    keys: list[int]
    context_history_size: int = 1024
    sampling_table_seed: int = 0
    sampling_table_size: int = 2**16
    skip_first_ngram_calls: bool = False
    debug_mode: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        keys: Any = self.keys  # as it came
        if not isinstance(keys, list | tuple) or not keys:
            raise ConfigError(f"`keys` must be one or more numbers, but is {str(keys)[:80]!r}.")
        for key in keys:
            number("keys", key, Range(0, 2**63 - 1), whole=True, kind=ConfigError)


def watermark(settings: Mapping[str, Any] | Watermark) -> WatermarkingConfig | SynthIDTextWatermarkingConfig:
    """The kind of watermark that settings are of: that with ``keys``, or else that with favoured tokens.

    Raises:
        ConfigError: a setting that there is not, or a value that is wrong.
    """
    if isinstance(settings, WatermarkingConfig | SynthIDTextWatermarkingConfig):
        return settings
    if isinstance(settings, Watermark):
        settings = settings.to_dict()
    return (SynthIDTextWatermarkingConfig if "keys" in settings else WatermarkingConfig).from_dict(settings)
