"""Generator of docs/json.md: the fields of every --json output, from docs/json-schema.json.

tests/command_line/test_json_formats.py fails if the page is out of date; then run tools/json_docs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "json.md"
SCHEMA = DOCS / "json-schema.json"
INTRODUCTION = """\
# JSON output

`--json` prints the answer of a command as one JSON object, ASCII only. [json-schema.json](json-schema.json) is its JSON
Schema (2020-12). This page lists the fields: `tools/json_docs` writes it from the schema, and a test validates the
output of every command.

Every object begins with `format`, such as `"pytorch_alloctrace.leaks"`, and `format_version`, which is 1 for all
formats. As long as the version stays the same, later versions of this package may add fields, but do not rename or
remove any, and do not change their meaning. A program should check both fields and ignore unknown ones. The schema
allows no further fields: validate with the schema of the same version of this package.

A format that is one table has its rows in `rows`, others name each table; all rows are there unless `--top` is given or
the field says otherwise. Sizes are integers of bytes. Fields whose name ends in `_ns` are nanoseconds, and shares are
numbers from 0 to 1. A field is null if its value is unknown or does not apply; NaN and infinity do not occur. With
`--all-frames` every object that has a `stack_id` also has `frames`. Warnings go to stderr, for instance that a trace is
incomplete.

## Examples

Lines that probably leak, without minor leaks:

    alloctrace leaks run.alloctrace --json > leaks.json

<!-- -->

    import json

    leaks = json.load(open("leaks.json"))
    assert (leaks["format"], leaks["format_version"]) == ("pytorch_alloctrace.leaks", 1)
    for leak in leaks["rows"]:
        if leak["confidence"] >= 0.7 and not leak["minor"]:
            print(f"{leak['filename']}:{leak['line']}: {leak['bytes_per_unit']:,.0f} bytes per {leak['unit']}")

Validation of an output, with the package `jsonschema`:

    import json

    import jsonschema

    schema = json.load(open("json-schema.json"))
    jsonschema.validate(json.load(open("leaks.json")), schema)
"""
Schema = dict[str, Any]


def referenced(schema: Any) -> list[str]:
    """Return the names of the definitions that a schema refers to, in order, without repetition."""
    if isinstance(schema, list):
        names = [name for item in schema for name in referenced(item)]
    elif isinstance(schema, dict):
        names = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
        names += [name for item in schema.values() for name in referenced(item)]
    else:
        names = []
    return [*dict.fromkeys(names)]


def reachable(name: str, definitions: Schema) -> list[str]:
    """Return the definitions that a definition refers to, directly or indirectly, in the order of their first use."""
    names = [name]
    for reached in names:
        names += [target for target in referenced(definitions[reached]) if target not in names]
    return names[1:]


def type_of(schema: Schema) -> str:
    """Return the type of a value as Markdown."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "anyOf" in schema:
        return " or ".join(type_of(variant) for variant in schema["anyOf"])
    if "enum" in schema:
        return ", ".join("null" if value is None else f"`{json.dumps(value)}`" for value in schema["enum"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "array" in kinds:
        container = "pair of" if schema.get("maxItems") == 2 else "list of"
        return f"{container} {type_of(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map by name of {type_of(schema['additionalProperties'])}"
    return " or ".join(kinds)


def fields(schema: Schema, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, type and description of each field of an object, and of the unnamed objects in it."""
    for name, field in schema["properties"].items():
        if not prefix and name in ("format", "format_version"):
            continue
        optional = "" if name in schema["required"] else " (optional)"
        yield f"{prefix}{name}", type_of(field) + optional, field["description"]
        inner, path = field, f"{prefix}{name}"
        if inner.get("type") == "array":
            inner, path = inner["items"], f"{path}[]"
        for variant in inner.get("anyOf", [inner]):
            if "properties" in variant:
                yield from fields(variant, f"{path}.")


def table(schema: Schema) -> str:
    """Return the fields of an object as a Markdown table, or the values of an enumeration."""
    if "enum" in schema:
        return f"\n{type_of(schema)}\n"
    rows = [f"| `{path}` | {kind} | {text} |\n" for path, kind, text in fields(schema)]
    return "\n| field | type | meaning |\n|---|---|---|\n" + "".join(rows)


def page() -> str:
    """Return the text of docs/json.md: a section per format, then the objects that several formats have."""
    schema = json.loads(SCHEMA.read_text())
    definitions = schema["$defs"]
    definitions_by_format = {name: reachable(name, definitions) for name in referenced(schema["oneOf"])}
    uses = [target for targets in definitions_by_format.values() for target in targets]
    parts = [INTRODUCTION]

    def section(heading: str, name: str) -> None:
        parts.append(f"\n{heading} {name}\n\n{definitions[name]['description']}\n{table(definitions[name])}")

    for name, targets in definitions_by_format.items():
        section("##", name)
        for target in targets:
            if uses.count(target) == 1:
                section("###", target)
    parts.append("\n## Objects of several formats\n")
    for target in dict.fromkeys(uses):
        if uses.count(target) > 1:
            section("###", target)
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
