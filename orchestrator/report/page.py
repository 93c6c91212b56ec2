"""A report as one HTML page: no script, no request, and a policy that allows neither."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from orchestrator.plot import STYLE, svg

if TYPE_CHECKING:
    from orchestrator.report.parts import Report

_HERE = Path(__file__).parent


def page(report: Report) -> str:
    """Return the page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((_HERE / "page.html").read_text(encoding="utf-8"))
    style = (_HERE / "page.css").read_text(encoding="utf-8") + STYLE
    # The style is named by its sum, so that none that came in with a text of the run could count.
    digest = b64encode(sha256(style.encode()).digest()).decode()
    return template.render(
        report=report,
        style=Markup(style),
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        curves=Markup(svg(report.curves)) if report.curves else "",
    )
