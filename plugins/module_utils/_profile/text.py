# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles as text: a table of all, a sheet for one; for playbooks/profiles.yml and docs/profiles.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.kv_estimate import KIB_PER_GIB, make_plan
from ansible_collections.gb10.cluster.plugins.module_utils._profile.schema import DEFAULT_PROFILE

HEADER = ("profile", "context", "requests", "KV cache", "speculation", "util", "executor", "pool (gate)", "image", "size, time", "published")
# How an image is available, best first: text, and why it has this place.
AVAILABLE = (
    ("pull", "a registry has it"),
    ("build", "one rank builds it from a public repository"),
    ("own sources", "it needs your files or your image: see the note"),
    ("missing", "it cannot be built from public sources"),
)
# The first of these that a profile publishes is its headline figure.
HEADLINES = (
    ("aggregate_tok_s_at_16", "{} tok/s at 16"),
    ("single_stream_tok_s", "{} tok/s single"),
    ("decode_tok_s_at_depth_0", "{} tok/s single"),
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
    spec = args.get("speculative-config")
    if not isinstance(spec, Mapping):
        return "-"
    return f"{spec.get('method', '?')}, {spec.get('num_speculative_tokens', '?')}"


def availability(image: Mapping[str, Any]) -> int:
    """Return the place of an image in :data:`AVAILABLE`."""
    build = image["build"] or {}
    if image["pull"]:
        return 0
    if build.get("missing"):
        return 3
    return 1 if build.get("repository") and build.get("steps") else 2


def _image(image: Mapping[str, Any]) -> str:
    return AVAILABLE[availability(image)][0]


def _published_size(image: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return what is published of the sizes and the duration of the build; a dash if nothing is."""
    figures = (
        (image["size_gib"], "image {:g} GiB"), (image["download_gib"], "pull {:g} GiB"), (image["build_minutes"], "build {:g} min"),
        (model["size_gib"], "model {:g} GiB"),
    )  # fmt: skip
    return ", ".join(text.format(value) for value, text in figures if value is not None) or "-"


def row(profile: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one profile as the cells of :data:`HEADER`."""
    args, published = profile["engine"]["args"], profile["published"]
    headline = next((text.format(published[key]) for key, text in HEADLINES if key in published), "-")
    return (
        profile["name"],
        thousands(profile["gate"]["context"]),
        str(args.get("max-num-seqs", "-")),
        str(args.get("kv-cache-dtype", "-")),
        _speculation(args),
        str(args.get("gpu-memory-utilization", "-")),
        profile["engine"]["executor"],
        _pool(profile),
        _image(profile["image"]),
        _published_size(profile["image"], profile["model"]),
        headline,
    )


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(r, widths)).rstrip() for r in rows]


def table(profiles: Mapping[str, Mapping[str, Any]], selected: str = "") -> list[str]:
    """Return all profiles as lines, those whose image is available today first; the selected one carries a star."""
    rows = [HEADER] + [row(profiles[n]) for n in by_availability(profiles)]
    legend = ["", *(f"{name}: {why}" for number, (name, why) in enumerate(AVAILABLE) if any(availability(p["image"]) == number for p in profiles.values()))]
    return _columns([(f"{r[0]} *" if r[0] == selected else r[0], *r[1:]) for r in rows]) + legend


def by_availability(profiles: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of profiles in the order of :data:`AVAILABLE`, the default one first among its equals."""
    return sorted(profiles, key=lambda name: (availability(profiles[name]["image"]), name != DEFAULT_PROFILE, name))


def sheet(profile: Mapping[str, Any]) -> list[str]:
    """Return one profile as lines: what it offers, what it needs, what a good boot shows, what to know."""
    image, model, gate, box, plan = profile["image"], profile["model"], profile["gate"], profile["container"], profile["plan"]
    args = profile["engine"]["args"]
    api = profile["engine"]["api"]
    lines = [f"{profile['name']}: {profile['summary']}", "", "Gives"]
    gives = [
        ("API", f"http://<head>:{api['port']}/v1, bound to {api['host']}, model {' or '.join(model['served_names'])}"),
        ("context", thousands(gate["context"])),
        ("requests at once", args.get("max-num-seqs", "-")),
    ]
    gives += [(key.replace("_tok_s", " tok/s").replace("_", " "), value) for key, value in profile["published"].items()]
    lines += [f"  {k}: {v}" for k, v in gives]
    lines += ["", "Needs"]
    most = "" if profile["ranks"]["max"] is None else f" to {profile['ranks']['max']}"
    needs: list[tuple[str, Any]] = [
        ("nodes", f"{profile['ranks']['min']}{most or ' or more'}"),
        ("image", f"{image['reference']}{'@' + image['digest'] if image['digest'] else ''} ({_image(image)})"),
        ("model", f"{model['id']}" + (f", {model['size_gib']:g} GiB" if model["size_gib"] else "")),
        ("model on the node", f"<model store>/{model['relative_path']}" if model["relative_path"] else f"{model['path']} in the container"),
        ("memory", f"utilization {args.get('gpu-memory-utilization', 'the default of vLLM')}"),
    ]
    if plan["weights_gib_per_rank"] is not None:
        needs.append(("weights a rank", f"{plan['weights_gib_per_rank']:g} GiB"))
    if box["memory"]:
        needs.append(("container memory limit", box["memory"]))
    build = image["build"] or {}
    size = _published_size(image, model)
    if size != "-":
        needs.append(("published sizes", size))
    if build.get("missing"):
        needs.append(("image is missing", build["missing"] + (f" Use {build['use_instead']} instead." if build["use_instead"] else "")))
    elif build.get("repository"):
        extras = [f"pull request {each['number']}" for each in build["pull_requests"]]
        extras += [f"{len(build[key])} {text}" for key, text in (("cherry_picks", "cherry-picks"), ("patches", "patches"), ("pins", "pins")) if build[key]]
        needs.append(("build", f"{build['repository']} at {build['commit'][:12]}, {', '.join([*extras, str(len(build['steps'])) + ' steps'])}"))
    if build.get("note"):
        needs.append(("build note", build["note"]))
    lines += [f"  {k}: {v}" for k, v in needs]
    lines += ["", "A good boot shows"]
    shows: list[tuple[str, Any]] = [
        ("context", f"exactly {thousands(gate['context'])}" if gate["context"] else "-"),
        ("pool, tokens", _pool(profile)),
        ("concurrency", _span(gate["concurrency"])),
        ("KV cache dtype", gate["kv_cache_dtype"] or "-"),
        ("speculation", gate["speculative_method"] or "-"),
        ("transport", gate["transport"]),
        ("answer", json.dumps(gate["completion"]["expect"], ensure_ascii=False) if gate["completion"]["expect"] is not None else "any sane one"),
    ]
    lines += [f"  {k}: {v}" for k, v in shows]
    defaults = [f"{path}: {_shown(profile, path)}" for path in profile.get("defaults", [])]
    parts = (
        ("Default of the collection", defaults),
        ("Know", profile["notes"]),
        ("Differs from its seed", deviation_lines(profile)),
        ("Sources", profile["sources"]),
    )
    for title, items in parts:
        if items:
            lines += ["", title] + [f"  - {item}" for item in items]
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
        "{}: {} {}".format(", ".join(d["keys"]), f"the seed has {d['seed']!r}." if d["seed"] is not None else "not in the seed.", d["why"])
        for d in profile["deviations"]
    ]
