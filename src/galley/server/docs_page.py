"""``GET /docs``: the OpenAPI document for people, as HTML without scripts or anything from outside."""

import html
import json
from collections.abc import Iterator
from typing import Any, Final

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy: nothing is loaded, nothing runs."""

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin: 2rem 0 .5rem; text-transform: capitalize; }
details { border: 1px solid #8884; border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } code { font-family: ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
td, th { border-top: 1px solid #8884; padding: .25rem .5rem; text-align: left; vertical-align: top; }
:root { color-scheme: light dark; }
"""

Schema = dict[str, Any]


def render(document: Schema) -> str:
    """Render the page. Every text of the document is escaped."""
    return "".join(_page(document))


def _page(document: Schema) -> Iterator[str]:
    info = document["info"]
    title = _text(f"{info['title']} {info['version']}")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p>{_text(info['description'])} "
    yield 'The same for programs: <a href="openapi.json">openapi.json</a>.</p>'
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for tag in dict.fromkeys(operation["tags"][0] for _, _, operation in operations):
        yield f"<h2>{_text(tag)}</h2>"
        for method, path, operation in operations:
            if operation["tags"][0] == tag:
                yield from _operation(method, path, operation)
    yield "<h2>schemas</h2>"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f'<details id="{_text(name)}"><summary><code>{_text(name)}</code></summary>'
        yield f"<p>{_text(schema.get('description', ''))}</p>{_fields(schema)}</details>"
    yield "</body></html>"


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"<details><summary><code>{_text(method.upper())} {_text(path)}</code> "
    yield f"{_text(operation['summary'])}</summary><table>"
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<tr><th>body</th><td>{_text(kind)}</td><td>{_type(media['schema'])}</td></tr>"
    for status, answer in operation["responses"].items():
        for kind, media in answer["content"].items():
            about = f"{_type(media['schema'])} {_text(answer['description'])}"
            yield f"<tr><th>{_text(status)}</th><td>{_text(kind)}</td><td>{about}</td></tr>"
    yield "</table></details>"


def _fields(schema: Schema) -> str:
    required = schema.get("required", [])
    rows = [
        f"<tr><td><code>{_text(name)}</code>{' (required)' if name in required else ''}</td>"
        f"<td>{_type(field)}</td><td>{_text(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _type(schema: Schema) -> str:
    """Describe a schema in a few words, with links to those it names."""
    if "$ref" in schema:
        name = _text(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "allOf" in schema:
        return " and ".join(map(_type, schema["allOf"]))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join(f"<code>{_text(json.dumps(value))}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of ({_type(schema.get('items', {}))})"
    return _text(schema.get("type", "anything"))


def _text(value: object) -> str:
    return html.escape(str(value))
