"""What the machine has installed, and of which version, by the reference's functions, and one seed for all generators."""

from __future__ import annotations

import importlib
import os
import random
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from transept.errors import InputError, VersionError

# The version of the reference whose names, arguments and numbers these are.
REFERENCE_VERSION = "5.23.0"
_AVAILABLE = re.compile(r"is_(\w+)_available")
# What is imported under another name than the function that looks for it has.
_IMPORTED = {
    "flash_attn_2": "flash_attn",
    "flash_attn_3": "flash_attn_interface",
    "jinja": "jinja2",
    "levenshtein": "Levenshtein",
    "optimum_quanto": "optimum.quanto",
    "protobuf": "google.protobuf",
    "torchvision_v2": "torchvision",
    "vision": "PIL",
}
# Devices that PyTorch has itself, or with a package.
_DEVICES = ("cuda", "hpu", "mlu", "mps", "musa", "npu", "xpu")


@cache
def _is_installed(package: str, min_version: str = "") -> bool:
    """Whether a package can be imported, of a version that is not older."""
    from packaging.version import Version

    try:
        if find_spec(package) is None:
            return False
        return not min_version or Version(version(package.replace("_", "-"))) >= Version(min_version)
    except (ImportError, ValueError, PackageNotFoundError):
        return False


def _has_device(device: str, check_device: bool = True) -> bool:
    """Whether PyTorch knows a kind of device and, with ``check_device``, has one."""
    import torch

    module = getattr(torch, device, None)
    return module is not None and (not check_device or bool(module.is_available()))


def __getattr__(name: str) -> Any:
    """The function ``is_<package>_available`` of any package, and the text ``<PACKAGE>_IMPORT_ERROR``."""
    if name.endswith(end := "_IMPORT_ERROR"):
        package = name.removesuffix(end).lower()
        return f"{{0}} needs the package {package!r}: pip install {package}."
    if (match := _AVAILABLE.fullmatch(name)) is None:
        raise AttributeError(f"{__name__} has no name {name!r}.")
    package, device = match[1], match[1].removeprefix("torch_")
    if package.startswith("torch_") and device in _DEVICES:
        return partial(_has_device, device)
    return partial(_is_installed, _IMPORTED.get(package, package))


is_torch_available = partial(_is_installed, "torch")
is_vision_available = partial(_is_installed, "PIL")
is_tokenizers_available = partial(_is_installed, "tokenizers")
is_sentencepiece_available = partial(_is_installed, "sentencepiece")
is_accelerate_available = partial(_is_installed, "accelerate")
is_peft_available = partial(_is_installed, "peft")
is_datasets_available = partial(_is_installed, "datasets")
is_torch_cuda_available = partial(_has_device, "cuda")


def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Whether ``torch_xla`` is installed, and computes on a device of the kind that is asked for."""
    if not (installed := _is_installed("torch_xla")) or not (check_is_tpu or check_is_gpu):
        return installed
    device: str = importlib.import_module("torch_xla.runtime").device_type()
    return device == "TPU" if check_is_tpu else device in ("CUDA", "GPU")


def is_torch_bf16_gpu_available() -> bool:
    """Whether there is a GPU that computes in bfloat16."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_bf16_supported()


def is_torch_flex_attn_available() -> bool:
    """True: the PyTorch that is required has flex attention, and graphs of functions."""
    return True


is_torch_fx_available = is_torch_distributed_available = is_torch_flex_attn_available


def is_tf_available() -> bool:
    """False, as for Flax, and for services that start processes of their own: models are PyTorch's."""
    return False


is_flax_available = is_sagemaker_mp_enabled = is_sagemaker_dp_enabled = is_torch_tpu_available = is_tf_available


def is_torch_greater_or_equal(library_version: str, accept_dev: bool = False) -> bool:
    """Whether PyTorch is of that version or a newer one; with ``accept_dev`` a version before its release counts as it."""
    import torch
    from packaging.version import Version

    installed = Version(torch.__version__)
    return Version(installed.base_version if accept_dev else installed.public) >= Version(library_version)


