"""The page, by its files and in a real browser: what it shows, what it asks for, and whom it serves."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import PIL.Image
import pytest

import transept.serving.page
from tests.pace import within
from tests.pipelines.media_models import picture, png, sound, wav
from tests.pipelines.text_models import SavedModel, text_model
from tests.thorough import in_turn
from transept.serving.doors import Options
from transept.serving.models import Loader
from transept.serving.store import Models
from transept.serving.tasks import TaskModel

from . import conftest
from .conftest import Running, Server
from .test_every_task import MOVIES, SAVED, TOLD, WORDS
from .test_seeing import save_seeing

__all__ = ["text_model"]
until = partial(conftest.until, seconds=60)  # a browser takes its time where others compute
FILES = {
    path.name: path.read_text(encoding="utf-8") for path in Path(transept.serving.page.__path__[0]).iterdir() if path.is_file()
}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
TEXTS: dict[str, dict[str, str]] = json.loads(FILES["words.json"])
PROGRAMS = shutil.which("chromium"), shutil.which("chromedriver")
LETTER_Z = str(ord("z") - ord("!"))  # ids of printable letters follow each other
PICTURE = "<img src=x onerror=document.title='broken'>"


# --- the files ---------------------------------------------------------------------------------------------------------


def test_the_page_comes_without_a_key_and_lets_nothing_else_in(folder: Path) -> None:
    closed = Server(folder, Options(grace=1.0, keys=["sesame"]))
    try:
        assert httpx.get(f"{closed.url}/v1/models").status_code == 401
        for path, kind in {
            "/": "html",
            **{f"/assets/{name}": name.rpartition(".")[2] for name in FILES if ".py" not in name},
        }.items():
            found = httpx.get(f"{closed.url}{path}")
            assert found.status_code == 200
            assert found.headers["content-type"].split(";")[0].endswith({"js": "javascript", "svg": "svg+xml"}.get(kind, kind))
            policy = dict(part.split(" ", 1) for part in found.headers["content-security-policy"].split("; "))
            assert policy.pop("img-src") == "'self' data:"
            assert {policy.pop("default-src"), policy.pop("connect-src")} == {"'self'"}
            assert policy == {"frame-ancestors": "'none'", "base-uri": "'none'", "form-action": "'none'"}
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["referrer-policy"] == "no-referrer"
        for path in ("none.js", "..%2fapp.py", "__init__.py", "routes.py"):
            assert httpx.get(f"{closed.url}/assets/{path}").status_code in (401, 404)
    finally:
        closed.close()


def test_a_server_without_a_page(folder: Path) -> None:
    bare = Server(folder, Options(grace=1.0, page=False))
    try:
        assert [httpx.get(f"{bare.url}{path}").status_code for path in ("/", "/assets/page.js")] == [404, 404]
    finally:
        bare.close()


def test_texts_can_become_nothing_but_texts() -> None:
    makes = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|DOMParser|Fragment\(|srcdoc|\beval\b|Function\("
    )
    assert not [name for name, text in FILES.items() if makes.search(text)]
    assert not re.search(r"<style|<script(?! type=\"module\" src=\"assets/)|\s(on\w+|style)=", FILES["index.html"])
    assert not re.search(r"@import|url\(", FILES["page.css"])
    for text in FILES.values():
        assert not re.search(r"(src|href)=\"(?!assets/|#)|from \"(?!\./)|https?://(?!www\.w3\.org/2000/svg)\w", text)


def test_every_word_is_there_in_three_languages() -> None:
    for name, texts in TEXTS.items():
        assert list(texts) == ["en", "es", "ar"], name
        assert all(text.strip() for text in texts.values()), name
        assert len({tuple(sorted(re.findall(r"\{\w+\}", text))) for text in texts.values()}) == 1, name
        assert texts["ar"] == texts["en"] or re.search("[\u0600-\u06ff]", texts["ar"]), name
    source = "".join(SCRIPTS.values())
    used = set(re.findall(r'data-(?:word|label|hint)="([\w-]+)"', FILES["index.html"]))
    used |= set(re.findall(r'\b(?:word|label|hint): (?:\w+ \? )?"([a-z-]+)"', source)) | set(
        re.findall(r'\bword\("([\w-]+)"', source)
    )
    used |= {f"field-{name.replace('_', '-')}" for name in re.findall(r'(?:field|parameter)\("\w+", "([\w-]+)"', source)}
    assert used <= TEXTS.keys()
    assert not [name for name in TEXTS.keys() - used if f'"{name}"' not in source]


# --- in the browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(folder: Path, text_model: SavedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    labels = {"id2label": {0: "O", 1: "B-PER", 2: "B-LOC"}, "label2id": {"O": 0, "B-PER": 1, "B-LOC": 2}, "num_labels": 3}
    nli = {
        "id2label": {0: "contradiction", 1: "entailment"},
        "label2id": {"contradiction": 0, "entailment": 1},
        "num_labels": 2,
    }
    models = [
        TaskModel("encoder", str(text_model("BertModel")), "text-embedding"),
        TaskModel("judge", str(text_model("BertForSequenceClassification", num_labels=1)), "text-ranking"),
        TaskModel("labels", str(text_model("BertForSequenceClassification", num_labels=3))),
        TaskModel("names", str(text_model("BertForTokenClassification", **labels))),
        TaskModel("nli", str(text_model("BertForSequenceClassification", **nli)), "zero-shot-classification"),
        TaskModel("masks", str(text_model("BertForMaskedLM"))),
        TaskModel("answers", str(text_model("BertForQuestionAnswering"))),
        Loader(engine={"cache_bytes": 2**24}).load("sees", str(save_seeing(tmp_path_factory.mktemp("sees"), "qwen2_vl"))),
    ]
    made = Server(folder, beside=models)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ready(served: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Serves a model by its name, made when it is needed first."""
    made = {"encoder"}

    def serve(name: str) -> None:
        if name not in made:
            made.add(name)
            SAVED[name](path := tmp_path_factory.mktemp(name))
            served.models.add(model := TaskModel(name, str(path), TOLD.get(name)))
            model.start(None)  # type: ignore[arg-type]  # which a batch does not need

    return serve


