"""The container lab as the tests see it: the nodes, reached the short way (docker exec)."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import playbook
from acceptance.owner import INSTANCE

#: The inventory of the lab with the stub of an engine (lab/engine).
STUB = playbook.REPO / "inventories/lab-stub"
#: How names of containers and addresses of management begin, in the lab of GB10_LAB_INSTANCE.
NODE, NETWORK = f"gb10-lab{INSTANCE}-", f"172.30.{70 + int(INSTANCE or 0)}."


def api_key(node: int = 1) -> str:
    """Return where the head of a node's group keeps the API key."""
    return f"/opt/gb10-cluster/vllm_tp2/pair{(node + 1) // 2}/api_key"


#: The words of curl on the head that send this key.
BEARER = f'-H "Authorization: Bearer $(cut -d= -f2 {api_key()})"'


class Lab:
    """The nodes, reached the short way (docker exec) so that a test sees the kernel's, Docker's and the engine's answers, not Ansible's."""

    def __init__(self, inventory: Path, folder: Path) -> None:
        self.inventory = inventory
        self.folder = folder
        self.model = "lab-stub" if inventory.name == STUB.name else "lab-tiny"

    @staticmethod
    def on(node: int, command: str, check: bool = True, timeout: float = 60) -> str:
        """Run a shell line as root on a node and return what it printed."""
        out = subprocess.run(["docker", "exec", f"{NODE}{node}", "sh", "-c", command], check=False, capture_output=True, text=True, timeout=timeout)
        assert out.returncode == 0 or not check, f"lab-{node}: {command}: {out.stderr}"
        return out.stdout

    @staticmethod
    def container(node: int) -> str:
        """Return the name of the engine's container on a node: node 1 is pair1's rank 0, node 4 is pair2's rank 1."""
        return f"gb10-pair{(node + 1) // 2}-rank{(node + 1) % 2}"

    def inspect(self, node: int) -> dict[str, Any] | None:
        """Return the Docker Engine's word on the engine's container of a node, None where there is none."""
        found = json.loads(self.on(node, f"docker inspect {self.container(node)} 2>/dev/null || true") or "[]")
        return dict(found[0]) if found else None

    def identity(self, nodes: tuple[int, ...] = (1, 2)) -> list[tuple[str, str]]:
        """Return (id, StartedAt) of each node's engine."""
        found = [self.inspect(node) for node in nodes]
        assert all(found), f"no engine on one of the nodes {nodes}"
        return [(state["Id"], state["State"]["StartedAt"]) for state in found if state]

    def gone(self, nodes: tuple[int, ...] = (1, 2)) -> bool:
        """Whether no engine is left, neither container nor process."""
        return all(self.inspect(node) is None and not self.on(node, "pgrep -f '[v]llm serve' || true").strip() for node in nodes)

    def complete(self, prompt: str = "The capital of France is", node: int = 1, key: str | None = None) -> tuple[int, str]:
        """Ask the head for a completion over the management network, with the key that the head keeps unless one is given; return (status, text)."""
        key = self.on(node, f"cut -d= -f2 {api_key(node)} 2>/dev/null || true").strip() if key is None else key
        body = json.dumps({"model": self.model, "prompt": prompt, "max_tokens": 16, "temperature": 0}).encode()
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(f"http://{NETWORK}{10 + node}:8000/v1/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, str(json.load(answer)["choices"][0]["text"])
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode("utf-8", "replace")
        except OSError as error:
            return 0, str(error)

    def play(self, name: str = "site.yml", *arguments: str, inventory: Path | None = None, **more: Any) -> playbook.Run:
        """Run a playbook on the lab; receipts and evidence land in the test's folder."""
        variables = {"gb10_receipts": str(self.folder / "receipts"), "gb10_evidence": str(self.folder / "evidence"), **(more.pop("variables", None) or {})}
        return playbook.run(self.folder, name, inventory or self.inventory, *arguments, variables=variables, **more)


def bring_up(nodes: int) -> None:
    """Bring the lab up (nothing happens where it is), loudly."""
    subprocess.run([sys.executable, str(playbook.REPO / "lab/container/lab.py"), "up", "--nodes", str(nodes)], check=True)
