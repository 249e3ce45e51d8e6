"""Directive `marsched-options`: the table of options, from the package's yaml and schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PACKAGE = Path(__file__).parents[2] / "dask_marsched"


def options() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield name, default and schema of each option."""
    defaults = yaml.safe_load((PACKAGE / "config" / "marsched.yaml").read_text())["marsched"]
    schema = yaml.safe_load((PACKAGE / "config" / "marsched-schema.yaml").read_text())
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


def overview() -> str:
    """Return a table of all options, which leads to what is said of each."""
    rows = [
        f"| [`{name}`](#{_anchor(name)}) | `{_text(default)}` | {_first_sentence(schema)} |"
        for name, default, schema in options()
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def markdown() -> str:
    """Return the overview, and a section for each option."""
    groups = _groups()
    text = ["## All options\n", overview(), ""]
    for name, default, schema in options():
        described = " ".join([groups[name.rpartition(".")[0]], *schema["description"].split()])
        text += [
            f"({_anchor(name)})=",
            f"## {name}",
            "",
            described,
            "",
            f"- Default: `{_text(default)}`",
            f"- Takes: {accepted(schema)}",
            f"- Environment: `{environment(name)}`",
            "",
        ]
    return "\n".join(text)


def _groups() -> dict[str, str]:
    """Return what is said of each group of options: those of an option rely on it."""
    schema = yaml.safe_load((PACKAGE / "config" / "marsched-schema.yaml").read_text())["properties"]
    groups = {"marsched": ""}
    for name, inner in schema["marsched"]["properties"].items():
        groups[f"marsched.{name}"] = " ".join(inner["description"].split())
    return groups


def _anchor(name: str) -> str:
    return name.replace(".", "-")


def _text(default: Any) -> str:
    return default if isinstance(default, str) else json.dumps(default).replace('"', "")


def _first_sentence(schema: dict[str, Any]) -> str:
    return re.split(r"(?<=\.) ", " ".join(schema["description"].split()))[0].replace("|", "\\|")


def setup(app: Any) -> dict[str, Any]:
    """Register the directive."""
    from sphinx.util.docutils import SphinxDirective

    class Options(SphinxDirective):
        def run(self) -> list[Any]:
            for path in (
                PACKAGE / "config" / "marsched.yaml",
                PACKAGE / "config" / "marsched-schema.yaml",
                __file__,
            ):
                self.env.note_dependency(str(path))
            return self.parse_text_to_nodes(markdown(), allow_section_headings=True)

    app.add_directive("marsched-options", Options)
    return {"parallel_read_safe": True}
