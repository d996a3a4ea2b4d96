"""Every limit of what a program may report about a run, and of what is stored of a run, whoever recorded it.

Reported runs, runs that our workers train, and runs of an archive have the same limits.
"""

from __future__ import annotations

import re

MAX_STEP = 2**53 - 1  # JavaScript reads larger integers inexactly
MAX_NUMBER = 2**31 - 1  # of a layer, of an eigenvalue, of the length of a sequence
MAX_REAL = 1e30  # of a learning rate, and of a number in a form

# the description of a run, in characters
MAX_RUN_NAME, MAX_PROJECT, MAX_NOTES = 200, 200, 20_000
MAX_TAGS, MAX_TAG = 20, 50
MAX_LAYERS = 1000
MAX_LAYER_NAME, MAX_LAYER_PATH, MAX_LAYER_NOTE = 120, 200, 500
MAX_HOW_NAME = 60  # of an optimizer, of a precision
MAX_REASON, MAX_MESSAGE, MAX_TENSOR = 2000, 2000, 200
MAX_RESULTS, MAX_RESULT_NAME = 100, 100

# the catalogue
MAX_NAME, MAX_GROUP, MAX_UNIT, MAX_MEANING, MAX_FORM_NAME = 120, 60, 20, 1000, 40
MAX_WIDTH = 1 << 20  # columns of one series
MAX_COLUMNS, MAX_RECORD_SERIES = 1 << 20, 4096  # columns of a block, and columns and series of one record
MAX_RUN_COLUMNS, MAX_RUN_SERIES = 1 << 22, 10_000
SERIES_NAME = re.compile(r"[!-~]([ -~]*[!-~])?")
GROUP_NAME = re.compile(r"[!#-\[\]-~]+")  # without " and \, which mean something in the paths of SQLite

# blocks
MAX_BLOCK_POINTS = 4096  # points or buckets in one block: readers decode a block again for every 4,096 steps that they read
MAX_BLOCK_BYTES = 16 << 20  # one block after decompression
MAX_WINDOW_BYTES = 16 << 20  # what zstd may need to remember while it decompresses
MAX_UNCOVERED = 1 << 18  # points of a level that the level above does not cover: a page reads all of them at once

# one body
MAX_HEAD_BYTES = 1 << 20
MAX_BLOCKS, MAX_ALERTS = 8192, 1000
MAX_CATALOGUES = 16  # the server reads and checks the whole catalogue of the run for each of them

MAX_RUN_ALERTS = 10_000  # later alerts of a run are left out
