# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the report of a serving group as one HTML file on the controller. Controller only."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._core import text
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_data

TEMPLATE = Path(__file__).resolve().parents[2] / "roles" / "vllm_tp2" / "templates" / "report.html.j2"
WIDTH, LINES_HEIGHT, EDGE_HEIGHT = 860, 270, 96  # of an SVG; the edge is axis and legend
STAGES_HEIGHT, BAR_HEIGHT = 44, 12
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
TICKS = 8


def library() -> Any:
    """Return pygal, which not every controller has. Raises ImportError."""
    import pygal

    pygal.etree.etree.to_etree()  # the same with and without lxml
    return pygal


def ticks(low: float, high: float) -> list[float]:
    """Return the round times between two times."""
    step = next((each for each in STEPS if (high - low) / each <= TICKS), math.ceil((high - low) / TICKS))
    return [float(each) for each in range(math.ceil(low / step) * step, math.floor(high) + 1, step)]


def duration(seconds: float) -> str:
    """Return seconds since a start for an axis."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min" if whole % 60 == 0 else f"{whole // 60}:{whole % 60:02d} min"


def chart(figure: Mapping[str, Any]) -> Any:
    """Return the pygal chart of a figure. What has labels is drawn from the left to the right, the first label on top."""
    pygal, kind, series, rows = library(), figure["kind"], figure["series"], len(figure["labels"])
    common = {
        "js": [], "css": [], "no_prefix": True, "width": WIDTH, "margin": 4, "margin_bottom": 28, "margin_right": 36, "spacing": 8,
        "max_scale": 6, "min_scale": 3,
        "legend_at_bottom": True, "legend_at_bottom_columns": max(3, min(4, len(series))), "legend_box_size": 10, "truncate_legend": -1, "truncate_label": 28,
        "style": pygal.style.Style(label_font_size=12, major_label_font_size=12, legend_font_size=12),
        "value_formatter": lambda value: f"{value or 0:{',.0f' if abs(value or 0) >= 1000 else ',.4g'}} {figure['unit']}",
    }  # fmt: skip
    if kind == "stages":
        made = pygal.HorizontalStackedBar(**{**common, "value_formatter": duration}, height=EDGE_HEIGHT + STAGES_HEIGHT + STAGES_HEIGHT * rows)
        made.y_labels = ticks(0, max(sum(filter(None, values)) for values in zip(*(values for _name, values in series))))
    elif kind == "bars":
        made = pygal.HorizontalBar(**common, height=EDGE_HEIGHT + BAR_HEIGHT * rows * (len(series) + 1))
        made.range = (0, 1.08 * max(filter(None, (value for _name, values in series for value in values))))
    else:
        times = [x for _name, points in series for x, _y in points]
        made = pygal.XY(**common, height=LINES_HEIGHT, show_dots=False, allow_interruptions=True)
        made.x_value_formatter = (lambda x: time.strftime("%m-%d %H:%M", time.gmtime(x))) if figure["epoch"] else duration
        made.x_labels = ticks(min(times), max(times)) or [min(times), max(times)]
        made.xrange = (min(times), max(times))
        made.range = (0, 1.05 * max(y for _name, points in series for _x, y in points if y is not None) or 1)
    made.x_labels = figure["labels"][::-1] or made.x_labels
    for name, values in series:
        made.add(name, values[::-1] if figure["labels"] else values)
    return made


def _cleaned(node: Any) -> None:
    """Remove scripts, styles and helpers of pygal's scripts; a value becomes the title that browsers show and screen readers read."""
    for child in list(node):
        tag = str(child.tag).rpartition("}")[2] if isinstance(child.tag, str) else "comment"
        if tag in ("comment", "script", "style", "defs", "desc") or child.get("class") == "tooltip":
            node.remove(child)
            continue
        texts = {each.get("class"): each.text for each in reversed(child) if str(each.tag).rpartition("}")[2] == "desc"}
        child.attrib.pop("id", None)
        _cleaned(child)
        if texts.get("value"):
            title = child.makeelement("title", {})
            title.text = ": ".join(filter(None, [texts.get("x_label"), texts["value"]]))
            child.insert(0, title)


def svg(figure: Mapping[str, Any], name: str) -> str:
    """Return the figure as an SVG element whose colours are those of the page."""
    root = chart(figure).render_tree()
    for each in root.findall("title"):
        root.remove(each)
    _cleaned(root)
    root.attrib.update({"id": name, "role": "img", "aria-labelledby": f"{name}-title {name}-desc", "class": f"figure {figure['kind']}"})
    for place, (tag, words) in enumerate((("title", figure["title"]), ("desc", figure["desc"]))):
        element = root.makeelement(tag, {"id": f"{name}-{tag}"})
        element.text = words
        root.insert(place, element)
    return str(library().etree.etree.tostring(root, encoding="unicode"))  # it escapes all texts


def render(page: Mapping[str, Any]) -> str:
    """Return the HTML of a page of report_data.plan()."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(page=page, svg=svg)


def write(args: Mapping[str, Any], variables: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """Join what was read of all ranks with what is on the controller, and write one file. Return the lines and the document to show.

    `args` are the suboptions of `report` of the module show, `variables` those of the hosts. Raises AnsibleActionFail.
    """
    try:
        library()
    except ImportError as error:
        raise AnsibleActionFail(f"The report cannot be drawn on this computer: {error}. Install it: python -m pip install 'pygal>=3.1,<4'") from error
    name, hosts = str(args["group"]["name"]), [str(each) for each in args["group"]["hosts"]]
    folder = Path(args["receipts"]) / name
    dest = Path(args["dest"]) / f"{name}.html" if args["dest"] else folder / "report.html"
    known = [host for host in hosts if host in variables]
    results = {host: {key: dict(variables[host].get(args["registers"][key]) or {}) for key in ("fabric", "info")} for host in known}
    try:
        nodes, receipts = report_data.nodes_of(hosts, results, folder), report_data.receipts_in(folder)
        bench, made = report_data.bench_in(Path(args["bench"]), name), text.stamp()[:16].replace("T", " ")
        page = report_data.plan(name, hosts, args["status"], nodes, receipts, args["profiles"], bench, made)
        dest.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(str(dest), render(page), 0o600)
    except OSError as error:
        where = error.filename or dest
        raise AnsibleActionFail(f"{name}: {where} on the controller cannot be written: {error.strerror}. Set report_dest to a folder that can.") from error
    lines = [page["sentence"], f"{name}: report {dest}", *(f"{name}: {each}" for each in page["notes"])]
    figures = {name: len(part["figures"]) for name, part in page["sections"].items()}
    return lines, {"schema": "gb10.cluster/report/1", "group": name, "path": str(dest), "figures": figures, "notes": page["notes"]}
