# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The form of the name of a container image. Pure."""

from __future__ import annotations

# As Docker reads it: a registry with a dot or a port, names in lower case, a tag.
_NAME = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
IMAGE = rf"(?:(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w-]+(?=:\d+/))(?::\d+)?/)?{_NAME}(?:/{_NAME})*(?::\w[\w.-]{{0,127}})?"
EXPECTED = "an image name in lower case like registry/name:tag"
PINNED = f"{EXPECTED}, or with @sha256: and 64 hexadecimal digits at its end"
