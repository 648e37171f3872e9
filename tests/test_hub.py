"""Fetching from and publishing to a hub on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from transept.config import Config
from transept.errors import FileError, FormatError, InputError, TranseptError, TranseptWarning
from transept.models.bert import BertConfig, BertForSequenceClassification, BertModel
from transept.source import Source

from .hub_server import HubServer

# How huggingface_hub uploads large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

SMALL = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
CONFIG = b'{"model_type": "bert", "vocab_size": 30}'


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a small model."""
    directory = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    BertModel(BertConfig(**SMALL)).save_pretrained(directory)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


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


FETCH = "from transept.source import Source; print(Source('me/bert').need('config.json').read_text())"


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


def test_killed_downloads_leave_no_corrupt_snapshot(hub: HubServer, tmp_path: Path) -> None:
    content = os.urandom(600_000)
    hub.add("me/bert", {"model.safetensors": content})
    code = "from transept.source import Source; Source('me/bert').need('model.safetensors'); print('done')"
    hub.bytes_per_second = 1_000_000
    for _ in range(3):
        hub.requests.clear()
        process = run(code, hub, HF_HOME=str(tmp_path))
        while not any(request.startswith("GET") for request in hub.requests):
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
    assert again.config == model.config
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
    with pytest.warns(TranseptWarning, match=r"newly initialised.*head\.out_proj\.weight"):
        BertForSequenceClassification.from_pretrained("me/bert")
