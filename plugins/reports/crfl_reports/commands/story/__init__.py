"""The story that `crfl demo` tells: a federation without defence, with one, and with a proof."""

from crfl_reports.commands.story.chart import chart
from crfl_reports.commands.story.telling import ROWS, Row, table, told

__all__ = ["ROWS", "Row", "chart", "table", "told"]
