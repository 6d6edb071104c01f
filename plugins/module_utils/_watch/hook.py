# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Notices of events: a command of the user, and a webhook. What fails is one sentence and changes nothing else."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from ansible_collections.gb10.cluster.plugins.module_utils._host.command import LATE, run_command

HOOK_SECONDS = 10.0
WEBHOOK_SECONDS = 5.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would send the event, or the token in the URL, to another place: it is an error."""

    def redirect_request(self, *_args: Any) -> None:
        return None


def post_json(url: str, body: bytes) -> int:
    """Send a POST request and return the HTTP status. Raises OSError, http.client.HTTPException and ValueError.

    A user in the URL is a bearer token, as ansible.eda.webhook expects it.
    """
    parts = urlsplit(url)
    token, _at, place = parts.netloc.rpartition("@")
    headers = {"Content-Type": "application/json", "User-Agent": "gb10-agent"}
    if token:
        headers["Authorization"] = f"Bearer {unquote(token)}"
    # The caller has checked the scheme.
    request = urllib.request.Request(parts._replace(netloc=place).geturl(), body, headers)  # noqa: S310
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=WEBHOOK_SECONDS) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def notify(settings: Mapping[str, Any], event: Mapping[str, Any]) -> list[str]:
    """Send an event to the hook and to the webhook that are set. Return a sentence for each that failed."""
    text = json.dumps(event, sort_keys=True, default=str)
    failed = [_run_hook(settings["hook"], event, text) if settings.get("hook") else ""]
    failed.append(_post(settings["webhook"], text.encode()) if settings.get("webhook") else "")
    return [sentence for sentence in failed if sentence]


def _run_hook(words: Sequence[str], event: Mapping[str, Any], text: str) -> str:
    env = {f"GB10_{key.upper()}": str(event.get(key, "")).replace("\0", "") for key in ("kind", "cause", "group", "text")}
    code, _out, error = run_command(words, HOOK_SECONDS, env=env, stdin=text, discard=True)
    if code == 0:
        return ""
    # Arguments of the command can be secrets.
    reason = f"it did not end within {HOOK_SECONDS:g} s" if code == LATE and error else error or f"it ended with code {code}"
    return f"The hook {words[0]} failed: {reason}."


def _post(url: str, body: bytes) -> str:
    """Return why the webhook did not take the event. Path and user of the URL can be secrets, also in the messages of the libraries."""
    try:
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "The webhook is not a valid URL."
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "The webhook is not an http or https URL."
    found: list[str] = []
    # A timeout of the socket does not bound the name lookup, nor a reply in small pieces.
    thread = threading.Thread(target=lambda: found.append(_reason(url, body)), daemon=True)
    thread.start()
    thread.join(WEBHOOK_SECONDS)
    reason = found[0] if found else f"it did not answer within {WEBHOOK_SECONDS:g} s"
    return f"The webhook at {place} failed: {reason}." if reason else ""


def _reason(url: str, body: bytes) -> str:
    try:
        status = post_json(url, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", error)
        return str(getattr(cause, "strerror", None) or type(cause).__name__)
    return "" if 200 <= status < 300 else f"HTTP {status}"
