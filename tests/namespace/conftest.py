"""Sessions for the tests of the namespace: real interpreters, see ``namespace_harness``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
