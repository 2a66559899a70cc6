"""Makes the HTML pages of Altair safe for names from the wire.

Altair writes a chart's JSON unescaped into a <script>, where a name such as `</script>` would become markup. The menu
of a chart writes that JSON as markup into a new window ("View Source", "View Compiled Vega"), or sends it to a web site
("Open in Vega Editor"). `install` wraps Altair's templates, which render all of its pages (`save`, `to_html`,
renderers): JSON is escaped, and the menu keeps only the items that save the picture, unless the caller requests others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from altair.utils import html

from pipeline.report.text import script_safe

TEMPLATES: dict[str, Any] = cast(Any, html.TEMPLATES)  # of Altair, by name
# Items of vega-embed's menu that neither write names as markup nor send them away.
ACTIONS = {"export": True, "source": False, "compiled": False, "editor": False}


@dataclass(frozen=True)
class EscapingTemplate:
    """A template of Altair that escapes all JSON."""

    template: Any

    def render(self, *, spec: str, embed_options: str, **values: Any) -> str:
        """The page; `spec`, `embed_options`: JSON."""
        options = json.dumps({"actions": ACTIONS, **json.loads(embed_options)})
        rendered: str = self.template.render(spec=script_safe(spec), embed_options=script_safe(options), **values)
        return rendered


def install() -> None:
    """Wrap Altair's templates, for all pages that it writes from now on."""
    for name, template in TEMPLATES.items():
        if not isinstance(template, EscapingTemplate):
            TEMPLATES[name] = EscapingTemplate(template)
