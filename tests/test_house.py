"""The rules of the house, read from the source: what is banned, doors that exist once, and budgets that keep it livable."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import transept
from transept import errors

SOURCE = Path(transept.__file__).parent
FAMILIES = sorted(path.stem for path in (SOURCE / "models").glob("[a-z]*"))  # files and folders
OURS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.TranseptError)}
BUILTIN = {name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)}


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax of every module, by its path below the package."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[str, ast.AST]]:
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield module, node


@cache
def calls() -> list[tuple[str, ast.Call, str]]:
    """Every call with its module and the dotted name that it calls."""
    return [(module, node, dotted(node.func)) for module, node in nodes(ast.Call) if isinstance(node, ast.Call)]


def given(call: ast.Call, name: str) -> object:
    """The constant value of a keyword argument, or `None`."""
    return next((k.value.value for k in call.keywords if k.arg == name and isinstance(k.value, ast.Constant)), None)


# --- banned ----------------------------------------------------------------------------------------------------------------

BANNED_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "tarfile", "transformers"}
# Its one door, where a loader of plain values alone is made of the safe one.
YAML = "storage/yaml_file.py"
BANNED_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "tempfile.mktemp",
    "input",
    "breakpoint",
    "print",
}


def test_banned_modules_are_imported_nowhere() -> None:
    found = []
    for module, node in nodes((ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
        allowed = {"yaml"} if module == YAML else set()
        found += [f"{module}: {name}" for name in names if name.split(".")[0] in BANNED_MODULES - allowed]
    assert not found


def test_banned_calls_are_made_nowhere() -> None:
    found = [
        f"{module}:{call.lineno} {name}"
        for module, call, name in calls()
        if name in BANNED_CALLS and not (name in ("print", "input") and module.startswith("cli/"))
    ]
    assert not found


def test_nothing_is_unpickled_but_weights_alone() -> None:
    found = []
    for module, call, name in calls():
        if name == "torch.load" and (given(call, "weights_only") is not True or module != "checkpoint/store.py"):
            found.append(f"{module}:{call.lineno} {name}")
        if name in ("np.load", "numpy.load") and given(call, "allow_pickle") is not False:
            found.append(f"{module}:{call.lineno} {name}")
        if any(keyword.arg == "shell" for keyword in call.keywords):
            found.append(f"{module}:{call.lineno} shell")
    assert not found


def test_what_is_imported_by_a_computed_name_is_one_of_ours() -> None:
    """One place imports by a name that can come from a file, after checking it against the files that exist."""
    allowed = {"__init__.py", "core/auto.py", "pipelines/__init__.py"}
    allowed.add("core/loading.py")  # the room above it that several processes need
    allowed |= {"compat/names.py", "compat/as_transformers.py"}  # by a table in the source, after modules of ours
    allowed.add("models/__init__.py")  # a family's file
    allowed.add("environment/packages.py")  # an optional package, by its name in the source
    allowed.add("training/recipes/__init__.py")  # by a table in its source
    allowed.add("training/optim/optimizers.py")  # by a table in its source
    allowed.add("preprocess/auto.py")  # by tables in its source
    allowed.add("preprocess/features.py")  # Pillow and its like, by names in the source
    found = {module for module, _, name in calls() if name in ("importlib.import_module", "import_module", "runpy.run_path")}
    assert found <= allowed


# --- doors -----------------------------------------------------------------------------------------------------------------

DOORS: dict[str, set[str]] = {
    "json.load": set(),
    # Beside the door: what the tokenizer library itself wrote, a value on the user's command line, and what a table wrote.
    "json.loads": {"storage/files.py", "preprocess/text/backend.py", "cli/arguments.py"},
    "safe_open": {"checkpoint/store.py"},
    "load_file": set(),
    "save_file": {"checkpoint/store.py"},
    "os.path.join": set(),
    "tempfile.mkstemp": set(),
    "jinja2.Environment": set(),
    "Environment": set(),
    "hf_hub_download": {"storage/source.py"},
    "snapshot_download": set(),
    "urllib.request.urlopen": set(),
    "requests.get": set(),
    "yaml.load": set(),
    "load_all": set(),
    "unsafe_load": set(),
    "full_load": set(),
    "httpx.get": set(),
    "os.umask": set(),
}


@pytest.mark.parametrize("door", DOORS)
def test_each_door_exists_once(door: str) -> None:
    found = {module for module, _, name in calls() if name == door or name.endswith(f".{door}")}
    assert found <= DOORS[door]


# Who may open a file itself, and why.
OPENS = {
    "storage/files.py": "the door",
    "__init__.py": "the package's own stub",
    "cli/installation.py": "what the system tells of the processor",
    "environment/tiles.py": "what the system tells of the processor",
    "storage/directory.py": "locks and waits for directories that it made",
    "batch/output_file.py": "the door for files that grow",
    "tables/arrow.py": "the nameless file of another process",
    "batch/parts.py": "the claim of a part, where the system cannot lock",
    "batch/inputs.py": "rows, which may come from standard input",
    "checkpoint/writing.py": "the writer of files of tensors",
    "storage/source.py": "the cache's note of a branch's commit",
    "pipelines/components.py": "the digest of an installed package's weights",
    "preprocess/media.py": "the door for pictures and sounds",
}


def test_files_are_opened_by_their_door_only() -> None:
    readers = {"open", "os.open", "io.open", "read_text", "read_bytes", "write_text", "write_bytes", "fromfile", "memmap"}
    found = set()
    for module, call, name in calls():
        last = name.rpartition(".")[2] if name else getattr(call.func, "attr", "")
        direct = name in ("open", "os.open", "io.open")
        method = isinstance(call.func, ast.Attribute) and last in readers - {"open"}
        if (direct or method) and module not in OPENS and not module.startswith("cli/"):
            found.add(f"{module}:{call.lineno} {name or last}")
    assert not found


def test_names_out_of_files_are_joined_safely() -> None:
    """Only the doors build a path from a source's directory."""
    found = []
    for module, node in nodes(ast.BinOp):
        assert isinstance(node, ast.BinOp)
        joined = isinstance(node.op, ast.Div) and dotted(node.left).endswith("directory")
        if joined and isinstance(node.right, ast.Name) and not node.right.id.isupper():
            found.append(f"{module}:{node.lineno}")
    assert not [place for place in found if not place.startswith(("storage/source.py", "storage/directory.py"))]


