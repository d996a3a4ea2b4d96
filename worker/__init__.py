"""The worker claims queued runs, trains each in a process of its own and stores what it records.

The files in the order of a run's life:

    main, celery_app        start, and be woken when a run is queued
    registration            the worker's row: what it can do (capabilities), its heartbeat
    gpus                    which GPUs there are, and the booking of those that are this worker's
    lanes                   claim the next run, one per lane
    process_pool            keep one warm training process per lane (training_process: one of them, as the worker sees it)
    fork_server             the process that forks them, with torch imported
    supervision             follow a claimed run to its end, over a pipe; exit_causes names why a process died
    trainer                 the program of the training process
    attempt                 one attempt at one run in it: resume, train, heartbeats
    writer                  store what it records (records, spool, write_statistics) and notify the servers (notify)
    compactor               after the run: merge its many short blocks
"""
