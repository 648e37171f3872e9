"""Long texts made short: ``pipeline("summarization", model=path)(text)``."""

from __future__ import annotations

from transept.pipelines.tasks.text2text_generation import Text2TextGenerationPipeline


class SummarizationPipeline(Text2TextGenerationPipeline):
    """``[{"summary_text": ...}]`` for a text; see :class:`Text2TextGenerationPipeline`."""

    task, names = "summarization", ("summary_text", "summary_token_ids")
