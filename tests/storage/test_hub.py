"""Fetching from and publishing to a hub on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import constants, try_to_load_from_cache

import transept
from tests.hub_server import HubServer
from transept.config.model import Config
from transept.errors import FileError, FormatError, InputError, TranseptError, TranseptWarning
from transept.models.bert import BertConfig, BertForSequenceClassification, BertModel
from transept.storage import source as hub_module
from transept.storage.source import Source

# How huggingface_hub uploads large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

SMALL = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
VOCABULARY = {token: index for index, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one"])}
CONFIG = b'{"model_type": "bert", "vocab_size": 30}'


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a small model."""
    directory = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    BertModel(BertConfig(**SMALL)).save_pretrained(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(autouse=True)
def reference_asks_this_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference keeps its client, with the address of the hub, from the first test on."""
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub tries five times, a second and more apart."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)


def fetches(server: HubServer) -> list[str]:
    return [request for request in server.requests if "/resolve/" in request]


def test_a_cold_download_and_a_warm_load_without_any_request(hub: HubServer, saved: dict[str, bytes]) -> None:
    hub.add("me/bert", saved)
    cold = BertModel.from_pretrained("me/bert")
    assert fetches(hub)
    hub.requests.clear()
    warm = BertModel.from_pretrained("me/bert")
    assert hub.requests == []
    for name, tensor in cold.state_dict().items():
        assert torch.equal(tensor, warm.state_dict()[name])


def test_a_missing_file_is_asked_for_once(hub: HubServer, saved: dict[str, bytes]) -> None:
    hub.add("me/bert", saved)
    assert Source("me/bert").find("generation_config.json") is None
    assert len(fetches(hub)) == 1
    hub.requests.clear()
    assert Source("me/bert").find("generation_config.json") is None
    assert hub.requests == []


@pytest.mark.parametrize("revision", [None, "main", "v1", "refs/pr/1", "local", "a" * 40, "b" * 40, "empty", "up", "gone"])
def test_the_cache_is_read_as_huggingface_hub_reads_it(
    hub_cache: Path, revision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Path("the hub is asked")
    monkeypatch.setattr(hub_module, "_downloaded", lambda *_: asked)
    folder = hub_cache / "models--me--bert"
    first, second = "a" * 40, "b" * 40
    for name, commit in {"main": first, "v1": second, "refs/pr/1": first, "local": "mine", "empty": "", "up": ".."}.items():
        (folder / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / name).write_text(commit)
    for name in (f"{first}/config.json", f"{first}/inner/config.json", "mine/config.json", "config.json", "gone/config.json"):
        (folder / "snapshots" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "snapshots" / name).write_text(name)
    (folder / ".no_exist" / second).mkdir(parents=True)
    (folder / ".no_exist" / second / "config.json").touch()
    (folder / "snapshots" / first / "broken.json").symlink_to(folder / "blobs" / "nothing")
    for filename in ("config.json", "inner/config.json", "broken.json", "other.json"):
        expected = try_to_load_from_cache("me/bert", filename, cache_dir=hub_cache, revision=revision)
        found = hub_module.fetch(Source("me/bert", revision=revision), filename)
        assert found == (asked if expected is None else Path(expected) if isinstance(expected, str) else None)


def test_later_files_come_from_the_commit_of_the_cached_ones(hub: HubServer) -> None:
    repository = hub.add("me/bert", {"config.json": CONFIG, "other.json": b"old"})
    Source("me/bert").need("config.json")
    repository.commit({"config.json": b"{}", "other.json": b"new"})
    assert Source("me/bert").need("other.json").read_bytes() == b"old"
    assert Source("me/bert", force_download=True).need("other.json").read_bytes() == b"new"
    assert Source("me/bert").need("config.json").read_bytes() == b"{}"


def test_a_commit_that_the_hub_has_no_more_is_an_error(hub: HubServer) -> None:
    repository = hub.add("me/bert", {"config.json": CONFIG})
    Source("me/bert").need("config.json")
    repository.commits.clear()
    repository.commit({"config.json": CONFIG, "other.json": b""})
    with pytest.raises(FileError, match=r"has no more.*force_download=True"):
        Source("me/bert").need("other.json")


def test_branches_commits_and_subfolders(hub: HubServer) -> None:
    repository = hub.add("me/bert", {"config.json": b"main", "inner/config.json": b"inner"})
    first = repository.branches["main"]
    repository.commit({"config.json": b"branch"}, branch="refs/pr/1")
    assert Source("me/bert", revision="refs/pr/1").need("config.json").read_bytes() == b"branch"
    assert Source("me/bert", revision=first).need("config.json").read_bytes() == b"main"
    assert Source("me/bert", subfolder="inner").need("config.json").read_bytes() == b"inner"
    assert Source("me/bert", revision=None, subfolder=None).need("config.json").read_bytes() == b"main"
    hub.requests.clear()
    assert Source("me/bert", revision=first).find("nothing.json") is None
    assert Source("me/bert", revision=first).find("nothing.json") is None
    assert len(hub.requests) == 1


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a\\b", "C:x", "", "x\0", "."])
def test_names_cannot_leave_the_repository(hub: HubServer, name: str) -> None:
    hub.add("me/bert", {"config.json": CONFIG})
    with pytest.raises(FormatError):
        Source("me/bert").find(name)
    for option in ("subfolder", "revision"):
        if name:
            with pytest.raises(InputError, match=option):
                Source("me/bert", **{option: name})
    assert hub.requests == []


def test_chat_templates_come_from_the_hub(hub: HubServer, tmp_path: Path) -> None:
    made = transept.BertTokenizer(VOCABULARY, chat_template={"default": "{{ a }}", "tool_use": "{{ b }}", "rag": "{{ c }}"})
    made.save_pretrained(tmp_path)
    files = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    repository = hub.add("me/chat", files)
    hub.add("me/inner", {f"a/{name}": content for name, content in files.items()})
    hub.add("me/plain", {name: content for name, content in files.items() if not name.endswith(".jinja")})
    made.push_to_hub("me/pushed", token=hub.valid_token)
    reference = transformers.AutoTokenizer.from_pretrained("me/chat", cache_dir=tmp_path / "reference").chat_template
    assert reference == made.chat_template
    cases = [("me/chat", {}), ("me/inner", {"subfolder": "a"}), ("me/pushed", {}), ("me/plain", {})]
    for name, options in cases:
        hub.requests.clear()
        for switches in ({}, {}, {"local_files_only": True}):
            again = transept.AutoTokenizer.from_pretrained(name, **options, **switches)
            assert again.chat_template == (None if name == "me/plain" else made.chat_template)
        assert len(hub.requests) == len(set(hub.requests))
        assert sum("/tree/" in request for request in hub.requests) == 1
    repository.commit(files | {"additional_chat_templates/tool_use.jinja": b"new", "additional_chat_templates/a/b.jinja": b"x"})
    for options in ({"force_download": True}, {}):
        again = transept.AutoTokenizer.from_pretrained("me/chat", **options)
        assert again.chat_template == made.chat_template | {"tool_use": "new"}


def test_an_interrupted_download_loses_no_template(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a.jinja": b"a", "b.jinja": b"b"}
    hub.add("me/chat", {"config.json": CONFIG} | {f"folder/{name}": content for name, content in files.items()})
    source = Source("me/chat")
    source.need("config.json")
    fetch = hub_module.fetch

    def interrupted(source: Source, name: str) -> Path | None:
        if name == "folder/b.jinja":
            raise KeyboardInterrupt
        return fetch(source, name)

    with monkeypatch.context() as patch:
        patch.setattr(hub_module, "fetch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            source.find_all("folder", ".jinja")
    assert [path.name for path in Source("me/chat", local_files_only=True).find_all("folder", ".jinja")] == ["a.jinja"]
    assert {path.name: path.read_bytes() for path in source.find_all("folder", ".jinja")} == files


def test_folders_that_cannot_be_listed(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("me/bert", {"config.json": CONFIG} | {f"many/{index}.jinja": b"" for index in range(5)})
    assert Source("me/bert").find_all("none", ".jinja") == []
    monkeypatch.setattr(hub_module, "MAX_LISTED", 4)
    with pytest.raises(FileError, match="more than 4 files"):
        Source("me/bert").find_all("many", ".jinja")
    with pytest.raises(FileError, match="no such repository"):
        Source("me/nothing").find_all("many", ".jinja")
    with pytest.raises(FileError, match="no revision 'v9'"):
        Source("me/bert", revision="v9").find_all("many", ".jinja")
    with pytest.raises(FormatError):
        Source("me/bert").find_all("../many", ".jinja")
    assert Source("me/nothing", local_files_only=True).find_all("many", ".jinja") == []


def test_shards_in_a_subfolder(hub: HubServer, tmp_path: Path) -> None:
    model = BertModel(BertConfig(**SMALL))
    model.save_pretrained(tmp_path / "saved", max_shard_size=2000, variant="fp16")
    hub.add("me/bert", {f"a/b/{path.name}": path.read_bytes() for path in (tmp_path / "saved").iterdir()})
    for _ in range(2):
        again = BertModel.from_pretrained("me/bert", subfolder="a/b", variant="fp16")
        assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
        assert len(hub.requests) == len(set(hub.requests))
    with pytest.raises(FileError, match=r"'a/b/model\.safetensors' is not in the repository.*leave `variant` out|'a/b/model"):
        BertModel.from_pretrained("me/bert", subfolder="a/b")


def test_another_cache(hub: HubServer, tmp_path: Path) -> None:
    hub.add("me/bert", {"config.json": CONFIG})
    path = Source("me/bert", cache_dir=tmp_path / "mine").need("config.json")
    assert path.is_relative_to(tmp_path / "mine")
    hub.requests.clear()
    assert Source("me/bert", cache_dir=tmp_path / "mine", local_files_only=True).need("config.json") == path
    assert hub.requests == []


def test_offline_with_a_warm_cache(hub: HubServer, saved: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("me/bert", saved)
    BertModel.from_pretrained("me/bert")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    BertModel.from_pretrained("me/bert")
    assert Source("me/bert").find("never_asked_for.json") is None
    assert hub.requests == []


@pytest.mark.parametrize("local", [False, True])
def test_offline_with_a_cold_cache_names_file_cache_and_switch(
    hub: HubServer, hub_cache: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", not local)
    with pytest.raises(FileError) as caught:
        BertModel.from_pretrained("me/bert", local_files_only=local)
    for part in ("config.json", str(hub_cache), "local_files_only=True" if local else "HF_HUB_OFFLINE=1", "me/bert"):
        assert part in str(caught.value)
    assert hub.requests == []


def test_offline_without_the_weights(hub: HubServer, saved: dict[str, bytes], hub_cache: Path) -> None:
    hub.add("me/bert", saved)
    Config.from_pretrained("me/bert")
    with pytest.raises(FileError, match=r"model\.safetensors.*not in the cache.*local_files_only") as caught:
        BertModel.from_pretrained("me/bert", local_files_only=True)
    assert str(hub_cache) in str(caught.value)
    with pytest.raises(FileError, match="force_download"):
        BertModel.from_pretrained("me/bert", local_files_only=True, force_download=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./model", "looks like a path"),
        ("../x", "looks like a path"),
        ("/nowhere/model", "looks like a path"),
        ("~/model", "looks like a path"),
        ("a/b/c", "looks like a path"),
        ("model/", "looks like a path"),
        ("C:\\model", "looks like a path"),
        ("me/be rt", "repository id"),
        ("me--x/bert", "repository id"),
        ("me/" + "x" * 96, "repository id"),
        ("me/bert.git", "repository id"),
        ("héllo", "repository id"),
    ],
)
def test_what_is_no_repository_id(hub: HubServer, name: str, said: str) -> None:
    with pytest.raises(FileError, match=said) as caught:
        BertModel.from_pretrained(name)
    assert name in str(caught.value)
    assert hub.requests == []


def test_a_file_in_place_of_a_model(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(FileError, match=r"is a file.*Pass its directory"):
        Source(str(tmp_path / "model.safetensors")).find("config.json")


def test_what_the_hub_refuses(hub: HubServer) -> None:
    hub.add("me/private", {"config.json": CONFIG}, private=True)
    hub.add("me/gated", {"config.json": CONFIG}, gated=True)
    hub.add("me/bert", {"config.json": CONFIG})
    for source, said in [
        (Source("me/nothing"), "no such repository.*token"),
        (Source("me/private"), "no such repository.*token"),
        (Source("me/gated"), "gated.*Ask for access"),
        (Source("me/bert", revision="v9"), "no revision 'v9'"),
        (Source("me/bert", token="hf_wrong"), "does not accept the token"),
        (Source("me/bert", token=True), "token"),
    ]:
        with pytest.raises(FileError, match=said) as caught:
            source.find("config.json")
        assert "config.json" in str(caught.value)
        assert source.name in str(caught.value)
    assert Source("me/private", token=hub.valid_token).find("config.json") is not None
    assert Source("me/gated", token=hub.valid_token).find("config.json") is not None


@pytest.mark.usefixtures("no_waiting")
def test_a_hub_that_fails(hub: HubServer) -> None:
    for status, said in [(503, "status 503"), (429, "too many"), (403, "does not allow"), (418, "status 418")]:
        hub.fail_with = status
        with pytest.raises(FileError, match=said):
            Source("me/bert").find("config.json")


@pytest.mark.usefixtures("hub_cache", "no_waiting")
def test_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://user:secret@127.0.0.1:9")
    template = "http://user:secret@127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    with pytest.raises(FileError, match=r"127\.0\.0\.1 cannot be reached.*HF_HUB_OFFLINE") as caught:
        Source("me/bert").find("config.json")
    assert "secret" not in str(caught.value)


def test_a_cache_that_cannot_be_written(hub: HubServer, tmp_path: Path) -> None:
    hub.add("me/bert", {"config.json": CONFIG})
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="stored"):
        Source("me/bert", cache_dir=tmp_path / "file" / "cache").find("config.json")


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("given", ["argument", "environment"])
def test_the_token_is_in_no_message(hub: HubServer, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    canary = "canary-7d1f0a" if given == "argument" else "hf_canary7d1f0a"
    if given == "environment":
        monkeypatch.setenv("HF_TOKEN", canary)
    source = Source("me/bert", token=canary if given == "argument" else None)
    assert canary not in repr(source)
    hub.echo = True
    model = BertModel(BertConfig(**SMALL))
    for status in (400, 401, 403, 404, 409, 418, 429, 500, 503):
        hub.fail_with = status
        for action in (lambda: source.find("config.json"), lambda: model.push_to_hub("me/bert", token=source.token)):
            with pytest.raises(TranseptError) as caught:
                action()
            assert canary not in "".join(traceback.format_exception(caught.value))
    assert canary in hub.tokens
    for broken in ("canary 7d1f0a", "canary\n7d1f0a", "canäry7d1f0a"):
        with pytest.raises(InputError) as refused:
            Source("me/bert", token=broken)
        assert broken not in str(refused.value)


def test_a_weight_map_cannot_name_files_outside(hub: HubServer, saved: dict[str, bytes]) -> None:
    index = b'{"weight_map": {"embeddings.word_embeddings.weight": "../../other/main/model.safetensors"}}'
    hub.add("me/bert", {"config.json": saved["config.json"], "model.safetensors.index.json": index})
    with pytest.raises(FormatError, match="leads outside"):
        BertModel.from_pretrained("me/bert")
    assert not any("other" in request for request in hub.requests)


# --- in processes of their own, as the environment is read when huggingface_hub is imported --------------------------------


def run(code: str, hub: HubServer | None = None, **environment: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    env |= {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1", "HF_ENDPOINT": "http://127.0.0.1:9"} | environment
    if hub is not None:
        env["HF_ENDPOINT"] = hub.endpoint
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


FETCH = "from transept.storage.source import Source; print(Source('me/bert').need('config.json').read_text())"


def test_the_environment_variables_are_huggingface_hubs(hub: HubServer, tmp_path: Path) -> None:
    hub.add("me/bert", {"config.json": CONFIG}, private=True)
    process = run(FETCH, hub, HF_HOME=str(tmp_path / "home"), HF_TOKEN=hub.valid_token)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.strip() == CONFIG.decode()
    assert (tmp_path / "home/hub/models--me--bert").is_dir()
    hub.requests.clear()
    process = run(FETCH, hub, HF_HUB_CACHE=str(tmp_path / "home/hub"), HF_HUB_OFFLINE="1")
    assert process.communicate()[0].strip() == CONFIG.decode()
    process = run(FETCH, hub, HF_HOME=str(tmp_path / "cold"), HF_HUB_OFFLINE="1")
    error = process.communicate()[1].splitlines()[-1]
    assert "HF_HUB_OFFLINE=1" in error
    assert str(tmp_path / "cold") in error
    assert hub.requests == []


def test_what_is_cached_is_found_without_a_client_of_http(hub: HubServer, tmp_path: Path) -> None:
    hub.add("me/bert", {"config.json": CONFIG})
    environment = {"HF_HOME": str(tmp_path)}
    run(FETCH, hub, **environment).communicate()
    heavy = "import sys; print([name for name in ('httpx', 'httpx2', 'huggingface_hub.file_download') if name in sys.modules])"
    out, err = run(f"{FETCH}\n{heavy}", hub, **environment).communicate()
    assert out.splitlines() == [CONFIG.decode(), "[]"], err


def test_killed_downloads_leave_no_corrupt_snapshot(hub: HubServer, tmp_path: Path) -> None:
    content = os.urandom(600_000)
    hub.add("me/bert", {"model.safetensors": content})
    code = "from transept.storage.source import Source; Source('me/bert').need('model.safetensors'); print('done')"
    hub.bytes_per_second = 20_000  # half a minute, so that a slow killer is still in time
    for _ in range(3):
        hub.requests.clear()
        process = run(code, hub, HF_HOME=str(tmp_path))
        while not any(request.startswith("GET") for request in hub.requests):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(0.15)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not [path for path in (tmp_path / "hub").rglob("model.safetensors") if path.exists()]
    hub.bytes_per_second = None
    process = run(code, hub, HF_HOME=str(tmp_path))
    assert process.communicate()[0] == "done\n"
    (found,) = (tmp_path / "hub").rglob("model.safetensors")
    assert found.read_bytes() == content


# --- publishing ------------------------------------------------------------------------------------------------------------


def test_what_is_pushed_is_pulled_bit_for_bit(hub: HubServer) -> None:
    torch.manual_seed(1)
    model = BertForSequenceClassification(BertConfig(**SMALL, num_labels=3))
    commit = model.push_to_hub("me/mine", token=hub.valid_token, private=True, commit_message="Mine", base_model="me/base")
    assert commit.oid == hub.repositories["me/mine"].branches["main"]
    assert hub.repositories["me/mine"].private
    card = hub.repositories["me/mine"].commits[commit.oid]["README.md"].decode()
    for part in ("library_name: transept", "pipeline_tag: text-classification", "- bert", "base_model: me/base"):
        assert part in card
    again = BertForSequenceClassification.from_pretrained("me/mine", token=hub.valid_token)
    saved = {"architectures": ["BertForSequenceClassification"], "dtype": torch.float32}
    assert again.config == model.config.with_settings(**saved)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


def test_pushing_again_replaces_the_weights_and_keeps_the_rest(hub: HubServer) -> None:
    repository = hub.add("me/mine", {"README.md": b"My words.", "notes.txt": b"notes", "model.fp16.safetensors": b"fp16"})
    model = BertModel(BertConfig(**SMALL))
    model.push_to_hub("me/mine", token=hub.valid_token, max_shard_size=2000)
    sharded = set(repository.commits[repository.branches["main"]])
    assert "model.safetensors.index.json" in sharded
    assert "model.safetensors" not in sharded
    model.push_to_hub("mine", token=hub.valid_token)
    files = repository.commits[repository.branches["main"]]
    expected = {"README.md", "notes.txt", "config.json", "model.safetensors", "model.fp16.safetensors"}
    assert set(files) == expected
    assert files["README.md"] == b"My words."
    assert model.push_to_hub("me/mine", token=hub.valid_token, variant="fp16").oid
    assert repository.commits[repository.branches["main"]]["model.fp16.safetensors"] != b"fp16"


def test_pushing_to_a_branch_and_as_a_pull_request(hub: HubServer) -> None:
    repository = hub.add("me/mine", {"old.txt": b"old"})
    config = BertConfig(**SMALL)
    config.push_to_hub("me/mine", token=hub.valid_token, revision="next")
    assert set(repository.commits[repository.branches["main"]]) == {"old.txt"}
    assert BertConfig.from_pretrained("me/mine", revision="next") == config
    commit = config.push_to_hub("me/mine", token=hub.valid_token, create_pr=True)
    assert commit.pr_url is not None
    assert BertConfig.from_pretrained("me/mine", revision="refs/pr/1") == config
    assert set(repository.commits[repository.branches["main"]]) == {"old.txt"}


def preprocessors() -> dict[str, Any]:
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "a": 5, "b": 6}
    extractor, labels = transept.Wav2Vec2FeatureExtractor(do_normalize=False), transept.Wav2Vec2CTCTokenizer(vocab)
    return {
        "tokenizer": transept.BertTokenizer(VOCABULARY, model_max_length=7),
        "labels": labels,
        "image_processor": transept.ViTImageProcessor(size={"height": 30, "width": 20}),
        "feature_extractor": extractor,
        "processor": transept.Wav2Vec2Processor(extractor, labels),
        "config": BertConfig(**SMALL),
    }


@pytest.mark.parametrize("name", preprocessors())
def test_preprocessors_are_published_too(hub: HubServer, tmp_path: Path, name: str) -> None:
    made = preprocessors()[name]
    commit = made.push_to_hub("me/mine", token=hub.valid_token, commit_message="Mine")
    files = hub.repositories["me/mine"].commits[commit.oid]
    made.save_pretrained(tmp_path / "saved")
    saved = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    assert saved == {name: content for name, content in files.items() if name not in ("README.md", ".gitattributes")}
    card = files["README.md"].decode()
    code = card.split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code, found)
    again = found["tokenizer" if name == "labels" else name]
    assert type(again) is type(made)
    again.save_pretrained(tmp_path / "again")
    assert saved == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}


def test_publishing_a_tokenizer_replaces_its_chat_templates_and_nothing_else(hub: HubServer) -> None:
    there = {"chat_template.jinja": b"old", "additional_chat_templates/tools.jinja": b"old", "model.safetensors": b"weights"}
    repository = hub.add("me/mine", there)
    preprocessors()["tokenizer"].push_to_hub("me/mine", token=hub.valid_token)
    files = repository.commits[repository.branches["main"]]
    assert not [name for name in files if name.endswith(".jinja")]
    assert files["model.safetensors"] == b"weights"


def test_a_tokenizer_is_published_without_torch(hub: HubServer, tmp_path: Path) -> None:
    code = (
        "from transept import BertTokenizer; import sys\n"
        f"BertTokenizer({VOCABULARY}).push_to_hub('me/mine')\n"
        "print('torch' in sys.modules)"
    )
    out, err = run(code, hub, HF_HOME=str(tmp_path), HF_TOKEN=hub.valid_token).communicate()
    assert out.strip() == "False", err
    assert "tokenizer.json" in hub.repositories["me/mine"].commits[hub.repositories["me/mine"].branches["main"]]


def test_pushing_without_the_right(hub: HubServer) -> None:
    config = BertConfig(**SMALL)
    with pytest.raises(FileError, match=r"does not accept the token.*HF_TOKEN"):
        config.push_to_hub("me/mine", token="hf_wrong_token")
    with pytest.raises(FileError, match="cannot be published"):
        config.push_to_hub("me/mine", token=False)
    with pytest.raises(InputError, match="looks like a path"):
        config.push_to_hub("./mine")
    assert hub.repositories == {}


def test_a_new_head_is_reported_from_the_hub_too(hub: HubServer, saved: dict[str, bytes]) -> None:
    hub.add("me/bert", saved)
    with pytest.warns(TranseptWarning, match=r"newly initialised.*classifier\.weight"):
        BertForSequenceClassification.from_pretrained("me/bert")


def test_a_hub_that_is_out_of_reach_leaves_what_is_cached(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch, no_waiting: None
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}")
    commit = "a" * 40
    folder = hub_cache / "models--me--bert"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    (folder / "snapshots" / commit / "vocab.txt").write_text("\n".join(VOCABULARY))
    with pytest.warns(TranseptWarning, match=r"127\.0\.0\.1 cannot be reached.*only the files in the cache are used"):
        tokenizer = transept.BertTokenizer.from_pretrained("me/bert")
    assert tokenizer("one").input_ids == transformers.BertTokenizer.from_pretrained("me/bert")("one").input_ids
    began = time.perf_counter()
    assert type(transept.AutoTokenizer.from_pretrained("me/bert")) is transept.PreTrainedTokenizerFast  # asks nothing again
    assert time.perf_counter() - began < 5
    with pytest.raises(FileError, match=r"'model\.safetensors'.*not in the cache.*cannot be reached"):
        raise Source("me/bert").missing("model.safetensors")