# A picture that is pasted or dropped on a node.
GIVEN = """
const [node, kind, name] = arguments;
const canvas = document.createElement("canvas");
const bytes = Uint8Array.from(atob(canvas.toDataURL().split(",")[1]), (letter) => letter.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], name, { type: "image/png" }));
const more = { bubbles: true, cancelable: true };
node.dispatchEvent(kind === "paste" ? new ClipboardEvent(kind, { clipboardData: data, ...more }) : new DragEvent(kind, { dataTransfer: data, ...more }));
"""


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A picture and a sound for forms, by their paths, and the picture as a ``data:`` URL."""
    path = tmp_path_factory.mktemp("media")
    (path / "small.png").write_bytes(png(picture(0, 40, 60)))
    (path / "sound.wav").write_bytes(wav(sound()))
    url = "data:image/png;base64," + base64.b64encode((path / "small.png").read_bytes()).decode()
    return {"picture": str(path / "small.png"), "sound": str(path / "sound.wav"), "url": url}


class Page:
    """The page of a server in a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver, self.url = driver, ""

    def open(self, server: Running, view: str = "") -> None:
        """A fresh page, whose browser has kept nothing."""
        self.url = server.url
        self.driver.get(server.url)
        self.js("sessionStorage.clear(); localStorage.clear()")
        self.driver.get("about:blank")
        self.driver.get(f"{server.url}/#{view}")
        until(lambda: bool(self.all("#views a, dialog[open]")))

    def js(self, source: str, *values: Any) -> Any:
        return self.driver.execute_script(source, *values)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        until(lambda: bool(self.all(selector)))
        return self.all(selector)[0]

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        return list(self.js("return Array.from(document.querySelectorAll(arguments[0]), (each) => each.textContent)", selector))

    def set(self, field: str, value: str) -> None:
        self.js("arguments[0].value = arguments[1]", self.one(field), value)

    def send(self, text: str) -> None:
        self.one("#message").send_keys(text + "\n")

    def press(self, key: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(key).perform()

    def is_done(self) -> bool:
        return bool(self.all("#send:not([hidden])"))

    def view(self, name: str) -> None:
        self.one(f"#views a[href='#{name}']").click()
        until(lambda: bool(self.all(f"#views a[href='#{name}'][aria-current]")))

    def choose(self, selector: str, value: str) -> None:
        self.js(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', {bubbles: true}))",
            self.one(selector),
            value,
        )

    def ask(self, model: str, task: str | None = None, **fields: str) -> None:
        """Fill in the form of a model, whose fields are found by the names of their words, and wait for the answer."""
        self.choose("#form .model", model)
        if task:
            self.choose("#form .task", task)
        for name, value in fields.items():
            place = f"#asked label:has([data-word='field-{name.replace('_', '-')}']) :is(input, textarea)"
            self.one(place).send_keys(value) if name in ("picture", "sound") else self.set(place, value)
        self.js("document.querySelector('.answer').replaceChildren()")
        self.one("#asked [type=submit]").click()
        until(lambda: bool(self.all(".answer summary, .answer .trouble")))

    def give(self, selector: str, kind: str, name: str) -> None:
        """Paste or drop a small picture."""
        self.js(GIVEN, self.one(selector), kind, name)

    def answers(self, *chunks: dict[str, Any] | str) -> None:
        """Let the next streams be these deltas."""
        told = [
            chunk if isinstance(chunk, str) else json.dumps({"choices": [{"index": 0, "delta": chunk}]}) for chunk in chunks
        ]
        body = "".join(f"data: {each}\n\n" for each in told)
        self.js(
            f"window.real ??= window.fetch; window.fetch = async () => new Response({json.dumps(body)}, {{headers: {{'x-request-id': 'r1'}}}})"
        )

    def emulate(self, width: int = 1280, **media: str) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if None in PROGRAMS:
        pytest.skip("chromium and chromedriver are not on this machine")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS[0]
    given = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update disable-sync"
    for name in [*given.split(), "disable-dev-shm-usage", "lang=en", f"user-data-dir={tmp_path_factory.mktemp('browser')}"]:
        options.add_argument(f"--{name}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(PROGRAMS[1]))
    yield made
    made.quit()


@pytest.fixture
def page(driver: Any) -> Iterator[Page]:
    """A page that reports no error and asks no other server for anything."""
    made = Page(driver)
    made.emulate()
    driver.get_log("browser"), driver.get_log("performance")
    yield made
    assert [line["message"] for line in driver.get_log("browser")] == []
    events = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked
    assert not [url for url in asked if not url.startswith((made.url, "data:", "about:"))]


def turns(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.js("return JSON.parse(sessionStorage.getItem('transept.turns') ?? '[]')")
    return found


def test_an_answer_is_streamed(page: Page, served: Server, slow: Callable[[float], None]) -> None:
    page.open(served, "chat")
    for name, value in {"temperature": "0", "max_tokens": "24", "more": json.dumps({"logit_bias": {LETTER_Z: 100}})}.items():
        page.set(f"#setting [name={name}]", value)
    slow(0.1)
    page.send("Hi")
    until(lambda: 0 < len(page.text(".assistant > .text")) < 24)
    slow(0)
    until(page.is_done)
    assert page.text(".assistant > .text") == "z" * 24
    assert page.text(".user > .text") == "Hi"
    assert re.fullmatch(r"24 tokens · [\d,.]+ tokens a second · first after [\d.]+ s", page.text(".assistant .facts"))
    page.set("#setting [name=more]", "")
    page.one(".assistant [aria-label='Write again']").click()
    until(lambda: page.is_done() and "z" * 24 not in page.text(".assistant > .text"))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 24}
    whole = httpx.post(f"{served.url}/v1/chat/completions", json=body).json()
    until(lambda: turns(page)[-1]["content"] == whole["choices"][0]["message"]["content"])
    page.one(".user [aria-label='Edit the message']").click()
    field = page.one(".editing textarea")
    field.clear()
    field.send_keys("Bye")
    page.one(".editing [type=submit]").click()
    until(lambda: page.is_done() and len(page.all(".turn")) == 2 and page.text(".user > .text") == "Bye")
    page.driver.refresh()
    until(lambda: page.text(".user > .text") == "Bye")
    page.one("#new-chat").click()
    assert not page.all(".turn")


@pytest.fixture
def slow(served: Server) -> Iterator[Callable[[float], None]]:
    """Lets each pass of the engine take so many seconds more."""
    flush = served.engine.after_pass

    def passes(seconds: float) -> None:
        served.engine.after_pass = flush if not seconds else lambda: (flush(), time.sleep(seconds))[0]

    yield passes
    passes(0)


def test_an_answer_that_is_stopped_frees_its_row(page: Page, served: Server, slow: Callable[[float], None]) -> None:
    def metric(name: str) -> float:
        lines = httpx.get(f"{served.url}/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f'transept_{name}{{model="tiny"'))

    page.open(served, "chat")
    before = metric("cancelled_total")
    slow(0.02)
    for stop in (lambda: page.one("#stop").click(), lambda: page.press("\ue00c")):
        page.send("Tell me all")
        until(lambda: bool(page.text(".turn:last-child > .text")) and metric("rows_running") == 1)
        stop()
        until(lambda: metric("rows_running") + metric("requests_waiting") == 0)
        until(lambda: page.text(".turn:last-child .facts") == "Stopped.")
        assert page.is_done()
    assert metric("cancelled_total") == before + 2
    assert turns(page)[-1]["stopped"] is True
    page.view("tasks")
    page.choose("#form .model", "tiny")
    page.set("#asked textarea", "Once")
    page.set("#asked input[max]", "400")
    for stop in (lambda: page.one("#asked [type=submit]").click(), lambda: page.press("\ue00c")):
        page.one("#asked [type=submit]").click()
        until(lambda: page.text("#asked [type=submit]") == TEXTS["stop"]["en"] and metric("rows_running") == 1)
        stop()
        until(lambda: metric("rows_running") + metric("requests_waiting") == 0)
        assert page.text("#asked [type=submit]") == TEXTS["run"]["en"]
        assert not page.text(".answer")


def test_an_answer_stays_a_text(page: Page, served: Server) -> None:
    page.open(served, "chat")
    schema = {"type": "json_schema", "json_schema": {"name": "picture", "schema": {"const": PICTURE}}}
    page.set("#setting [name=more]", json.dumps({"response_format": schema}))
    page.send(PICTURE)
    until(lambda: page.is_done() and len(turns(page)) == 2)
    assert page.texts(".turn > .text") == [PICTURE, f'"{PICTURE}"']
    hostile = f"# {PICTURE}\n- ![a](https://example.org/a.png)\n- [b](javascript:alert(1))\n- [c](data:text/html,x)\n\n| {PICTURE} | b |\n|---|---|\n| a | b |\n"
    page.answers({"content": hostile + f"> {PICTURE}\n\n```html\n{PICTURE}\n```\n[d](https://example.org/)"}, "[DONE]")
    page.set("#setting [name=more]", "")
    page.send("More")
    until(lambda: page.is_done() and len(turns(page)) == 4)
    assert not page.all("#turns img")
    assert page.text(".turn:last-child > .text").count(PICTURE) == 4
    assert page.js("return Array.from(document.querySelectorAll('#turns a'), (a) => a.href)") == [
        "https://example.org/a.png",
        "https://example.org/",
    ]
    assert "javascript:alert(1)" in page.text(".turn:last-child")
    assert page.driver.title == "Chat · transept"


MARKDOWN = """Some *soft*, **strong**, ~~old~~ and `code` with a_name_like_this, 2 * 3 * 4.
## A heading
1. one
2. two
   - inner
     ```py
     x = "*a*"
     ```
- [x] done

| a | b |
|:--|--:|
| `c|` | d \\| e |

> quoted
> more"""


def test_markdown(page: Page, served: Server) -> None:
    page.open(served, "chat")
    page.answers(*({"content": letter} for letter in MARKDOWN), "[DONE]")
    page.send("Show me")
    until(lambda: page.is_done() and len(turns(page)) == 2)
    shown = {
        tag: page.texts(f".assistant .text {tag}")
        for tag in ("em", "strong", "s", "h5", "ol > li", "ul > li", "pre", "th", "td", "blockquote")
    }
    assert shown == {
        "em": ["soft"],
        "strong": ["strong"],
        "s": ["old"],
        "h5": ["A heading"],
        "ol > li": ["one", 'twoinnerpyx = "*a*"'],
        "ul > li": ['innerpyx = "*a*"', "☑ done"],
        "pre": ['x = "*a*"'],
        "th": ["a", "b"],
        "td": ["`c", "`", "d | e"],
        "blockquote": ["quotedmore"],
    }
    assert page.text(".assistant p").endswith("a_name_like_this, 2 * 3 * 4.")
    with within(2):  # hostile texts end
        page.js(
            """const node = document.createElement("div");
            return import("/assets/markdown.js").then(({ show }) => {
              for (const part of ["*a_", "**", "[", "`", "```", "> ", "- ", "|", "~~", "https://", "\\\\", " ", "- a\\n\\n", "# ", "a  "])
                for (const end of ["", "\\n", "x"]) show(node, "- a | b\\n" + (part + end).repeat(5000) + "x");
            })"""
        )


def test_reasoning_calls_and_errors(page: Page, served: Server) -> None:
    page.open(served, "chat")
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
    rest = {"index": 0, "function": {"arguments": '"Cairo"}'}}
    page.answers({"reasoning_content": "I must ask."}, {"tool_calls": [call]}, {"tool_calls": [rest]}, "[DONE]")
    page.send("How warm is it?")
    until(lambda: page.is_done() and len(turns(page)) == 2)
    assert page.text(".assistant .reasoning > .text") == "I must ask."
    assert not page.one(".assistant .reasoning").get_property("open")
    assert page.text(".call-name") == "weather"
    assert json.loads(page.text(".call pre")) == {"city": "Cairo"}
    page.answers({"content": "It is 30"}, json.dumps({"error": {"message": "the model has failed.", "code": "server_error"}}))
    page.one(".call textarea").send_keys("30 degrees")
    page.one(".call [type=submit]").click()
    until(lambda: bool(page.all("[role=alert]")))
    assert page.text("[role=alert]") == "the model has failed.server_error · r1Try again"
    assert [turn["role"] for turn in turns(page)] == ["user", "assistant", "tool", "assistant"]
    assert turns(page)[2] == {"role": "tool", "tool_call_id": "c1", "content": "30 degrees"}
    page.answers({"content": "It is"})  # and then nothing
    page.one("[role=alert] button").click()
    until(lambda: page.text("[role=alert] p") == TEXTS["cut-off"]["en"])
    page.answers({"content": "It is warm."}, "[DONE]")
    page.one("[role=alert] button").click()
    until(lambda: page.text(".turn:last-child > .text") == "It is warm.")
    assert len(page.all(".turn")) == 4
    page.js("window.fetch = () => Promise.reject(new TypeError('gone'))")
    page.send("Are you there?")
    until(lambda: page.text("[role=alert] p") == TEXTS["unreachable"]["en"])
    page.set("#setting [name=tools]", "[")
    page.send("And now?")
    until(lambda: TEXTS["tools"]["en"] in page.text("[role=alert]"))


def test_whole_sentences_are_said(page: Page, served: Server) -> None:
    page.open(served, "chat")
    page.answers(*({"content": text} for text in ("One is", " done. **Two", "** is lo", "nger. Three")), "[DONE]")
    page.send("Count")
    until(page.is_done)
    assert page.texts("#voice[aria-live=polite] p") == ["One is done.", "Two is longer.", "Three"]


def test_forms(page: Page, served: Server) -> None:
    texts = ["Anna lives in Paris", "Wolfgang works", "maps"]
    page.open(served, "embeddings")
    page.set("#asked textarea", "\n".join(texts))
    page.one("#asked [type=submit]").click()
    until(lambda: bool(page.all(".matrix")))
    found = httpx.post(f"{served.url}/v1/embeddings", json={"model": "encoder", "input": texts}).json()["data"]
    vectors = np.array([each["embedding"] for each in found])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    shown = [float(text) for text in page.texts(".matrix tbody td")]
    np.testing.assert_allclose(shown, (vectors @ vectors.T).flatten(), atol=0.0051)

    page.view("rerank")
    page.set("#asked input", "maps")
    page.set("#asked textarea", "\n".join(texts))
    page.one("#asked [type=submit]").click()
    until(lambda: len(page.all(".bars li")) == 3)
    ranked = httpx.post(f"{served.url}/v1/rerank", json={"model": "judge", "query": "maps", "documents": texts}).json()[
        "results"
    ]
    assert page.texts(".bars .name") == [texts[each["index"]] for each in ranked]
    assert page.texts(".bars .score") == [f"{each['relevance_score']:.3f}" for each in ranked]

    page.view("classify")
    page.set("#asked textarea", "maps\n\nParis")
    page.one("#asked [type=submit]").click()
    until(lambda: len(page.all(".answer .card .bars")) == 2)
    assert len(page.all(".answer .card:first-child .bars li")) == 3

    page.view("tasks")
    page.choose("#form .model", "names")
    text = "😀 Anna lives in Paris"
    page.set("#asked textarea", text)
    page.one("#asked [type=submit]").click()
    until(lambda: bool(page.all(".marked mark")))
    body = {"model": "names", "inputs": text, "parameters": {"aggregation_strategy": "simple"}}
    spans = httpx.post(f"{served.url}/v1/tasks/token-classification", json=body).json()
    assert [mark.rpartition(" " + span["entity_group"])[0] for mark, span in zip(page.texts("mark"), spans, strict=True)] == [
        text[span["start"] : span["end"]] for span in spans
    ]
    page.choose("#form .model", "tiny")
    page.set("#asked textarea", "Once")
    page.set("#asked input", "8")
    page.set("#asked input[step='0.1']", "0")
    page.one("#asked [type=submit]").click()
    until(lambda: page.text(".written p").startswith("Once"))
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 8, "temperature": 0}
    assert (
        page.text(".written p") == "Once" + httpx.post(f"{served.url}/v1/completions", json=body).json()["choices"][0]["text"]
    )


def test_other_tasks(page: Page, served: Server) -> None:
    def answer(model: str, task: str, inputs: Any, **parameters: Any) -> Any:
        body = {"model": model, "inputs": inputs, "parameters": parameters}
        return httpx.post(f"{served.url}/v1/tasks/{task}", json=body).raise_for_status().json()

    page.open(served, "tasks")
    masked, context = "Anna [MASK] in [MASK].", "Anna lives in Berlin."
    found = answer("masks", "fill-mask", masked, top_k=2)
    page.ask("masks", text_mask=masked, top_k="2")
    assert page.texts(".answer .name") == [token["token_str"] for mask in found for token in mask]
    span = answer("answers", "question-answering", {"question": "Who?", "context": context})
    page.ask("answers", question="Who?", context=context)
    assert [mark.rpartition(" ")[0] for mark in page.texts(".answer mark")] == [span["answer"]]
    page.choose("#language", "ar")  # which has a comma of its own
    ranked = answer("nli", "zero-shot-classification", context, candidate_labels=["عمل", "خرائط"])["labels"]
    page.view("classify")
    page.ask("nli", text=context, candidate_labels="عمل، خرائط")
    assert page.texts(".answer .name") == ranked


# Of each task that no other test asks: its model, what its form is filled with, and what is shown.
FORMS: dict[str, tuple[str, dict[str, str], str]] = {
    "audio-classification": ("sounds", {"sound": ""}, ".bars li"),
    "audio-embedding": ("ear", {"sound": ""}, "[data-word=shape]"),
    "automatic-speech-recognition": ("letters", {"sound": ""}, ".written p"),
    "depth-estimation": ("depth", {"picture": ""}, ".pair img[src^='data:']"),
    "document-question-answering": ("pages", {"picture": "", "question": "Total?", "words": json.dumps(WORDS[1])}, ".mark.box"),
    "feature-extraction": ("encoder", {"text": "Anna"}, "[data-word=shape]"),
    "image-classification": ("pictures", {"picture": ""}, ".bars li"),
    "image-embedding": ("eye", {"picture": ""}, "[data-word=shape]"),
    "image-feature-extraction": ("eye", {"picture": ""}, "[data-word=shape]"),
    "image-segmentation": ("segments", {"picture": ""}, ".mark.mask"),
    "image-to-text": ("describes", {"picture": ""}, ".written p"),
    "summarization": ("writer", {"text": "Anna"}, ".written p"),
    "table-question-answering": ("tables", {"question": "How many?", "table": json.dumps(MOVIES)}, ".answer td"),
    "text2text-generation": ("writer", {"text": "Anna"}, ".written p"),
    "translation": ("writer", {"text": "Anna"}, ".written p"),
    "visual-question-answering": ("asked", {"picture": "", "question": "what?"}, ".written p"),
    "zero-shot-image-classification": ("both", {"picture": ""}, ".bars li"),
}


@pytest.mark.parametrize("task", in_turn(sorted(FORMS), 6))
@pytest.mark.filterwarnings("ignore")
def test_the_form_of_a_task(page: Page, served: Server, ready: Callable[[str], None], task: str, media: dict[str, str]) -> None:
    model, fields, shown = FORMS[task]
    ready(model)
    page.open(served, "tasks")
    page.ask(model, task, **{name: value or media[name] for name, value in fields.items()})
    assert page.one("#form .task").get_property("value") == task
    assert page.all(shown)
    assert page.js("return Array.from(document.querySelectorAll('.answer img')).every((each) => each.naturalWidth)")
    assert not page.all(".trouble")


def test_boxes_over_a_picture(page: Page, served: Server, ready: Callable[[str], None], media: dict[str, str]) -> None:
    ready("boxes")
    page.open(served, "tasks")
    page.ask("boxes", picture=media["picture"])
    body = {"model": "boxes", "inputs": media["url"]}
    found = httpx.post(f"{served.url}/v1/tasks/object-detection", json=body).json()
    found = sorted(found, key=lambda each: -each["score"])
    assert len(found) > 2
    assert page.texts(".found .name") == [each["label"] for each in found]
    assert page.texts(".found .score") == [f"{each['score']:.3f}" for each in found]
    places = "const {left, top, width, height} = arguments[0].getBoundingClientRect(); return [left, top, left + width, top + height]"
    left, top, right, bottom = page.js(places, page.one(".frame img"))
    for each, mark in zip(found, reversed(page.all(".mark")), strict=True):  # the best lies above
        sides = np.clip(np.array([*each["box"].values()]) / ([60, 40] * 2), 0, 1)
        wanted = np.array([left, top] * 2) + sides * ([right - left, bottom - top] * 2)
        np.testing.assert_allclose(page.js(places, mark), wanted, atol=0.6)
    page.one(".found li:nth-child(2) button").send_keys(" ")
    assert page.texts(".mark.alone") == ["2"]
    assert (
        len(
            page.js(
                "return Array.from(document.querySelectorAll('.mark')).filter((e) => e.checkVisibility({visibilityProperty: true}))"
            )
        )
        == 1
    )
    page.ask("boxes", threshold="1")
    assert page.texts(".answer > p") == [TEXTS["nothing"]["en"]]
    page.one("#asked [type=file]").send_keys(__file__)
    until(lambda: page.texts("#asked .trouble p") == [TEXTS["no-picture"]["en"].replace("{name}", Path(__file__).name)])


def test_pictures_in_a_chat(page: Page, served: Server, media: dict[str, str], tmp_path: Path) -> None:
    def asked(messages: list[dict[str, Any]]) -> str:
        own = [{name: value for name, value in each.items() if name in ("role", "content")} for each in messages]
        body = {"model": "sees", "messages": own, "temperature": 0, "max_tokens": 8}
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body).raise_for_status().json()
        return str(answer["choices"][0]["message"]["content"])

    page.open(served, "chat")
    page.give("#message", "paste", "a.png")
    until(lambda: page.texts(".tray .trouble p") == [TEXTS["sees-nothing"]["en"]])
    assert not page.all("#attach:not([hidden])")
    page.choose("#chat .model", "sees")
    page.set("#setting [name=temperature]", "0")
    page.set("#setting [name=max_tokens]", "8")
    assert page.all("#attach:not([hidden])")
    assert not page.all(".tray .trouble")
    page.give("#message", "paste", "only.png")
    page.one("[aria-label='Remove only.png']").send_keys("\n")
    assert page.js("return document.activeElement.id") == "message"
    large = tmp_path / "large.png"
    PIL.Image.effect_noise((2000, 1000), 90).save(large)
    page.one("#picked").send_keys(f"{media['picture']}\n{large}\n{__file__}")
    page.give("#message", "paste", "pasted.png")
    page.give("#chat", "drop", "dropped.png")
    until(lambda: len(page.all("#composer .thumbs li")) == 4)
    assert page.texts("#composer .thumbs .name") == ["small.png", "large.png", "pasted.png", "dropped.png"]
    page.one("[aria-label='Remove pasted.png']").send_keys("\n")
    assert page.js("return document.activeElement.ariaLabel") == "Remove dropped.png"
    page.one("[aria-label='Remove dropped.png']").send_keys("\n")
    assert page.js("return document.activeElement.ariaLabel") == "Remove large.png"
    assert page.texts("#voice p")[-2:] == ["Removed: pasted.png", "Removed: dropped.png"]
    page.set("#message", "What is it?")
    page.one("#chat .as-code").click()
    assert page.text("#code").count('"image_url": {') == 4
    assert page.text("#code").count("…") == 2  # of the large one
    page.one("#code [type=submit]").click()
    page.send("")
    until(lambda: page.is_done() and len(turns(page)) == 2)
    first, answer = turns(page)
    assert first["content"][0] == {"type": "image_url", "image_url": {"url": media["url"]}}
    kind, content = first["content"][1]["image_url"]["url"].split(";base64,")
    assert kind == "data:image/jpeg"
    assert PIL.Image.open(io.BytesIO(base64.b64decode(content))).size == (1536, 768)
    assert first["content"][2] == {"type": "text", "text": "What is it?"}
    assert answer["content"] == asked([first])
    page.one(".assistant [aria-label='Write again']").click()
    until(lambda: page.is_done() and len(turns(page)) == 2)
    assert turns(page)[1]["content"] == answer["content"]
    page.one(".user [aria-label='Edit the message']").click()
    page.one(".editing [aria-label='Remove large.png']").click()
    page.give(".editing textarea", "paste", "later.png")
    page.one(".editing [type=submit]").click()
    until(lambda: page.is_done() and page.texts(".user .thumbs .name") == ["small.png", "later.png"])
    until(lambda: len(turns(page)) == 2 and turns(page)[1]["content"] == asked(turns(page)[:1]))
    page.driver.refresh()
    until(lambda: page.texts(".user .thumbs .name") == ["small.png", "later.png"])
    until(lambda: page.one("#chat .model").get_property("value") == "sees")
    assert page.text(".user > .text") == "What is it?"


def test_requests_as_code_do_what_the_page_does(page: Page, served: Server) -> None:
    page.open(served, "chat")
    wild = 'it\'s "z" \\ $HOME \u2028 é'
    for name, value in {
        "temperature": "0",
        "max_tokens": "6",
        "more": json.dumps({"top_k": 1, "logit_bias": {LETTER_Z: 100}, "user": wild}),
    }.items():
        page.set(f"#setting [name={name}]", value)
    page.set("#message", wild)
    page.one("#chat .as-code").click()
    curl, python = page.texts("#code pre")
    assert subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60).stdout == "z" * 6
    if shutil.which("curl"):
        told = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=60).stdout
        assert (
            "".join(
                json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in told.split("\n\n") if "{" in line
            )
            == "z" * 6
        )
    page.one("#code [type=submit]").click()
    page.view("rerank")
    page.one("#form .as-code").click()
    python = page.texts("#code pre")[1]
    assert (
        "relevance_score" in subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60).stdout
    )


