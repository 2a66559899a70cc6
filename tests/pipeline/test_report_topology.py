"""The picture of the topology: boxes, lines and what they say."""

from __future__ import annotations

import re

from report_support import everywhere

from pipeline.report.grouped_counts import Groups
from pipeline.report.topology import BOXES, CHARACTERS, picture, with_names

SECOND = 10**9
ROWS: list[dict[str, str | int | None]] = [
    {"kind": "publishes", "origin": "shop", "target": "", "rows": 90},
    {"kind": "publishes", "origin": "shop", "target": "events", "rows": 30},
    {"kind": "routed", "origin": "", "target": "orders", "rows": 80},
    {"kind": "routed", "origin": "events", "target": "audit", "rows": 0},
    {"kind": "consumes", "origin": "orders", "target": "billing", "rows": 80},
]


def test_boxes_are_in_the_column_of_their_kind() -> None:
    drawn = picture(ROWS, 10 * SECOND)
    assert drawn is not None
    columns = {(box.column, box.whole) for box in drawn.boxes}
    assert columns == {
        (0, "shop"), (1, "(default exchange)"), (1, "events"), (2, "orders"), (2, "audit"), (3, "billing"),
    }  # fmt: skip
    assert len({(box.x, box.y) for box in drawn.boxes}) == len(drawn.boxes)


def test_lines_say_how_many_messages_and_how_fast() -> None:
    drawn = picture(ROWS, 10 * SECOND)
    assert drawn is not None
    texts = [line.text for line in drawn.lines]
    assert "shop \u2192 (default exchange): 90 messages, 9 a second" in texts
    assert "events \u2192 audit: bound, no message seen" in texts
    widths = {line.text.split(":")[0]: line.width for line in drawn.lines}
    assert widths["shop \u2192 (default exchange)"] > widths["shop \u2192 events"] > 1
    assert [line.seen for line in drawn.lines] == [True, True, True, False, True]


def test_boxes_that_do_not_fit_are_counted() -> None:
    many = [{"kind": "consumes", "origin": f"q{number}", "target": "app", "rows": number} for number in range(15)]
    drawn = picture(many, SECOND)
    assert drawn is not None
    assert drawn.more == [0, 0, 15 - BOXES, 0]
    assert [box.whole for box in drawn.boxes if box.column == 2] == [f"q{number}" for number in range(14, 4, -1)]


def test_names_from_the_wire_are_cut_and_show_what_is_invisible() -> None:
    row = {"kind": "publishes", "origin": "a\u202e<b>" + "c" * 300, "target": "x", "rows": 1}
    drawn = picture([row], SECOND)
    assert drawn is not None
    (box,) = (box for box in drawn.boxes if box.column == 0)
    assert box.text.startswith("a[U+202E]<b>")
    assert len(box.text) <= CHARACTERS
    assert re.search("\u2026$", box.text)


def test_the_table_has_the_names_of_the_picture() -> None:
    rows = with_names(Groups(ROWS, 9))
    assert [(row["origin"], row["target"]) for row in rows.rows[:3]] == [
        ("shop", "(default exchange)"), ("shop", "events"), ("(default exchange)", "orders"),
    ]  # fmt: skip
    assert rows.total == 9


def test_without_rows_there_is_no_picture() -> None:
    assert picture([], SECOND) is None
    assert picture(everywhere("some text").groups["topology"].rows, SECOND) is None
