"""Directive `marsched-options`: the table of options, from the package's yaml and schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PACKAGE = Path(__file__).parents[2] / "dask_marsched"


def options() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield name, default and schema of each option."""
    defaults = yaml.safe_load((PACKAGE / "marsched.yaml").read_text())["marsched"]
    schema = yaml.safe_load((PACKAGE / "marsched-schema.yaml").read_text())
    yield from _leaves("marsched", defaults, schema["properties"]["marsched"])


def _leaves(name: str, default: Any, schema: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    if schema.get("type") != "object":
        yield name, default, schema
        return
    for part, inner in schema["properties"].items():
        yield from _leaves(f"{name}.{part}", default[part], inner)


def accepted(schema: dict[str, Any]) -> str:
    """Return in words which values an option takes."""
    if "enum" in schema:
        # The schema also takes false for "off", which is how YAML reads an unquoted off.
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not False)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    words = {
        "boolean": "`true`, `false`",
        "string": "text",
        "number": "number",
        "integer": "whole number",
        "array": "list of names",
        "null": "`null`",
    }
    text = " or ".join(words[kind] for kind in kinds)
    if "exclusiveMinimum" in schema:
        text += f" above {schema['exclusiveMinimum']}"
    elif "minimum" in schema and "string" not in kinds:
        text += f" from {schema['minimum']}"
    return text + (f" up to {schema['maximum']}" if "maximum" in schema else "")


def environment(name: str) -> str:
    """Return the environment variable that sets an option."""
    return "DASK_" + name.upper().replace(".", "__").replace("-", "_")


def markdown() -> str:
    """Return one section of the page for each group of options."""
    text, group = [], None
    for name, default, schema in options():
        parent = name.rsplit(".", 1)[0]
        if parent != group:
            group = parent
            title = "The plugin as a whole" if parent == "marsched" else f"`{parent}`"
            text.append(f"## {title}\n")
        described = " ".join(schema["description"].split())
        text += [
            f"({name.replace('.', '-')})=",
            f"`{name}`",
            f": {described}",
            "",
            f"  Default `{json.dumps(default).strip(chr(34))}`; takes {accepted(schema)}.",
            f"  Environment: `{environment(name)}`.",
            "",
        ]
    return "\n".join(text)


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    from sphinx.util.docutils import SphinxDirective

    class Options(SphinxDirective):
        def run(self) -> list[Any]:
            for name in ("marsched.yaml", "marsched-schema.yaml"):
                self.env.note_dependency(str(PACKAGE / name))
            return self.parse_text_to_nodes(markdown(), allow_section_headings=True)

    app.add_directive("marsched-options", Options)
    return {"parallel_read_safe": True}