def test_models_are_loaded_and_unloaded(page: Page, folder: Path) -> None:
    models = Models(Loader(engine={"cache_bytes": 2**24}))
    models.offer("lazy", str(folder))
    running = Running(models, Options(grace=1.0))
    try:
        page.open(running, "models")
        assert page.texts("#served .state") == ["Loaded"]
        for told in ("Not loaded", "Loaded"):
            page.one("#served button").click()
            until(lambda told=told: page.texts("#served .state") == [told])
            assert httpx.get(f"{running.url}/v1/models/lazy").json()["loaded"] == (told == "Loaded")
        page.one("#served a").click()
        until(lambda: bool(page.all("#chat:not([hidden])")))
    finally:
        page.driver.get("about:blank")
        running.close()


def test_a_key_is_asked_for(driver: Any, folder: Path) -> None:
    closed = Server(folder, Options(grace=1.0, keys=["sesame"]))
    page = Page(driver)
    try:
        page.emulate()
        page.open(closed, "models")
        for key in ("wrong", "sesame"):
            until(lambda: bool(page.all("#key[open]")))
            page.one("#key input").send_keys(key + "\n")
        until(lambda: page.texts("#served h3") == ["tiny"])
        assert page.js("return sessionStorage.getItem('transept.key')") == '"sesame"'
        assert "sesame" not in page.js("return JSON.stringify(localStorage)")
        page.view("chat")
        page.one("#chat .as-code").click()
        assert "sesame" not in page.text("#code")
        assert "$TRANSEPT_API_KEY" in page.text("#code")
    finally:
        driver.get("about:blank")
        closed.close()


