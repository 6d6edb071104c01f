#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a served model what only it can tell: its models, its pool, and real completions."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_probe
short_description: Ask a vLLM server for its models, its KV pool and real completions
description:
  - Asks the OpenAI-compatible API from the node that it runs on, so that an API bound to the loopback address answers too.
  - Returns what came back and judges nothing; M(gb10.cluster.kv_pool_gate) and the sanity playbook do.
  - C(/health) is not requested. With a dead rank it answers 200 until the next request.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  requests:
    description: The completions to ask for.
    type: list
    elements: dict
    default: []
    suboptions:
      prompt:
        description: The prompt.
        type: str
        required: true
      chat:
        description: Ask C(/v1/chat/completions) with the prompt as the user's message, instead of C(/v1/completions).
        type: bool
        default: false
      max_tokens:
        description: The most tokens that the reply may have.
        type: int
        default: 64
      body:
        description: Further keys of the request's body. C(temperature) is 0 unless given here.
        type: dict
        default: {}
      prompt_tokens:
        description:
          - Send a prompt of this many tokens, counting numbers, instead of O(requests[].prompt). For O(requests[].chat) it is the system's message before it.
          - The server counts them, by C(/tokenize) or by the usage of a short completion.
        type: int
      cold:
        description: Begin the prompt of O(requests[].prompt_tokens) with a random text, so that no prefix cache has it.
        type: bool
        default: false
  model:
    description: The model to name in the requests; the first one that the server lists when left out.
    type: str
  concurrency:
    description: How many requests run at the same time.
    type: int
    default: 1
  timeout:
    description: Seconds that one request may take, from the connection to the end of the reply.
    type: float
    default: 120.0
extends_documentation_fragment:
  - gb10.cluster.api
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Does the pair answer?
  gb10.cluster.vllm_probe:
    url: http://127.0.0.1:8888
    requests:
      - prompt: The capital of France is
        max_tokens: 8
  register: probe
"""

RETURN = r"""
models:
  description: What C(/v1/models) lists, C(id) and C(max_model_len) of each; empty where it did not answer.
  type: list
  elements: dict
  returned: always
  sample: [{id: deepseek-v4-flash-dspark, max_model_len: 1048576}]
error:
  description: Why C(/v1/models) did not answer as a vLLM server does, as a sentence; empty where it did.
  type: str
  returned: always
  sample: ""
http_status:
  description: The status of C(/v1/models); 0 where nothing answered.
  type: int
  returned: always
  sample: 200
version:
  description: The server's version, empty if the server does not report it.
  type: str
  returned: always
  sample: 0.32.0+cpu
metrics:
  description: The labels of C(vllm:cache_config_info), one entry an engine, as the server prints them (every value a string); empty without metrics.
  type: list
  elements: dict
  returned: always
  sample: [{num_gpu_blocks: "7774", block_size: "256", kv_cache_size_tokens: "1990142", kv_cache_max_concurrency: "1.898"}]
speculation:
  description:
    - How much the server's counters of speculative decoding grew by during the requests, C(drafts), C(draft_tokens), C(accepted_tokens),
      C(accepted_per_position) (a list) and C(generated_tokens). Requests of other clients count too.
    - Empty without requests, and for a server without speculative decoding.
  type: dict
  returned: always
  sample: {drafts: 105, draft_tokens: 630, accepted_tokens: 149, accepted_per_position: [84, 63, 1, 1, 0, 0], generated_tokens: 254}
replies:
  description: One entry a request, in their order.
  type: list
  elements: dict
  returned: always
  contains:
    ok:
      description: Whether a completion came back.
      type: bool
    status:
      description: The HTTP status; 0 if no reply came, be it that the connection failed or that O(timeout) was over.
      type: int
    text:
      description: The reply's text. Empty for a model that has only reasoned so far.
      type: str
    reasoning:
      description: The reasoning before the reply, from C(reasoning_content) or C(reasoning).
      type: str
    finish_reason:
      description: Why it ended.
      type: str
    completion_tokens:
      description: How many tokens it has.
      type: int
    prompt_tokens:
      description: Number of tokens of the prompt.
      type: int
    seconds:
      description: How long it took.
      type: float
    error:
      description: What went wrong; empty where nothing did.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe


def main() -> None:
    """Ask, and return what came back."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": "http://127.0.0.1:8000"},
            "env_file": {"type": "list", "elements": "path", "default": []},
            "requests": {
                "type": "list", "elements": "dict", "default": [],
                "options": {
                    "prompt": {"type": "str", "required": True},
                    "chat": {"type": "bool", "default": False},
                    "max_tokens": {"type": "int", "default": 64, "no_log": False},
                    "body": {"type": "dict", "default": {}},
                    "prompt_tokens": {"type": "int", "no_log": False},
                    "cold": {"type": "bool", "default": False},
                },
            },
            "model": {"type": "str"},
            "concurrency": {"type": "int", "default": 1},
            "timeout": {"type": "float", "default": 120.0},
        },
        supports_check_mode=True,
    )  # fmt: skip
    out = api_probe.run(module.params)
    if out.get("failed"):
        module.fail_json(msg=out["msg"])
    module.exit_json(changed=False, **out)


if __name__ == "__main__":
    main()
