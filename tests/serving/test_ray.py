"""The server as a deployment of Ray Serve."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from .conftest import Server, until

ray: Any = pytest.importorskip("ray", reason='Ray is not installed: pip install "transept[ray]"')
serve: Any = pytest.importorskip("ray.serve", reason='Ray Serve is not installed: pip install "transept[ray]"')
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def test_a_replica_answers_as_a_server_alone(server: Server, folder: Path) -> None:
    """Whole, streamed, refused, and left by its client in the middle."""
    from transept.serving.ray import deployment

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ray.init(num_cpus=4, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(deployment(f"tiny={folder}"), logging_config={"log_level": "ERROR"})
        url = f"http://127.0.0.1:{port}"
        asked: dict[str, Any] = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
        there, here = (openai.OpenAI(base_url=f"{base}/v1", api_key="any", max_retries=0) for base in (url, server.url))
        alone = here.completions.create(**asked).choices[0].text
        assert there.completions.create(**asked).choices[0].text == alone
        assert "".join(chunk.choices[0].text for chunk in there.completions.create(**asked, stream=True)) == alone
        with pytest.raises(openai.BadRequestError, match="knows no field `best_off`"):
            there.completions.create(**asked, extra_body={"best_off": 1})
        with httpx.stream("POST", f"{url}/v1/completions", json=asked | {"max_tokens": 480, "stream": True}) as answer:
            next(answer.iter_lines())
        until(lambda: 'transept_rows_running{model="tiny"} 0.0' in httpx.get(f"{url}/metrics").text)
        assert 'transept_cancelled_total{model="tiny"} 1.0' in httpx.get(f"{url}/metrics").text
    finally:
        serve.shutdown()
        ray.shutdown()
