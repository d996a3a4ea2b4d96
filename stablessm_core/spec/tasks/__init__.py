"""All tasks: the modules of this folder, and the tasks of installed packages (entry points `stablessm.tasks`).

docs/extending.md shows how to add a task in either way.
"""

from __future__ import annotations

from stablessm_core.plugins import find_plug_ins
from stablessm_core.spec.section import name_of, section_check, sections_in
from stablessm_core.spec.task import TaskSection

BUILT_IN = sorted(sections_in(__name__, TaskSection), key=lambda section: (section.order, name_of(section)))

# the sections, keyed by task name, in the order of lists and forms, and the reason for each plug-in that cannot be used
TASKS, REFUSED = find_plug_ins(
    "stablessm.tasks", {name_of(section): section for section in BUILT_IN}, section_check(TaskSection, "trained_by")
)
