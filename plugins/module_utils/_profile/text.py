# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles as text: a table of all, a sheet for one; for playbooks/profiles.yml and docs/reference/profiles.md."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._bench import levels
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import table as columns
from ansible_collections.gb10.cluster.plugins.module_utils._profile import values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.kv_estimate import KIB_PER_GIB, make_plan
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE

# How an image is available, best first: text, and why it has this place.
AVAILABLE = (
    ("pull", "a registry has it"),
    ("build", "one rank builds it from a Dockerfile"),
    ("missing", "you load it (docker load), or give a Dockerfile (image_build_context)"),
)


def thousands(value: Any) -> str:
    """Return a count with separators, or a dash."""
    return "-" if value is None else f"{value:,}"


def _span(bounds: Mapping[str, Any]) -> str:
    low, high = bounds["min"], bounds["max"]
    if low is None and high is None:
        return "-"
    if high is None:
        return f"from {thousands(low)}"
    return f"up to {thousands(high)}" if low is None else f"{thousands(low)} to {thousands(high)}"


def _pool(profile: Mapping[str, Any]) -> str:
    """Return the gate's bounds of the pool, or the plan's estimate for DGX Sparks, which nothing is held to."""
    bounds, plan = profile["gate"]["effective_tokens"], profile["plan"]
    if bounds["min"] is None and bounds["max"] is None:
        pool = make_plan(profile, [{"total_kib": SPARK_GIB * KIB_PER_GIB}] * plan["ranks"])
        if pool["expected_tokens"]:
            return f"{round(pool['low_tokens'], -4):,} to {round(pool['high_tokens'], -4):,} (estimate)"
    return _span(bounds)


def _speculation(args: Mapping[str, Any]) -> str:
    spec = values.speculation(args)
    return f"{spec.get('method', '?')}, {spec.get('num_speculative_tokens', '?')}" if spec else "-"


def availability(image: Mapping[str, Any]) -> int:
    """Return the place of an image in :data:`AVAILABLE`."""
    image = image.get("base", image)
    return 0 if image["pull"] else 1 if image["build"] else 2


def _image(image: Mapping[str, Any]) -> str:
    return AVAILABLE[availability(image)][0]


def facts(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to choose a profile by. GiB and minutes are null if they are not published. The GiB of the model include the drafter's."""
    image, args = profile["image"], profile["engine"]["args"]
    return {
        "name": profile["name"], "summary": profile["summary"], "model": profile["model"]["id"], "image": _image(image), "image_reference": image["reference"],
        "image_gib": image["size_gib"], "download_gib": image["download_gib"], "build_minutes": image["build_minutes"],
        "model_gib": values.disk_gib(profile) or None,
        "context": profile["gate"]["context"], "requests": args.get("max-num-seqs"), "kv_cache": str(args.get("kv-cache-dtype", "-")),
        "speculation": _speculation(args), "kv_pool": _pool(profile), "speed": levels.headline(profile["published"]),
        "published": [{**each._asdict(), "level": each.level._asdict()} for each in levels.figures(profile["published"])],
    }  # fmt: skip


def document(profiles: Mapping[str, Mapping[str, Any]], selected: str) -> dict[str, Any]:
    """Return what to choose a profile by, those whose image is available today first, and the sheet of the selected one."""
    found = [facts(profiles[name]) for name in by_availability(profiles)]
    return {"schema": "gb10.cluster/profiles/1", "selected": selected, "profiles": found, "sheet": sheet(profiles[selected])}


def table(found: Sequence[Mapping[str, Any]], selected: str = "") -> list[str]:
    """Return the table of profiles; the selected one has a star."""
    rows = []
    for each in found:
        size, minutes = each["download_gib"] or each["image_gib"], each["build_minutes"]
        more = {"pull": f" {size:g} GiB" if size else "", "build": f" {minutes:g} min" if minutes else ""}
        name = f"{each['name']} *" if each["name"] == selected else each["name"]
        weights = f"{each['model_gib']:g} GiB" if each["model_gib"] else "-"
        model = each["model"].rpartition("/")[2]
        shown = (each["context"], each["requests"], each["speed"], model if len(model) <= 26 else f"{model[:23]}...")
        rows.append((name, each["image"] + more.get(each["image"], ""), weights, *shown))
    legend = [f"{name}: {why}" for name, why in AVAILABLE if any(each["image"] == name for each in found)]
    return [*columns(("profile", "image", "weights", "context", "requests", "speed", "model"), rows), "", *legend]


def lines(document: Mapping[str, Any], width: int = 0) -> list[str]:
    """Return the text of :func:`document`; the sheet of the selected profile wraps at the width."""
    out = ["", *table(document["profiles"], document["selected"]), ""]
    for line in document["sheet"]:
        indent = "    " if line.startswith(" ") else "  "
        out += textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False) if line and width else [line]
    return out