# Ratios of contrast of all texts that are seen, as WCAG 2 has them. Colours are drawn, so that any notation can be read.
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
function drawn(colours) {
  canvas.clearRect(0, 0, 1, 1);
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return Array.from(canvas.getImageData(0, 0, 1, 1).data.slice(0, 3), (value) => value / 255);
}
const light = (rgb) => rgb.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
function behind(node) {
  const found = [];
  for (let each = node; each; each = each.parentElement) found.unshift(getComputedStyle(each).backgroundColor);
  return found;
}
const wrong = [];
let seen = 0;
for (const node of document.querySelectorAll("body *")) {
  const style = getComputedStyle(node);
  const own = Array.from(node.childNodes).some((child) => child.nodeType === 3 && child.data.trim());
  const field = node.matches("input, textarea, select");
  if (!(own || field) || !node.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || node.disabled) continue;
  const colours = [style.color, ...(node.placeholder ? [getComputedStyle(node, "::placeholder").color] : [])];
  for (const colour of colours) {
    const [one, other] = [light(drawn(behind(node))), light(drawn([...behind(node), colour]))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    seen += 1;
    if (ratio < 4.5) wrong.push(`${node.tagName}.${node.className} ${node.textContent.slice(0, 20)}: ${ratio.toFixed(2)}`);
  }
}
return [seen, wrong];
"""
NAMED = {
    "button",
    "textbox",
    "combobox",
    "spinbutton",
    "checkbox",
    "link",
    "dialog",
    "navigation",
    "complementary",
    "region",
    "image",
}


@pytest.mark.parametrize(
    ("scheme", "language", "width"), [("light", "en", 1280), ("dark", "ar", 360), ("dark", "es", 900), ("light", "ar", 360)]
)
def test_everyone_can_use_it(
    page: Page, served: Server, ready: Callable[[str], None], media: dict[str, str], scheme: str, language: str, width: int
) -> None:
    ready("boxes")
    page.open(served, "chat")
    page.emulate(width, color_scheme=scheme)
    page.choose("#language", language)
    assert page.js("return [document.documentElement.lang, document.dir]") == [language, "rtl" if language == "ar" else "ltr"]
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": "{}"}}
    page.answers(
        {"reasoning_content": "Hm."}, {"content": MARKDOWN + " [a](https://example.org)"}, {"tool_calls": [call]}, "[DONE]"
    )
    if not page.all("#settings:not([hidden])"):
        page.one("#show-settings").click()
    page.choose("#chat .model", "sees")
    long = "long" * 30
    page.give("#message", "paste", long)
    until(lambda: bool(page.all("#composer .thumbs img")))
    page.send("Hi")
    until(lambda: page.is_done() and bool(page.all(".call")))
    page.js("document.querySelector('.assistant .reasoning').open = true; window.fetch = window.real")
    for name in (long, long, "b.png"):
        page.give("#message", "paste", name)
    until(lambda: len(page.all("#composer .thumbs li")) == 3)
    check(page, width)
    page.one(f".user [aria-label='{TEXTS['edit'][language]}']").click()
    check(page, width)
    page.one("#show-settings").click()
    check(page, width)
    page.one("#chat .as-code").click()
    check(page, width)
    page.one("#code [type=submit]").click()
    page.view("tasks")
    page.ask("boxes", picture=media["picture"])
    page.one(".found button").click()
    check(page, width)
    for view in ("embeddings", "rerank", "tasks", "models"):
        page.view(view)
        if view in ("embeddings", "rerank"):
            page.one("#asked [type=submit]").click()
            until(lambda: bool(page.all(".answer summary")))
            page.js("document.querySelector('.answer details').open = true")
        check(page, width)


def check(page: Page, width: int) -> None:
    """Texts can be read, all controls have a name, none is too small for a finger, and nothing is wider than the screen."""
    page.js(
        "for (const each of document.getAnimations()) each.finish?.call && each.effect.getComputedTiming().iterations < 9 && each.finish()"
    )
    seen, wrong = page.js(CONTRAST)
    assert seen > 10
    assert wrong == []
    for node in page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]:
        states = {each["name"] for each in node.get("properties", ()) if each["value"].get("value")}
        role = node.get("role", {}).get("value")
        if not node["ignored"] and ("focusable" in states or role in NAMED) and role not in ("RootWebArea", "main"):
            assert node["name"]["value"].strip(), (
                role,
                sorted(states),
                page.driver.execute_cdp_cmd("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]}),
            )
    sizes = "return Array.from(document.querySelectorAll('button, select, nav a')).filter((e) => e.checkVisibility() && Math.min(e.offsetWidth, e.offsetHeight) < 24).length"
    assert page.js(sizes) == 0
    beyond = "return Array.from(document.querySelectorAll('body *')).filter((e) => e.getBoundingClientRect().left < -1 || e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 90))"
    assert page.js("return document.documentElement.scrollWidth") <= width, page.js(beyond)
    sideways = "return Array.from(document.querySelectorAll('main, .view, .scroll, .sheet, #composer, #settings')).filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.id || e.className)"
    assert page.js(sideways) == []
    assert (
        page.js(
            "return Array.from(document.querySelectorAll('[id]'), (e) => e.id).filter((id, i, all) => all.indexOf(id) !== i)"
        )
        == []
    )
    assert not re.search(r"undefined|\[object|\{\w+\}", page.text("main") if page.all("#form:not([hidden])") else "")


def test_keys_and_quiet(page: Page, served: Server) -> None:
    page.open(served)
    page.emulate(reduced_motion="reduce")
    focused = "return document.activeElement.id || document.activeElement.getAttribute('href')"
    seen = []
    for _ in range(24):
        page.press("\ue004")
        seen.append(page.js(focused))
    assert seen[0] == "#main", seen
    assert {"#chat", "#models", "language", "theme", "new-chat", "show-settings", "message", "send"} <= set(seen)
    page.view("embeddings")
    assert page.js(focused) == "main"
    page.one("#asked [type=submit]").send_keys("\n")
    until(lambda: bool(page.all(".matrix")))
    assert page.js("return document.getAnimations().length") == 0
    page.choose("#theme", "dark")
    assert page.js("return getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.driver.refresh()
    until(lambda: page.js("return document.documentElement.dataset.theme") == "dark")
