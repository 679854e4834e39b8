"""Makes sample_kernels.py importable by the tests of this folder, and by the processes that they start here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
