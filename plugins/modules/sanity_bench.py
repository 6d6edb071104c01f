#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin sanity_bench."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sanity_bench
short_description: Send concurrent prompts to a served model and judge every reply
description:
  - Run it on the head of a serving group that the role P(gb10.cluster.vllm_tp2#role) serves. It asks the release that runs, from the node
    itself, so that an API bound to the loopback address answers too.
  - A reply is bad when none comes, when it is empty, repeats itself, drifts into another language, has leaked markup of a chat template or a
    tool call, holds broken characters, or lacks a known answer. One bad reply fails the task with prompt and fault.
  - This is an action plugin. The requests are sent by M(gb10.cluster.vllm_probe); the judgement is made on the controller.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  group:
    description: The serving group's name.
    type: str
    required: true
  directory:
    description: Where the role keeps the group's files on the node.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
  prompts:
    description:
      - What to ask instead of the collection's own prompts. Each is a text, or a mapping with C(prompt) and optionally C(expect) (a text that the
        reply must hold), C(chat) (V(true)), C(max_tokens) (512) and C(body) (further keys of the request).
      - The temperature is 0 unless C(body) has one. V(null) leaves it to the server.
    type: list
    elements: raw
    default: []
  concurrency:
    description: How many requests to send at once, one level after the other; a list, or text such as V(1,2,4,6).
    type: raw
    default: [1, 2, 4, 6]
  timeout:
    description: Seconds that one request may take.
    type: float
    default: 600.0
  streams:
    description: Print one line for each stream instead of one for each level.
    type: bool
    default: false
  receipts:
    description:
      - The folder of the gate's receipts on the controller. The speed of each level is kept in C(speed.json) of the group's folder there, for
        M(gb10.cluster.report), if no reply is bad. Empty keeps nothing.
      - The file has at most 16 levels of one release, the last result of each.
    type: path
    default: ""
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
seealso:
  - module: gb10.cluster.vllm_probe
  - module: gb10.cluster.kv_pool_gate
"""

EXAMPLES = r"""
- name: Is every reply sound?
  gb10.cluster.sanity_bench:
    group: pair1

- name: Twelve at once, with a prompt of our own
  gb10.cluster.sanity_bench:
    group: pair1
    concurrency: [12]
    prompts:
      - prompt: "Reply with exactly this text and nothing else: NVFP4 DSPARK OK"
        expect: NVFP4 DSPARK OK
        max_tokens: 32
"""

RETURN = r"""
msg:
  description: The verdict in one sentence.
  type: str
  returned: always
  sample: "pair1: 13 replies, none bad. If an agent still shows garbage, see docs/garble.md: its session, its fallback models, its parameters."
table:
  description: The levels as a table, one line each.
  type: list
  elements: str
  returned: when the server answers
  sample:
    - "at once  replies  bad_outputs  slowest s  tok/s a stream  tok/s in all"
    - "      6        6            0      12.40       16.1-18.0         104.1"
drift:
  description:
    - The sentence about a prompt without sampling whose reply differs between alone and among others; empty if it does not. It fails nothing.
  type: str
  returned: when the server answers
  sample: ""
rows:
  description: One entry a level.
  type: list
  elements: dict
  returned: when the server answers
  contains:
    concurrency:
      description: How many requests were sent at once.
      type: int
    requests:
      description: How many replies were judged.
      type: int
    bad_outputs:
      description: How many of them are bad.
      type: int
    cut:
      description: How many of them ended in their reasoning at C(max_tokens). They are not bad, and their answers are not known.
      type: int
    faults:
      description: C(prompt), C(text) and C(fault) of each bad one.
      type: list
      elements: dict
    seconds:
      description: How long the slowest took.
      type: float
    tokens:
      description: How many tokens all replies have.
      type: int
    slowest_tok_s:
      description: Tokens a second of the slowest stream.
      type: float
    fastest_tok_s:
      description: Tokens a second of the fastest stream.
      type: float
    aggregate_tok_s:
      description: Tokens a second of all streams together.
      type: float
    streams:
      description: C(prompt), C(ok), C(seconds), C(tokens), C(tok_s) and C(text) of each stream; only where nothing is bad.
      type: list
      elements: dict
"""
