# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a run makes of the options of the role vllm_tp2 and of what its ranks show. Pure, controller only.

`rank_of` renders one rank, or names why its node cannot take part. `group_of` names the release of all ranks, and decides what the run does.
`outcome_of` is the sentence at its end, the same on all ranks. `options` are those of the role, without the prefix `vllm_tp2_`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._bench import levels
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._node import releases
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import group_status, refusal
from ansible_collections.gb10.cluster.plugins.module_utils._pair import standing
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, kv_estimate
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml

#: What a run reads of the options. The profile has the changes of the inventory.
OPTIONS = (
    "allow_unsafe_memory", "api_key", "api_open", "attempts", "cap_add", "collective_test", "completion_timeout", "directory", "drain_seconds",
    "extra_env", "fabric_env", "failure_classes", "gate_strict", "healthcheck", "infiniband", "ipc", "keep_releases", "log_max_file",
    "log_max_size", "memlock", "no_new_privileges", "phase_seconds", "plan", "restart", "rollback", "secret_env", "stack",
    "timeout", "wait_available", "wait_seconds", "weights_writable",
)  # fmt: skip
#: Those that have another name, as variables of the cluster or of the command line.
SETTINGS = {"again": "again", "evidence": "gb10_evidence", "interfaces": "roce_interfaces", "model_store": "gb10_model_store", "receipts": "gb10_receipts",
            "takeover": "takeover"}  # fmt: skip
#: The part of a profile that is judged, or paces a start. The rest is rendered.
JUDGED = ("gate", "launch")
#: How an image is built, with paths of the controller, is in its reference and content.
BUILT = ("mods", "base", "layer", "build")
NO_INFO: dict[str, Any] = {"containers": [], "releases": [], "devices": [], "image": {}, "agent": {}}
#: What each rank has shown or what was made of it, in the order of the ranks.
Infos = Sequence[Mapping[str, Any]]


class Place(NamedTuple):
    """A rank of a serving group. `group` is what the lookup serving_group returns."""

    group: Mapping[str, Any]
    options: Mapping[str, Any]
    profile: Mapping[str, Any]
    criteria: Mapping[str, Any]
    check_mode: bool = False

    @property
    def rank(self) -> int:
        """The number of the rank."""
        return int(self.group["rank"])

    @property
    def hosts(self) -> list[str]:
        """The hosts of the group, the head first."""
        return list(self.group["hosts"])

    @property
    def folder(self) -> str:
        """The folder of the group on a node."""
        return f"{self.options['directory']}/{self.group['name']}"

    @property
    def given(self) -> dict[str, str]:
        """The secrets of the inventory. They are inputs of a release on all ranks."""
        return {**self.options["secret_env"], **({"VLLM_API_KEY": self.options["api_key"]} if self.options["api_key"] else {})}

    @property
    def secrets(self) -> dict[str, str]:
        """The secrets of this rank. A worker serves no API, so it has no key."""
        return {name: value for name, value in self.given.items() if not self.rank or name != "VLLM_API_KEY"}

    @property
    def makes_key(self) -> bool:
        """Whether the head has a key in a file, since the inventory has none."""
        return not (self.options["api_open"] or self.given.get("VLLM_API_KEY"))


