"""``AutoTokenizer``: the tokenizer that a model's files ask for."""

from __future__ import annotations

import os
from typing import Any

from transept.errors import InputTypeError, UnsupportedError, nearest
from transept.files import load_object
from transept.preprocess.settings import split_options
from transept.preprocess.text import classes
from transept.preprocess.text.loading import CONFIG_NAME, TOKENIZER_NAME
from transept.preprocess.text.tokenizer import Tokenizer
from transept.source import Source, model_name

CLASSES = {name: kind for name, kind in vars(classes).items() if isinstance(kind, type) and issubclass(kind, Tokenizer)}
"""The classes that a file can name. No other name is ever imported."""
CTC = "Wav2Vec2CTCTokenizer"
MODEL_TYPES = {
    **dict.fromkeys(("bert", "ernie", "convbert", "layoutlm", "mobilebert", "squeezebert", "visual_bert"), "BertTokenizer"),
    **dict.fromkeys(("distilbert",), "DistilBertTokenizer"),
    **dict.fromkeys(("electra",), "ElectraTokenizer"),
    **dict.fromkeys(("mpnet",), "MPNetTokenizer"),
    **dict.fromkeys(("roberta", "longformer", "data2vec-text", "roberta-prelayernorm", "led"), "RobertaTokenizer"),
    **dict.fromkeys(("bart",), "BartTokenizer"),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj", "gpt_neo", "opt", "starcoder2"), "GPT2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "mamba", "olmo"), "GPTNeoXTokenizer"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("clip", "clipseg", "clip_text_model"), "CLIPTokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("llama", "mistral", "mixtral"), "LlamaTokenizer"),
    **dict.fromkeys(("t5", "mt5", "longt5", "switch_transformers"), "T5Tokenizer"),
    **dict.fromkeys(("reformer",), "ReformerTokenizer"),
    **dict.fromkeys(("mbart",), "MBartTokenizer"),
    **dict.fromkeys(("marian",), "MarianTokenizer"),
    **dict.fromkeys(("albert",), "AlbertTokenizer"),
    **dict.fromkeys(("xlnet",), "XLNetTokenizer"),
    **dict.fromkeys(("xlm-roberta", "xlm-roberta-xl", "xmod"), "XLMRobertaTokenizer"),
    **dict.fromkeys(("camembert",), "CamembertTokenizer"),
    **dict.fromkeys(("barthez",), "BarthezTokenizer"),
    **dict.fromkeys(("deberta-v2",), "DebertaV2Tokenizer"),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), "PreTrainedTokenizerFast"),
    **dict.fromkeys(("wav2vec2", "hubert", "wavlm", "data2vec-audio", "wav2vec2-conformer"), CTC),
}
"""``model_type`` of a ``config.json`` -> name of its tokenizer's class, for files that name none."""


class AutoTokenizer:
    """Loads the tokenizer of a model, whatever its family."""

    def __init__(self) -> None:
        raise InputTypeError("AutoTokenizer is not made by calling it.", hint="Use AutoTokenizer.from_pretrained().")

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike[str], **options: Any) -> Any:
        """Load a tokenizer as an instance of the class that its files name.

        ``tokenizer_config.json`` is asked first, then the ``model_type`` of ``config.json``. Where neither names a
        class that is here, a ``tokenizer.json`` is enough: it says all that there is to say of ids. Code that comes
        with a model (``auto_map``) is never run.

        Args:
            name_or_path: a directory, a repository of the hub, or a vocabulary file.
            options: as for :meth:`Tokenizer.from_pretrained`.

        Raises:
            UnsupportedError: the class is none of ours and there is no ``tokenizer.json``.
            FileError, FormatError, InputError: see :meth:`Tokenizer.from_pretrained`.
        """
        if os.path.isfile(model_name(name_or_path)):
            return Tokenizer.from_pretrained(name_or_path, **options)
        source = Source(model_name(name_or_path), **split_options(options)[0])
        return _class_of(source).from_pretrained(name_or_path, **options)


def _class_of(source: Source) -> Any:
    """The class that a model's files name."""
    config, model = _object(source, CONFIG_NAME), _object(source, "config.json")
    stated = config.get("tokenizer_class") or model.get("tokenizer_class")
    model_type = model.get("model_type")
    name = stated if stated in (*CLASSES, CTC) else MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None
    if name == CTC:
        from transept.preprocess.audio.ctc_tokenizer import Wav2Vec2CTCTokenizer

        return Wav2Vec2CTCTokenizer
    if name is not None:
        return CLASSES[name]
    if source.find(TOKENIZER_NAME) is not None or (stated is None and not _has_code(config)):
        return Tokenizer
    raise _unsupported(source, stated, config)


def _object(source: Source, name: str) -> dict[str, Any]:
    path = source.find(name)
    return {} if path is None else load_object(path)


def _has_code(config: dict[str, Any]) -> bool:
    code = config.get("auto_map")
    return bool(code.get("AutoTokenizer")) if isinstance(code, dict) else bool(code)


def _unsupported(source: Source, stated: Any, config: dict[str, Any]) -> UnsupportedError:
    if _has_code(config):
        return UnsupportedError(
            "its tokenizer is code in the repository, which is never run, and it has no tokenizer.json.",
            path=source.name,
            hint="Save it with that code as a tokenizer.json, and load from there.",
        )
    return UnsupportedError(
        f"the tokenizer class {stated!r} is not supported, and there is no tokenizer.json.",
        path=source.name,
        hint=nearest(str(stated), CLASSES),
    )