def is_torchdynamo_compiling() -> bool:
    """Whether PyTorch is compiling what calls this."""
    import torch

    return torch.compiler.is_compiling()


def is_torch_fx_proxy(value: Any) -> bool:
    """Whether a value stands for a tensor in a graph that is being traced."""
    import torch.fx

    return isinstance(value, torch.fx.Proxy)


def is_in_notebook() -> bool:
    """Whether the program is a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def is_offline_mode() -> bool:
    """Whether ``HF_HUB_OFFLINE`` says that nothing is fetched."""
    return strtobool(os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "0")


def strtobool(val: str) -> bool:
    """Whether a word of an environment's variable means yes (``InputError``: it is no such word)."""
    word = val.lower()
    if word not in (yes := ("y", "yes", "t", "true", "on", "1")) + ("n", "no", "f", "false", "off", "0"):
        raise InputError(f"{val!r} says neither yes nor no.", hint='Use "1" or "0".')
    return word in yes


def requires_backends(obj: Any, backends: str | list[str]) -> None:
    """Raise ``VersionError`` where one of these packages is missing, which ``obj`` needs."""
    for package in [backends] if isinstance(backends, str) else backends:
        if not __getattr__(f"is_{package}_available")():
            who = getattr(obj, "__name__", type(obj).__name__)
            raise VersionError(f"{who} needs the package {package!r}.", hint=f"Install it: pip install {package}.")


def check_min_version(min_version: str) -> None:
    """Raise ``VersionError`` where a program asks for a newer reference than the one that this package speaks for."""
    from packaging.version import Version

    if Version(REFERENCE_VERSION) < Version(Version(min_version).base_version):
        message = f"this program asks for version {min_version} of the reference, and {__name__.partition('.')[0]} speaks for"
        raise VersionError(f"{message} {REFERENCE_VERSION}.", hint="Use the program's version for an earlier release.")


def require_version(requirement: str, hint: str | None = None) -> None:
    """Raise ``VersionError`` unless a package is installed whose version fits, as in ``"datasets>=2.0,<6"``."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(requirement)
    except InvalidRequirement as error:
        raise InputError(f"{requirement!r} is no requirement.", hint='Write it as "package>=1.0".') from error
    try:
        found = sys.version.partition(" ")[0] if wanted.name == "python" else version(wanted.name)
    except PackageNotFoundError as error:
        raise VersionError(f"the package {requirement!r} is not installed.", hint=hint) from error
    if not wanted.specifier.contains(found, prereleases=True):
        raise VersionError(f"{requirement} is needed, but {wanted.name} is {found}.", hint=hint)


def require_version_core(requirement: str) -> None:
    """As :func:`require_version`."""
    require_version(requirement, 'Install it: pip install -U "transept".')


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Set the seed, of 32 bits, of Python's, NumPy's and PyTorch's generators; ``deterministic`` also for the algorithms."""
    import numpy
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy.random.seed(seed)  # noqa: NPY002 (what callers draw from)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Set the seed, and let PyTorch use algorithms alone that give the same numbers again."""
    import torch

    set_seed(seed)
    names = ("CUDA_LAUNCH_BLOCKING", "FLASH_ATTENTION_DETERMINISTIC")
    os.environ |= {**dict.fromkeys(names, "1"), "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def seed_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seed a worker of a loader of one's own, by ``worker_init_fn=partial(seed_worker, num_workers=..., rank=...)``."""
    import torch

    set_seed((num_workers * rank + torch.initial_seed()) % 2**32)


def is_main_process(local_rank: int) -> bool:
    return local_rank in (-1, 0)


def copy_func(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is another object with the same code, so that its docstring can be changed."""
    from types import FunctionType

    copied: Any = FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    copied.__dict__.update(f.__dict__)
    copied.__kwdefaults__ = f.__kwdefaults__
    copied.__doc__ = f.__doc__
    return copied  # type: ignore[no-any-return]
