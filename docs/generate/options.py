"""Tables of options: type, default and meaning of each key."""

from __future__ import annotations

from pydantic.fields import FieldInfo

from crfl_core.config.options import default_text, type_text
from docs.generate.markdown import cell


def options_table(fields: dict[str, FieldInfo]) -> str:
    """Write the options of a table or plugin as a Markdown table."""
    if not fields:
        return "No options."
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in fields.items():
        kind = type_text(field.annotation, field.metadata)
        rows.append(f"| `{name}` | {kind} | {default_text(field)} | {cell(field.description)} |")
    return "\n".join(rows)
