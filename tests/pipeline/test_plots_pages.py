"""Pictures as pages: names from the wire end no script and are no markup, whatever writes the page.

Pages are read as the HTML standard has it (html5lib), so that the scripts in them are those that a browser would run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import altair as alt
import html5lib
import pytest
import vl_convert
from plots_support import pictures_with
from pyspark.sql import SparkSession

from pipeline.plots.chart import empty

# Short enough to be drawn in full. Each leaves a script in its own way; the last keeps others from leaving it.
HOSTILE = (
    "</script><script src=x.js>",
    "</SCRIPT ><img src=x.js onerror=a()>",
    "</script\t/x.js>&lt;b",
    "<!--<script>x.js",
)
XHTML = "{http://www.w3.org/1999/xhtml}"


@pytest.fixture(scope="module")
def charts(spark: SparkSession) -> dict[str, Any]:
    return pictures_with(spark, HOSTILE[:2])


def scripts(page: str) -> list[tuple[dict[str, str], str]]:
    """The scripts of a page: attributes, text."""
    return [(dict(tag.attrib), tag.text or "") for tag in html5lib.parse(page).iter(f"{XHTML}script")]


def specification(script: str) -> Any:
    """The JSON that a script of Altair's begins with."""
    return json.JSONDecoder().raw_decode(script, script.index("{", script.index("const spec =")))[0]


def saved(chart: Any, path: Path, **options: Any) -> str:
    chart.save(str(path), **options)
    return path.read_text()


def test_a_saved_picture_has_only_our_scripts(
    charts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: "/* Vega */")  # megabytes that nobody else writes
    for name, chart in charts.items():
        bundle, own = scripts(saved(chart, tmp_path / "picture.html", inline=True))
        assert [bundle[0], own[0]] == [{"type": "text/javascript"}] * 2, name
        assert "/* Vega */" in bundle[1]
        assert specification(own[1]) == chart.to_dict(), name
        assert "x.js" in own[1], f"{name} shows no hostile name"
        assert not re.search("[<>&]", own[1]), name


def test_the_embedded_library_does_not_close_its_script_element(charts: dict[str, Any], tmp_path: Path) -> None:
    page = saved(charts["versions"], tmp_path / "picture.html", inline=True)
    assert [attributes for attributes, _ in scripts(page)] == [{"type": "text/javascript"}] * 2


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_writes_a_page_escapes(name: str, tmp_path: Path) -> None:
    """Libraries from a CDN, a fragment of a page, and what the HTML renderer puts into a notebook."""
    chart = empty(name, name)
    with alt.renderers.enable("html"):
        markup = chart._repr_mimebundle_()["text/html"]
    for page in (saved(chart, tmp_path / "picture.html"), chart.to_html(fullhtml=False), markup):
        found = scripts(page)
        assert ["x.js" in text for _, text in found] == [False] * (len(found) - 1) + [True]
        assert not [src for attributes, _ in found if "x.js" in (src := attributes.get("src", ""))]
        assert page.rstrip().endswith(("</script>", "</html>"))
        assert not re.search('<!--|x.js[^"]*>', page)


def test_line_separators_that_json_allows_are_escaped() -> None:
    """U+2028 and U+2029 end a line of older JavaScript, within a string too."""
    page = empty("a\u2028b\u2029c", "d").to_html(json_kwds={"ensure_ascii": False})
    assert not re.search("[\u2028\u2029]", page)
    assert "a\\u2028b\\u2029c" in page


def test_the_menu_neither_writes_markup_nor_sends_names_away(charts: dict[str, Any]) -> None:
    """vega-embed writes the JSON of "View Source" into a new window as markup, and posts it to the editor's site."""
    actions = json.dumps({"export": True, "source": False, "compiled": False, "editor": False})
    assert f'"actions": {actions}' in charts["versions"].to_html()
    assert '"actions": false' in charts["versions"].to_html(embed_options={"actions": False})


def test_in_a_notebook_names_are_text(charts: dict[str, Any]) -> None:
    """Jupyter, and nbconvert where it writes a notebook as HTML, put the drawing into the page as it is."""
    for name, chart in charts.items():
        displayed = chart._repr_mimebundle_()
        bundle = displayed[0] if isinstance(displayed, tuple) else displayed
        assert {*bundle} == {"image/svg+xml"}
        page = html5lib.parse(f"<!DOCTYPE html><body>{bundle['image/svg+xml']}</body>")
        tags = [tag for tag in page.iter() if isinstance(tag.tag, str)]
        assert {tag.tag.rpartition("}")[2] for tag in tags} <= {
            "html", "head", "body", "svg", "g", "path", "rect", "text", "line", "style", "defs", "clipPath", "tspan",
        }, name  # fmt: skip
        assert not [attribute for tag in tags for attribute in tag.attrib if str(attribute).startswith("on")]
        assert "x.js" in "".join(page.itertext()), name