def criteria_of(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the criteria of the gate. With pinned KV memory nothing is reserved for a long prefill, so a long prompt must prove that it fits."""
    speed = levels.single_stream(profile.get("published"))
    invariant = str(profile["env"].get("VLLM_BATCH_INVARIANT")) == "1"
    out = {**profile["gate"], "served_names": profile["model"]["served_names"], "published_tok_s": speed, "batch_invariant": invariant}
    if {"kv-cache-memory-bytes", "kv-cache-memory"} & set(profile["engine"]["args"]) and not out["long_prompt_tokens"]:
        out["long_prompt_tokens"] = 28000
    return out


def settings_of(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a release by which an owner knows it: the profile, the image, and the arguments of the engine."""
    return {"profile": profile["name"], "image": profile["image"]["reference"], **profile["engine"]["args"]}


def settings_changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return how the settings of a release change, one phrase each; of another profile only its name. None if the old ones are not known."""
    changed = standing.differences(old, {**dict.fromkeys(old), **new}) if old else []
    return [each for each in changed if each.startswith("profile ")] or changed


def image_of(infos: Infos, rank: int) -> dict[str, str]:
    """Return from which image a rank starts: `id` on its node, and `fingerprint`, the content that all ranks share.

    A tag may move, and ids differ between image stores. Without the image on any rank (check mode on new nodes) both are empty.
    A release that is kept with this content keeps its id, so that its files stay as they are.
    """
    info = infos[rank]
    content = next((found for each in infos if (found := (each.get("image") or {}).get("fingerprint"))), "")
    kept = [image for each in info["releases"] if (image := each.get("image") or {}).get("fingerprint") == content and image.get("gone") is False]
    kept += [info["image"]] if (info["image"] or {}).get("fingerprint") == content else []
    return {"id": str(kept[0]["id"]) if content and kept else "", "fingerprint": str(content)}


def unfit(here: Place, host: str, infos: Infos, answers: bool) -> str:
    """Return why a node cannot take part in a start, as a sentence; empty if it can. A check run goes on without an image.

    `answers` tells whether the head takes part so far.
    """
    info, head, reference = infos[here.rank], here.group["head"], here.profile["image"]["reference"]
    if info.get("engine_error") and not here.check_mode:
        return f"{host}: {info['engine_error']}"
    exists, content = (info.get("image") or {}).get("exists"), image_of(infos, here.rank)["fingerprint"]
    if not here.check_mode and not (exists and info["image"].get("fingerprint", "") == content):
        why = f"has other layers here than on {here.hosts[0]}" if exists else "is not on this node"
        return f"{host}: The image {reference} {why}, and all ranks need the same. Nothing was stopped. Run site.yml with --tags image,vllm_tp2."
    refused = "" if here.options["takeover"] else refusal(infos, here.group["name"], here.hosts)
    if refused:
        return refused
    if here.criteria["transport"] == "rdma" and not any(path.startswith("/dev/infiniband/uverbs") for path in info["devices"]):
        return (
            f"{host}: /dev/infiniband has no uverbs device, and gate.transport of profile {here.profile['name']} is rdma. NCCL would use TCP without an error."
            " Nothing was stopped. Load the driver (`modprobe -a mlx5_ib ib_uverbs`, then `rdma link`), and run site.yml again."
        )
    key = infos[0].get("key") or {}
    if here.makes_key and answers and "new" not in key:
        return f"{head}: {key.get('msg') or 'The API key of the group was not read.'}"
    return ""


def rank_of(here: Place, infos: Infos) -> dict[str, Any]:
    """Return one rank as the inventory and its node have it now: its Compose file, its part of release.json, and what depends on them.

    The secrets are not in it. `infos` is what vllm_rank_info returned on each rank, the head first. Raises ServingError.
    """
    options, profile, group, head = here.options, here.profile, here.group, here.rank == 0
    info, image, name = infos[here.rank], image_of(infos, here.rank), f"gb10-{group['name']}"
    place = {"rank": here.rank, "size": int(group["size"]), "master_addr": group["master_addr"], "fabric_ip": group["fabric"][0], "env": options["fabric_env"]}
    same = ("memlock", "stack", "model_store", "extra_env", "log_max_size", "log_max_file", "healthcheck", "cap_add", "no_new_privileges", "ipc")
    given = {
        **{key: options[key] for key in same}, "name": f"{name}-rank{here.rank}", "project": name, "group": group["name"], "image": image["id"],
        "content": image["fingerprint"], "infiniband": "/dev/infiniband" in info["devices"], "fabric": "" if options["fabric_env"] else "node",
        "env_file": f"{here.folder}/api_key" if head and here.makes_key else "",
    }  # fmt: skip
    # The device nodes are not inputs of a release: a port that is missing for a moment must not start the group again.
    nodes = [path for path in info["devices"] if path.startswith("/dev/infiniband/")]
    own = {"secrets": here.secrets, "infiniband": given["infiniband"] if options["infiniband"] == "folder" else nodes}
    rendered = compose.render_rank(profile, place, {**given, **own, "weights_writable": bool(options["weights_writable"])})
    names = set(rendered.pop("secrets")) | ({"VLLM_API_KEY"} if head and here.makes_key else set())
    inputs = [
        {**{key: value for key, value in profile.items() if key not in JUDGED}, "image": {k: v for k, v in profile["image"].items() if k not in BUILT}},
        place, {**given, "image": image["fingerprint"]}, releases.fingerprint(here.given, group["name"]),
    ]  # fmt: skip
    paths = compose.host_paths(profile, str(options["model_store"]))
    manifest = {
        "group": group["name"], "profile": profile["name"], "host": profile["engine"]["api"]["host"], "port": profile["engine"]["api"]["port"],
        "lead": profile["launch"]["worker_lead_seconds"], "criteria": here.criteria, "has_key": bool(head and "VLLM_API_KEY" in names),
        "image": {"reference": profile["image"]["reference"], **image}, "model": paths["model"] or "", "caches": rendered["caches"],
        "settings": settings_of(profile),
        "inputs": releases.release_id(inputs), **({"drafter": paths["drafter"]} if paths["drafter"] else {}),
        # What the agent resolves at each start, since a reboot can change it; null if the user sets the variables.
        "fabric": None if options["fabric_env"] else {"addresses": group["fabric"], "interfaces": options["interfaces"], "skip": [*options["extra_env"]]},
    }  # fmt: skip
    return {**rendered, "manifest": manifest, "secret_names": sorted(names), "pins": pins(here, image["fingerprint"]) if head else []}


def pins(here: Place, content: str) -> list[dict[str, Any]]:
    """Return what is compared with the lock file, as pins: the image, and models that bring code without a pinned revision."""
    image, args = here.profile["image"], here.profile["engine"]["args"]
    out: list[dict[str, Any]] = []
    if content and not image["digest"]:
        out.append({"kind": "images", "name": image["reference"], "found": {"fingerprint": content}})
    trusts = any(value and name.replace("_", "-") == "trust-remote-code" for name, value in args.items())
    for model in (here.profile["model"], here.profile["drafter"]):
        revision = (model or {}).get("revision") or ""
        if model and trusts and not here.check_mode and not (len(revision) == 40 and set(revision) <= set("0123456789abcdef")):
            out.append({"kind": "models", "name": f"{model['id']}@{revision}" if revision else model["id"], "found": {}})
    return out


def files_of(today: Mapping[str, Any], number: int, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a rank's release without its secrets, name to text. `today` is what name_release() returned."""
    return {
        "compose.yaml": f"# Made by gb10.cluster.vllm_tp2; a change here is lost.\n{compose_yaml(today['compose'][number])}",
        "release.json": json.dumps({**manifest, "release": today["id"]}, indent=4, sort_keys=True) + "\n",
    }


def desired_options(here: Place, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the agent needs in addition to release.json."""
    same = ("timeout", "completion_timeout", "drain_seconds", "wait_available", "wait_seconds", "rollback", "attempts")
    limits = {**here.profile["launch"]["phase_seconds"], **here.options["phase_seconds"]}
    return {
        **{key: here.options[key] for key in same}, "limits": limits, "classes": here.options["failure_classes"], "strict": here.options["gate_strict"],
        "weights": info.get("weights") or {},
    }  # fmt: skip


def _named(infos: Infos, ranks: Infos, today: str, restart: bool) -> str:
    """Return the release that must serve. One that another version of the collection rendered from the same inputs stays until a restart is asked for."""
    current = {str(info.get("current") or "") for info in infos}
    kept = [str(info.get("inputs") or "") for info in infos]
    stays = not restart and len(current) == 1 and "" not in kept and kept == [rank["manifest"]["inputs"] for rank in ranks]
    return current.pop() if stays else today


def _reasons(here: Place, infos: Infos, release: str, judged: Mapping[str, Any]) -> list[str]:
    """Return why the group must start, one phrase each."""
    key, alive, restart = infos[0].get("key") or {}, infos[0].get("alive") or None, here.options["restart"]
    found = [
        reason
        for number, (host, info) in enumerate(zip(here.hosts, infos))
        for reason in releases.start_reasons(info, release, f"rank {number} on {host}", None if number else alive, restart, judged)
    ]
    found += settings_changed(infos[0].get("settings") or {}, settings_of(here.profile)) if found else []
    return list(dict.fromkeys([*found, *([f"the API needs the new key in {key['path']} on {here.hosts[0]}"] if here.makes_key and key.get("new") else [])]))


def group_of(here: Place, infos: Infos, ranks: Infos, rails: Infos, kept: Callable[[str], Sequence[Any]]) -> dict[str, Any]:
    """Return what the run does with the group and on this rank: standing.decide() with what follows from it.

    `ranks` is what rank_of() returned for each rank, `rails` their NCCL variables, empty if they are not known. `kept` returns the receipts of a release
    on the controller. `release` is the one that must serve, `stands` whether another version rendered it, `judged` its receipt if it has passed.
    `lost` is what has happened to the way back, `repairs` what this rank has lost of `release`, `repaired` what all have that need no start.
    """
    options, info, mine, name = here.options, infos[here.rank], ranks[here.rank], str(here.group["name"])
    today = compose.name_release(ranks)
    files = [files_of(today, number, rank["manifest"]) for number, rank in enumerate(ranks)]
    prints = [{name: f"0640 {hashlib.sha256(text.encode()).hexdigest()}" for name, text in each.items()} for each in files]
    release = _named(infos, ranks, today["id"], options["restart"])
    judged, stands, desired = releases.judged_receipt(infos, release, kept(release)), release != today["id"], desired_options(here, info)
    state = (infos[0].get("agent") or {}).get("state") or {}
    reasons = _reasons(here, infos, release, judged)
    asked = {key: options[key] for key in ("restart", "takeover", "again")}
    out = standing.decide(state, release, reasons, name, **asked, options=desired, criteria=here.criteria, receipt=judged)
    starts, idle = bool(out["reasons"]), out["do"] == "nothing"
    lost, good = releases.lost_ways(infos, here.hosts, release, judged), releases.last_good(infos, release)
    repairs = [releases.repairs(each, release, {} if stands else own, judged) for each, own in zip(infos, prints)]
    weights = dict.fromkeys(phrase for each in infos for phrase in each.get("weights_differ") or [])
    phrases = [*lost, *(f"the weights are not the judged ones: {phrase}" for phrase in weights)] if idle else [
        sentence for sentence in lost if not sentence.startswith(f"Release {release} is current")  # a start judges the release again
    ]  # fmt: skip
    if idle and stands:
        phrases.append(
            f"Another version of the collection rendered release {release} from the same configuration, so it stays. Today it is release {today['id']}."
            " To start that one: -e vllm_tp2_restart=true."
        )
    tested = releases.release_id([mine["manifest"]["image"]["fingerprint"], here.hosts, [each for each in rails if each]])
    have, restores = releases.kept(info, release), idle and bool(repairs[here.rank])
    due = bool(here.makes_key and not here.rank and (info.get("key") or {}).get("due"))
    unneeded = [f"releases/{each}" for each in releases.stale_releases(info, int(options["keep_releases"]), [release, good])]
    return {
        **out, "release": release, "stands": stands, "judged": judged, "good": good, "lost": lost, "phrases": phrases, "options": desired, "idle": idle,
        "sentence": group_status(infos, name, here.hosts)["sentence"], "seen": int((state.get("desired") or {}).get("generation") or 0),
        "repairs": repairs[here.rank], "restores": restores, "files": {} if stands else files[here.rank],
        "repaired": [f"{host}: {phrase}" for host, found in zip(here.hosts, repairs) for phrase in found] if idle else [],
        "tries": starts and not stands and not here.check_mode and not (have.get("good") and have["files"] == prints[here.rank]),
        "caches": mine["caches"] if starts and not stands else [], "rails": rails[here.rank], "key_due": due,
        "writes": out["do"] != "follow" and (starts or bool(here.secrets or restores or due)),
        "unneeded": [*(["stopped"] if idle and info.get("stopped") else []), *unneeded],
        "collective_key": tested, "collective_due": out["do"] == "start" and _collective_due(here, infos, tested),
    }  # fmt: skip


def _collective_due(here: Place, infos: Infos, key: str) -> bool:
    """Return whether the ranks are tested together: before a first boot with this image and these rails, while nothing of the group runs.

    The test needs the memory and the ports.
    """
    asked, rests = here.options["collective_test"], not any(releases.runs(info) for info in infos)
    if asked == "never" or int(here.group["size"]) < 2 or not rests or infos[here.rank]["agent"].get("converges"):
        return False
    return bool(asked == "always" or any(info.get("collective", "") != key for info in infos))


def estimate(here: Place, memory: Infos, version: str = "") -> tuple[dict[str, Any], str]:
    """Return the estimate of the KV pool, and the sentence that refuses the boot; empty if it is not refused. Raises PlanError.

    What may freeze a node is refused also if vllm_tp2_plan does not enforce the estimate.
    """
    found = kv_estimate.make_plan(here.profile, memory, version, here.options["allow_unsafe_memory"])
    refused = found["unsafe"] or (found["msg"] if found["verdict"] == "refused" and here.options["plan"] == "enforce" else "")
    return found, str(refused)


def memory_now(here: Place, infos: Infos) -> tuple[list[dict[str, Any]], str]:
    """Return the memory of each rank for the estimate, and the version of vLLM that the image reported in its last boot; empty if it is not known."""
    head, receipt = infos[0], infos[0].get("receipt") or {}
    memory = [{**each["memory"], "host": host, "engine_running": releases.runs(each)} for host, each in zip(here.hosts, infos)]
    return memory, str(receipt.get("version") or "") if (receipt.get("image_id") or "") == head["image"].get("id") else ""


def failure_of(head: str, answers: bool, decision: Mapping[str, Any], stated: Mapping[str, Any], followed: Mapping[str, Any]) -> str:
    """Return why the group does not serve as desired, in one sentence; empty if it does.

    `stated` and `followed` are what the head's tasks returned, `answers` tells whether the head is still in the run.
    """
    asked = decision.get("do") == "start" or bool(decision.get("adjust"))
    if not asked and decision.get("do") != "follow":
        return ""
    if not answers or followed.get("unreachable"):
        return f"The connection to {head} is lost. The agent there continues the start. Run site.yml again to follow it."
    if stated.get("unreachable"):
        return f"{head} does not answer, and it is not known whether its agent has received the change. Run site.yml again."
    if asked and "generation" not in (stated.get("document") or {}):
        return str(stated.get("msg") or "no message")
    return "" if followed.get("passed") else str(followed.get("msg") or "")


def outcome_of(decision: Mapping[str, Any], followed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run that was followed has reached: `unserved_seconds`, and `warned`, the warnings of the agent.

    `unrecorded` is what could not be recorded or followed. What the agent warned of else is in the progress of the start.
    """
    outcome = followed.get("outcome") or {}
    warned = [str(each) for each in outcome.get("warnings") or []]
    lost = [str(followed["msg"])] if followed.get("class") == "connection_lost" else []
    unrecorded = [each for each in warned if "could not record" in each]
    return {
        "warned": [*warned, *lost], "unrecorded": [*unrecorded, *lost], "untouched": ", and nothing was stopped" if unrecorded else "",
        "unserved_seconds": 0 if decision.get("idle") else round(float(outcome.get("unserved_seconds") or 0)),
    }  # fmt: skip


def result_of(
    here: Place, decision: Mapping[str, Any], mine: Mapping[str, Any], info: Mapping[str, Any], followed: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """Return what the role exports for the summary of a run. `found` is what outcome_of() returned, with the sentence of the collective test."""
    api, do = here.profile["engine"]["api"], decision["do"]
    receipt = followed.get("receipt") or decision["judged"] or info.get("receipt") or {}
    return {
        "group": here.group["name"], "head": here.group["head"], "release": decision["release"], "profile": here.profile["name"], "port": api["port"],
        "url": api_probe.api_url(api), "models": here.profile["model"]["served_names"], "key": "VLLM_API_KEY" in mine["secret_names"],
        "key_path": f"{here.folder}/api_key" if here.makes_key else "", "changes": decision["reasons"],
        "repaired": [*decision["repaired"], *(f"{each}, in force from the next start on" for each in decision["adjust"])],
        "collective": found["collective"], "warnings": [*decision["phrases"], *([] if decision["idle"] else found["warned"])],
        "unserved_seconds": found["unserved_seconds"], "sentence": decision["sentence"] if do == "nothing" else "",
        "followed": decision["text"] if do == "follow" else "", "receipt": receipt,
        "prompt": here.criteria["completion"].get("prompt") or "The capital of France is",
    }  # fmt: skip
