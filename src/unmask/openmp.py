"""OpenMP's threads sleep while they wait for each other, instead of burning processor time.

libgomp lets a waiting thread spin 300,000 times. Where another process has the core, the thread that everybody waits
for does not run meanwhile, and small networks become many times slower; bench/threads.py measures it. OpenMP reads
its environment when torch loads it, so this runs on `import unmask`, and child processes inherit it.
"""

import os

# Whoever has set one of these has chosen; the second is libgomp's, the third that of LLVM and Intel.
POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_without_spinning() -> None:
    """Set the policy for this process, if torch is not imported yet, and for its children."""
    if not any(name in os.environ for name in POLICIES):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
