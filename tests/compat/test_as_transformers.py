"""Programs of the reference that are not changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import importlib.metadata
import sys

import transformers
from transformers import BertModel, TimesformerConfig
from transformers.models.bert.modeling_bert import BertForMaskedLM
from transformers.utils import check_min_version, logging

import transept

assert transformers.__version__ == importlib.metadata.version("transformers") == transept.utils.REFERENCE_VERSION
assert transept.__version__ != transformers.__version__
check_min_version("5.0.0.dev0")
assert BertModel is transept.BertModel and BertForMaskedLM is transept.BertForMaskedLM
assert transformers.utils.logging is logging and transept.models.bert.__spec__.name == "transept.models.bert"
assert not hasattr(TimesformerConfig, "model_type") and not isinstance(transept.BertConfig(), TimesformerConfig)
try:
    TimesformerConfig()
except ValueError as error:
    assert "Its family is not here" in str(error)
try:
    import transformers.nonsense
except ModuleNotFoundError:
    print(sys.argv[1:], __name__)
"""


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


def test_a_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for program in (["program.py"], ["-m", "program"]):
        done = run("-m", "transept", "--as-transformers", *program, "--steps", "3", cwd=tmp_path)
        assert done.stdout.strip() == "['--steps', '3'] __main__", done.stderr


def test_a_first_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"import transept.as_transformers\n{PROGRAM}")
    done = run("program.py", cwd=tmp_path)
    assert done.stdout.strip() == "[] __main__", done.stderr


def test_never_by_itself_and_never_too_late() -> None:
    code = "import sys, types, transept\nassert not any(type(f).__name__ == 'AsTransformers' for f in sys.meta_path)\n"
    code += "sys.modules['transformers'] = types.ModuleType('transformers')\nimport transept.as_transformers"
    done = run("-c", code)
    assert done.returncode == 1
    assert "transformers was imported before" in done.stderr


def test_a_command_without_a_program_and_the_usual_command() -> None:
    assert "names no program" in run("-m", "transept", "--as-transformers").stderr
    assert run("-m", "transept", "--version").stdout.startswith("transept ")
