"""``AutoTokenizer``: the tokenizer that a model's files ask for."""

from __future__ import annotations

import os
from typing import Any

from transept.errors import InputError, InputTypeError, UnsupportedError, nearest
from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer
from transept.preprocess.audio.whisper_tokenizer import WhisperTokenizer
from transept.preprocess.text import classes
from transept.preprocess.text.loading import CONFIG_NAME, TOKENIZER_NAME
from transept.preprocess.text.tokenizer import Tokenizer
from transept.storage.files import load_object
from transept.storage.source import Source, model_argument, model_name, take_source_options

CLASSES: dict[str, type[Tokenizer]] = {
    name: kind for name, kind in vars(classes).items() if isinstance(kind, type) and issubclass(kind, Tokenizer)
} | {
    "Wav2Vec2CTCTokenizer": Wav2Vec2CTCTokenizer,
    "WhisperTokenizer": WhisperTokenizer,
    "WhisperTokenizerFast": WhisperTokenizer,
}
"""The classes that a file can name; no other name is ever imported."""
MODEL_TYPES = {model_type: kind.__name__ for kind in CLASSES.values() for model_type in kind.family.model_types}
"""``model_type`` of a ``config.json`` -> name of its tokenizer's class, for files that name none."""
_GENERIC = (
    *("ernie4_5", "glm", "glm4", "granite", "ministral3", "modernbert", "modernbert-decoder", "nemotron", "olmo2", "olmo3"),
    *("persimmon", "phi3", "stablelm"),
    *("ernie4_5_moe", "flex_olmo", "glm4_moe", "granitemoe", "granitemoeshared", "minicpm3", "minimax_m2", "phimoe"),
)
MODEL_TYPES |= dict.fromkeys(_GENERIC, "PreTrainedTokenizerFast")


class AutoTokenizer:
    """Loads the tokenizer of a model, whatever its family."""

    def __init__(self) -> None:
        raise InputTypeError("AutoTokenizer is not made by calling it.", hint="Use AutoTokenizer.from_pretrained().")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Load a tokenizer as an instance of the class that its files name.

        ``tokenizer_config.json`` is asked first, then the ``model_type`` of ``config.json``. Where neither names a class that
        is here, a ``tokenizer.json`` is enough: it says all that there is to say of ids. Code that comes with a model
        (``auto_map``) is never run. The ``model_type`` of an argument ``config`` counts in place of the file's, and
        ``tokenizer_type`` before all; other options are those of :meth:`Tokenizer.from_pretrained`.

        Raises:
            UnsupportedError: the class is none of ours and there is no ``tokenizer.json``.
        """
        name = model_argument(pretrained_model_name_or_path, options)
        config, wanted = options.pop("config", None), options.pop("tokenizer_type", None)
        if wanted is not None:
            if wanted not in MODEL_TYPES:
                raise InputError(f"tokenizer_type {wanted!r:.60} is none.", hint=nearest(str(wanted), MODEL_TYPES))
            return CLASSES[MODEL_TYPES[wanted]].from_pretrained(name, **options)
        source = Source(model_name(name), **take_source_options(dict(options)))
        if source.gguf_file is not None or os.path.isfile(model_name(name)):
            return Tokenizer.from_pretrained(name, **options)
        return _class_of(source, getattr(config, "model_type", None)).from_pretrained(name, **options)

    @classmethod
    def register(
        cls,
        config_class: Any,
        tokenizer_class: Any = None,
        slow_tokenizer_class: Any = None,
        fast_tokenizer_class: Any = None,
        exist_ok: bool = False,
    ) -> None:
        """Let models with configs of a class have tokenizers of a class of one's own; of two, of the fast one.

        ``config_class.model_type`` is what ``config.json`` says; with ``exist_ok`` the class may take the place of another.

        Raises:
            InputError: what is no tokenizer class, or a model type that has one.
        """
        kind = fast_tokenizer_class or tokenizer_class or slow_tokenizer_class
        model_type = getattr(config_class, "model_type", None)
        if not (isinstance(kind, type) and issubclass(kind, Tokenizer) and isinstance(model_type, str)):
            raise InputTypeError(f"{kind!r:.60} is no class of tokenizers, or {config_class!r:.60} no class of configs.")
        if model_type in MODEL_TYPES and not exist_ok:
            raise InputError(f"{model_type!r} has the tokenizer {MODEL_TYPES[model_type]}.", hint="Pass exist_ok=True.")
        CLASSES[kind.__name__] = kind
        MODEL_TYPES[model_type] = kind.__name__


def _class_of(source: Source, model_type: Any) -> Any:
    """The class that a model's files name."""
    paths = [source.find(name) for name in (CONFIG_NAME, "config.json")]
    config, model = ({} if path is None else load_object(path) for path in paths)
    stated, model_type = config.get("tokenizer_class") or model.get("tokenizer_class"), model_type or model.get("model_type")
    name = stated if isinstance(stated, str) and stated in CLASSES else MODEL_TYPES.get(str(model_type))
    if name is not None:
        return CLASSES[name]
    code = config.get("auto_map")
    has_code = bool(code.get("AutoTokenizer") if isinstance(code, dict) else code)
    if source.find(TOKENIZER_NAME) is not None or (stated is None and not has_code):
        return Tokenizer
    what, hint = f"the tokenizer class {stated!r} is not supported, and there is", nearest(str(stated), CLASSES)
    if has_code:
        what = "its tokenizer is code in the repository, which is never run, and it has"
        hint = "Save it with that code as a tokenizer.json, and load from there."
    raise UnsupportedError(f"{what} no tokenizer.json.", path=source.name, hint=hint)