# --- errors ----------------------------------------------------------------------------------------------------------------

# What Python's own protocols ask of a method.
PROTOCOL = {
    "__getattr__": "AttributeError",
    "__getitem__": "KeyError",
    "__delitem__": "KeyError",
    "__missing__": "KeyError",
} | {"__next__": "StopIteration", "__anext__": "StopAsyncIteration"}
# Built-in errors that tell our own developers of a mistake when a class is made, or that a library's hook asks for.
RAISES = {
    "checkpoint/keys.py": {"ValueError"},
    "__init__.py": {"AttributeError"},
    "compat/names.py": {"AttributeError", "ImportError", "ModuleNotFoundError"},  # what the import system expects
}


def raised(function: ast.AST) -> Iterator[tuple[ast.Raise, str]]:
    """Names of the errors that leave a piece of code: not those that it catches itself."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield node, dotted(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        caught = {dotted(name) for h in getattr(node, "handlers", ()) if h.type for name in _kinds(h.type)}
        yield from (found for found in raised(node) if found[1] not in caught)


def _kinds(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def test_errors_are_ours() -> None:
    found = []
    for module, tree in trees().items():
        allowed = RAISES.get(module, set())
        for function in ast.walk(tree):
            if isinstance(function, Function) and function.name in PROTOCOL:
                allowed = allowed | {PROTOCOL[function.name]}
        found += [
            f"{module}:{node.lineno} {name}"
            for node, name in raised(tree)
            if name in BUILTIN - {"NotImplementedError"} and name not in allowed
        ]
    assert not found


def test_no_error_is_swallowed() -> None:
    """A bare `except`, and an `except Exception` that does not raise, hide what went wrong."""
    found = []
    for module, node in nodes(ast.ExceptHandler):
        assert isinstance(node, ast.ExceptHandler)
        broad = node.type is None or dotted(node.type) in ("Exception", "BaseException")
        if broad and not any(isinstance(child, ast.Raise) for child in ast.walk(node)):
            found.append(f"{module}:{node.lineno}")
    assert not [place for place in found if place.rpartition(":")[0] not in SWALLOWS]


# Modules that hand an error on as a value, and why.
SWALLOWS = {
    "serving/engine/engine.py": "one request fails and is told of it, and others go on",
    "serving/doors.py": "a request fails and is told of it, and the kind and the place of the error are logged",
    "serving/worker.py": "what waits for a thread that has failed is told so, and the server is no longer healthy",
    "serving/engine/ranks.py": "the first process has the same error, and answers for it",
    "serving/engine/sampler.py": "the same, where its scores cannot be processed",
    "cli/installation.py": "a check that fails is a line of its report",
    "cli/main.py": "the last line of defence of a program",
    "preprocess/media.py": "an unreadable Exif block tells no orientation",
    "training/files.py": "arguments that cannot be pickled are told of, and the model is saved",
    "cli/parallel_trial.py": "what a machine cannot do is told, and the rest is tried",
}


# --- names and places ------------------------------------------------------------------------------------------------------


def test_a_familys_name_stands_in_its_own_room_only() -> None:
    rooms = ("models/", "preprocess/")
    found = []
    for module, tree in trees().items():
        if module.startswith(rooms):
            continue
        for node in ast.walk(tree):
            words = {getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", ""), getattr(node, "arg", "")}
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 40:
                words |= set(node.value.lower().replace("-", "_").split())
            if named := {str(word).lower() for word in words if word} & set(FAMILIES):
                found.append(f"{module}:{getattr(node, 'lineno', 0)} {sorted(named)}")
    assert not [place for place in found if place.rpartition(":")[0] not in NAMES_FAMILIES]


# Modules outside the rooms of families that may name one, and why.
NAMES_FAMILIES: dict[str, str] = {
    "training/recipes/__init__.py": "the task of an autoencoder has its name",
    "training/recipes/media.py": "the task of an autoencoder has its name",
}


def test_no_room_is_called_utils() -> None:
    assert not [path for path in SOURCE.rglob("*") if path.stem in ("utils", "util", "helpers", "common", "misc")]


# --- circles ---------------------------------------------------------------------------------------------------------------

# Files that still import each other, and what parts them. Every group must still be there: one that is gone leaves this list.
CIRCLES: dict[frozenset[str], str] = {}


def imports() -> dict[str, set[str]]:
    """Which modules each one imports: at its top, in functions and for types alone."""
    places = {
        ".".join(("transept", *Path(module).with_suffix("").parts)).removesuffix(".__init__"): module for module in trees()
    }
    found: dict[str, set[str]] = {module: set() for module in trees()}
    for module, node in nodes((ast.Import, ast.ImportFrom)):
        for alias in getattr(node, "names", ()):
            owner = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
            target = places.get(f"{owner}.{alias.name}") or places.get(owner)
            if target is not None and target != module:
                found[module].add(target)
    return found


def circles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of which each member leads to every other."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        seen, rest = set[str](), [*edges[start]]
        while rest:
            if (place := rest.pop()) not in seen:
                seen.add(place)
                rest += edges[place]
        reached[start] = seen
    return {frozenset(o for o in reached[one] if one in reached[o]) for one in edges if one in reached[one]}


def test_files_do_not_import_each_other() -> None:
    assert {", ".join(sorted(group)) for group in circles(imports())} == {", ".join(sorted(group)) for group in CIRCLES}


def test_circles_are_seen() -> None:
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"f"}, "f": {"e"}, "g": {"a"}}
    assert circles(edges) == {frozenset("abc"), frozenset("ef")}
    assert "errors.py" in imports()["storage/files.py"]


# --- budgets ---------------------------------------------------------------------------------------------------------------

MAX_MODULE_LINES, MAX_FUNCTION_LINES, MAX_ARGUMENTS = 400, 40, 12
# Longer than the budget, and why.
LONG_MODULES: dict[str, str] = {}
# Constructors whose many arguments are the reference's, which callers pass by place and by name.
REFERENCE_SIGNATURES = {"training/optim/greedy.py", "training/trainer_base.py"}


def test_modules_stay_short() -> None:
    lines = {module: (SOURCE / module).read_text(encoding="utf-8").count("\n") for module in trees()}
    assert not {module: count for module, count in lines.items() if count > MAX_MODULE_LINES and module not in LONG_MODULES}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_lines(function: Function) -> int:
    """Lines of code of a body: without the docstring, blank lines and comments."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return len({line for statement in body for node in ast.walk(statement) for line in _lines(node)})


