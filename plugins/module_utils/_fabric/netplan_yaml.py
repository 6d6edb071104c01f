# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the YAML of netplan files, read with PyYAML, which netplan.io depends on.

Every value stays text, as netplan reads it: a MAC address is not a base-60 number, 010 is not octal. Anchors, aliases, tags and duplicate keys, which
hide what a file configures, are refused.
"""

from __future__ import annotations

from typing import Any

try:
    import yaml

    class _Loader(yaml.BaseLoader):  # pylint: disable=too-many-ancestors
        """PyYAML's loader without types."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            if getattr(event, "anchor", None) or getattr(event, "tag", None):  # an alias has an anchor too
                raise yaml.MarkedYAMLError(problem="anchors, aliases and tags are not supported", problem_mark=event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _value in node.value if isinstance(key, yaml.ScalarNode)]
            twice = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
            if twice is not None:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {twice!r}", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    HAS_YAML = True
except ImportError:
    HAS_YAML = False


class YamlError(ValueError):
    """A YAML text that is not valid or not supported; the message names the line."""


class NoYamlError(RuntimeError):
    """PyYAML is not installed on this node."""


def parse_yaml(text: str) -> Any:
    """Return the value of a netplan file, of dict, list and str; no value is an empty text.

    :raises YamlError: the text is not valid or not supported.
    :raises NoYamlError: PyYAML is missing.
    """
    if not HAS_YAML:
        raise NoYamlError("PyYAML is missing on this node, so its netplan files cannot be read: install it (`apt install python3-yaml`).")
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as exc:
        raise YamlError(f"line {exc.problem_mark.line + 1 if exc.problem_mark else 1}: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise YamlError(f"line 1: {str(exc).splitlines()[0]}") from exc
    except RecursionError as exc:
        raise YamlError("line 1: nested too deeply") from exc
