"""Families of faults. `development` families may be looked at while rules of the verdict are written, `held_out` families not.

The faults come from plug-in tasks, layers and maps. The folder `plug_in` holds their metadata, as an installer writes it. They
must be on the path before the configuration is imported, because the configuration lists them when it is imported.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).with_name("plug_in")))
