"""Writing a model: safetensors, in shards above a size, with an index, under the checkpoint's names.

Everything is written beside the target and put in place at the end, so that a crash leaves the old directory whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from transept.checkpoint.store import WEIGHTS_NAME
from transept.errors import InputError
from transept.files import dump_json, replace_directory


def save_checkpoint(
    state: Mapping[str, Tensor],
    texts: Mapping[str, str],
    directory: str | os.PathLike[str],
    *,
    max_shard_size: int | str = "50GB",
    variant: str | None = None,
) -> None:
    """Write weights and small text files into a directory, in place of earlier weights of the same variant.

    Args:
        state: tensors under the checkpoint's names; tensors that are the same object are written once, the first name.
        texts: file names and contents, such as ``config.json``.
        directory: where to; made where needed.
        max_shard_size: bytes, or a size such as ``"5GB"``.
        variant: part of the weights' file names, such as ``fp16``.

    Raises:
        InputError: a shard size that cannot be read, or a variant that is not a plain word.
        FileError: the directory cannot be written.
    """
    if variant is not None and not variant.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"`variant` must be a plain word, but is {variant!r}.")
    name = WEIGHTS_NAME if variant is None else f"model.{variant}.safetensors"
    pattern = name.replace(".safetensors", "{suffix}.safetensors")
    try:
        split = split_torch_state_dict_into_shards(dict(state), filename_pattern=pattern, max_shard_size=max_shard_size)
    except ValueError as error:
        raise InputError(f"`max_shard_size` must be bytes or a size such as '5GB', but is {max_shard_size!r}.") from error
    index = f"{WEIGHTS_NAME}.index.json" if variant is None else f"{WEIGHTS_NAME}.index.{variant}.json"
    stem = name.removesuffix(".safetensors")

    def stale(file: str) -> bool:  # of an earlier save; a reader would find both
        shard = file.startswith(f"{stem}-") and file.endswith(".safetensors")
        return shard or file in (name, index)

    with replace_directory(directory, drop=stale) as stage:
        for file, names in split.filename_to_tensors.items():
            save_file({key: state[key].contiguous() for key in names}, stage / file, metadata={"format": "pt"})
        if split.is_sharded:
            document = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            (stage / index).write_text(dump_json(document), encoding="utf-8")
        for file, text in texts.items():
            (stage / file).write_text(text, encoding="utf-8")
