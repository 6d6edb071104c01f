# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the stages of a boot in their order; the parser tells them, the gate and the inventory check go by them."""

from __future__ import annotations

STAGES = ("none", "args", "config", "rendezvous", "load", "kv", "graphs", "init", "listen", "ready")
