"""Plants faults in runs and compares the verdicts with the planted causes. `python -m benchmarks.verdicts --help` tells how.

The faults come from a plug-in task, `planted_fault`. The folder `plug_in` holds its metadata, as an installer writes it. The
task must be on the path before the configuration is imported, because the configuration lists the tasks when it is imported.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).with_name("plug_in")))
