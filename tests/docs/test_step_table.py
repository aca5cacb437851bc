"""The table of aggregation steps agrees with known facts about well-known steps."""

from __future__ import annotations

from docs.generate.parts import DISTRIBUTION
from docs.generate.step_table import step_table


def test_the_table_of_steps_says_what_is_known() -> None:
    rows = {line.split("`")[1]: [cell.strip() for cell in line.split("|")[2:-1]] for line in table_rows()}
    fixed = {"`pathwise-linear`", "`pathwise-smoothed`", "`tail`"}
    assert rows["fedavg"][::2] == ["a fixed share, by which the core adds up", "yes"]
    assert set(rows["fedavg"][1].split(", ")) == set(rows["update-cap"][1].split(", ")) > fixed
    assert rows["krum"][::2] == ["a share that is found from all updates of the round", "with a condition"]
    assert "`postprocess`" in rows["krum"][1]
    assert fixed.isdisjoint(rows["krum"][1].split(", "))
    assert "the largest over all coordinates" in rows["trimmed-mean"][0]
    assert rows["centered-clipping"][1:] == ["none", "refused"]
    assert rows["foolsgold"][0].endswith("which depends on earlier rounds, too")


def table_rows() -> list[str]:
    return step_table(DISTRIBUTION).splitlines()[2:]
