"""A random model whose chat template supports tools and thinking, as Qwen's does."""

import json
from pathlib import Path
from typing import Any

from tests.checkpoints import VOCAB_SIZE, make_checkpoint

TEMPLATE = """\
{%- if tools %}<|start|>system
You may call: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Write <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|end|>
{% endif %}
{%- for message in messages %}
{{- '<|start|>' + message.role + '\\n' }}
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{% endif %}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""


def make_calling(folder: Path, **changes: Any) -> Path:
    """Write a random Llama with this chat template, and tokens for the start and end of thinking."""
    folder.mkdir(exist_ok=True)
    make_checkpoint(folder, vocab_size=VOCAB_SIZE + 2, **changes)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content["added_tokens"] += [
        {"id": VOCAB_SIZE + number, "content": marker, **flags}
        for number, marker in enumerate(("<think>", "</think>"))
    ]
    path.write_text(json.dumps(content))
    return folder
