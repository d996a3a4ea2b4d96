"""Why a run died, measured: its fatal step is trained again, with instruments (docs/autopsy.md). `request` needs no torch."""
