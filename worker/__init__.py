"""The worker claims queued runs, trains each run in its own process and stores the recorded data.

The files in the order in which a run passes through them:

    main                    read the options; start the training processes first, because importing torch takes longest
    service, celery_app     the running worker, woken by polling the database or by messages
    registration            the worker's row: its capabilities, its heartbeat
    gpus                    list the GPUs of the machine, and book GPUs for this worker
    lanes                   claim the next run, one at a time per lane
    quarantine              why the worker claims no runs: full disk, no memory, broken GPU, missing data
    process_pool            keep one warm training process per lane (training_process: the worker's handle of a process)
    fork_server             the program that imports torch once and forks training processes (fork_server_client: its client)
    supervision             follow a claimed run to its end, over a pipe; exit_causes describes why a process ended
    trainer                 the program of the training process (failures: how it describes an exception)
    attempt                 one attempt at one run, in the training process: resume, train, send heartbeats
    writer                  store the attempt's recorded data, count the writes (write_statistics), notify the servers (notify)
    autopsies               do the autopsies of runs that diverged, at a low priority (autopsy_process: their program)
    chores                  afterwards: merge the short blocks of ended runs, and remove the folders of deleted runs
"""

from __future__ import annotations

from importlib.util import find_spec

NO_TORCH = "training needs torch, which is not installed: pip install 'stablessm-service[train]'"


def is_torch_installed() -> bool:
    """True if torch is installed. torch is not imported, because the import takes seconds."""
    return find_spec("torch") is not None
