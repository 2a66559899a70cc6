"""Pictures as HTML pages, with names from the wire as data and nothing else.

Altair writes a chart's JSON into a <script> as it is, where a name such as `</script>` would end it and become markup.
And the menu beside a chart writes that JSON into a new window as markup ("View Source", "View Compiled Vega"), or sends
it to a web site ("Open in Vega Editor"). All pages of Altair are rendered from its table of templates: there JSON is
escaped, and of the menu only what saves the picture is left, unless somebody asks for more. So it holds for pictures
that were combined, and whatever asks for the page: `save`, `to_html`, a renderer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from altair.utils import html

from pipeline.report.text import script_safe

TEMPLATES: dict[str, Any] = cast(Any, html.TEMPLATES)  # of Altair, by name
# Of vega-embed's menu: what neither writes names as markup nor sends them away.
ACTIONS = {"export": True, "source": False, "compiled": False, "editor": False}


@dataclass(frozen=True)
class Inert:
    """A template of Altair's, with all JSON in it escaped."""

    template: Any

    def render(self, *, spec: str, embed_options: str, **values: Any) -> str:
        """The page; `spec`, `embed_options`: JSON."""
        options = json.dumps({"actions": ACTIONS, **json.loads(embed_options)})
        rendered: str = self.template.render(spec=script_safe(spec), embed_options=script_safe(options), **values)
        return rendered


def protect() -> None:
    """Have all pages that Altair writes from now on escaped."""
    for name, template in TEMPLATES.items():
        if not isinstance(template, Inert):
            TEMPLATES[name] = Inert(template)
