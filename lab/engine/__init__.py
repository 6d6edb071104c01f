# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stub of one rank of vLLM for both labs: it replays recorded boot logs, serves the API with believable figures, and obeys a fault file."""