def by_availability(profiles: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of profiles in the order of :data:`AVAILABLE`, the default one first among its equals."""
    return sorted(profiles, key=lambda name: (availability(profiles[name]["image"]), name != DEFAULT_PROFILE, name))


def sheet(profile: Mapping[str, Any]) -> list[str]:
    """Return one profile as lines: what it offers, what it needs, what a good boot shows, what to know."""
    image, gate, ranks, engine = profile["image"], profile["gate"], profile["ranks"], profile["engine"]
    args, api, base = engine["args"], engine["api"], image.get("base", image)
    models, size = list(zip(("model", "drafter"), values.models_of(profile))), "{:g} GiB".format
    mods = f", with {', '.join(each['path'] for each in image['mods'])} over {base['reference']}" if image["mods"] else ""
    rows: dict[str, Any] = {
        "API": f"http://<head>:{api['port']}/v1, bound to {api['host']}, model {' or '.join(profile['model']['served_names'])}",
        "context": thousands(gate["context"]),
        "requests at once": args.get("max-num-seqs"),
        "nodes": f"{ranks['min']} or more" if ranks["max"] is None else f"{ranks['min']} to {ranks['max']}",
        "image": f"{image['reference']}{'@' + image['digest'] if image['digest'] else ''} ({_image(image)}){mods}",
        "size of the image": image["size_gib"] and size(image["size_gib"]),
        "size of the pull": image["download_gib"] and size(image["download_gib"]),
        "minutes of the build": image["build_minutes"],
        "build": base["build"] and not base["pull"] and f"{base['build']}/Dockerfile",
        **{name: each["id"] + (f", {size(each['size_gib'])}" if each["size_gib"] else "") for name, each in models},
        **{
            f"{name} on the node": f"<model store>/{each['relative_path']}" if each["relative_path"] else f"{each['path']} in the container"
            for name, each in models
        },
        "memory": f"utilization {args.get('gpu-memory-utilization', 'the default of vLLM')}",
        "weights a rank": profile["plan"]["weights_gib_per_rank"] and size(profile["plan"]["weights_gib_per_rank"]),
        "container memory limit": profile["container"]["memory"],
        "pool, tokens": _pool(profile),
        "concurrency": _span(gate["concurrency"]),
        "KV cache dtype": gate["kv_cache_dtype"],
        "speculation": gate["speculative_method"],
        "transport": gate["transport"],
        "answer": gate["completion"]["expect"] is not None and json.dumps(gate["completion"]["expect"], ensure_ascii=False),
    }
    lines = [f"{profile['name']}: {profile['summary']}", "", *(f"  {key}: {value}" for key, value in rows.items() if value not in (None, False, "-"))]
    parts = (
        ("Default of the collection", [f"{path}: {_shown(profile, path)}" for path in profile.get("defaults", [])]),
        ("Published", levels.published_lines(profile["published"])),
        ("Know", profile["notes"]),
        ("Differs from its source", deviation_lines(profile)),
        ("Sources", profile["sources"]),
    )
    for title, texts in parts:
        lines += ["", title, *(f"  - {text}" for text in texts)] if texts else []
    return lines


def _shown(profile: Mapping[str, Any], path: str) -> str:
    value: Any = profile
    for key in path.split("."):
        value = value.get(key, "removed by the inventory")
        if isinstance(value, str):
            break
    return value if isinstance(value, str) else json.dumps(value)


def deviation_lines(profile: Mapping[str, Any]) -> list[str]:
    """Return the deviations, one line each."""
    return [
        "{}: {} {}".format(", ".join(d["keys"]), f"the source has {d['original']!r}." if d["original"] is not None else "not in the source.", d["why"])
        for d in profile["deviations"]
    ]


def validated_lines(document: Mapping[str, Any]) -> list[str]:
    """Return what validate.yml reports of a group. The verdict is repeated below Compose files, which are long."""
    pool, ranks = document["pool"], document["ranks"]
    expected, needed = pool["expected_tokens"], pool["needed_tokens"]
    estimate = f"{expected:,} tokens" + (f" ({needed:,} needed)" if needed is not None else "") if expected is not None else "none"
    verdict = f"{document['group']}: valid. Estimated KV pool: {estimate}." + (f" Rendered: {document['path']}" if document["path"] else "")
    rows = [(each["rank"], each["host"], document["profile"], each["image"], ", ".join(each["secrets"]), each["compose_check"]) for each in ranks]
    out = ["", verdict, "", *columns(("rank", "host", "profile", "image", "secrets", "docker compose config"), rows), "", pool["text"]]
    out.append("The node adds the fabric's variables (NCCL, GLOO) and the name of the release. Secrets are in a file of mode 0600 there.")
    shown = [each for each in ranks if each.get("compose")]
    for each in shown:
        out += ["", f"# {document['group']} rank {each['rank']} on {each['host']}: compose.yaml", *each["compose"].splitlines()]
    return [*out, "", verdict] if shown else out


def imported_lines(document: Mapping[str, Any]) -> list[str]:
    """Return what import.yml reports: the file, what is not mapped, and the next command. The file has the rest."""
    state, left = document["state"], document["left"]
    out = ["", f"{document['path']} {'' if state == 'would be written' else 'is '}{state}: profile {document['profile']}, made of a {document['kind']}.", ""]
    unmapped = [(each["field"], each["reason"]) for each in document["unmapped"]]
    out += columns(("not mapped", "why"), unmapped) if unmapped else ["Nothing is to be done by hand."]
    out += ["", f"Set by the collection, or not in a profile: {', '.join(left)}"] if left else []
    return [*out, "", f"Next: {document['next']}" if document["next"] else "To write the file, run the command without --check."]