def _lines(node: ast.AST) -> range:
    if not hasattr(node, "lineno") or (isinstance(node, ast.stmt) and hasattr(node, "body")):
        return range(0)
    return range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)


def functions() -> Iterator[tuple[str, Function]]:
    for module, node in nodes((ast.FunctionDef, ast.AsyncFunctionDef)):
        assert isinstance(node, Function)
        yield module, node


def test_functions_stay_short() -> None:
    found = {f"{module}:{f.lineno} {f.name}": body_lines(f) for module, f in functions()}
    assert not {place: count for place, count in found.items() if count > MAX_FUNCTION_LINES}


def test_constructors_take_few_arguments() -> None:
    def count(function: Function) -> int:
        arguments = function.args
        return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1

    found = {f"{module}:{f.lineno}": count(f) for module, f in functions() if f.name == "__init__"}
    allowed = tuple(f"{module}:" for module in REFERENCE_SIGNATURES)
    assert not {place: n for place, n in found.items() if n > MAX_ARGUMENTS and not place.startswith(allowed)}


def test_no_work_is_left_to_do() -> None:
    marks = ("TODO", "FIXME", "XXX", "HACK")
    texts: Callable[[str], str] = lambda module: (SOURCE / module).read_text(encoding="utf-8")  # noqa: E731
    assert not [module for module in trees() if any(mark in texts(module) for mark in marks)]


def test_every_reason_is_still_needed() -> None:
    """Lists of exceptions name modules that exist."""
    listed = {
        *OPENS,
        *RAISES,
        *SWALLOWS,
        *NAMES_FAMILIES,
        *LONG_MODULES,
        *REFERENCE_SIGNATURES,
        *(m for door in DOORS.values() for m in door),
    }
    assert listed <= trees().keys()
