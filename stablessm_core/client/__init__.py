"""A Python client of the REST API: submit runs, watch them live, read their numbers as numpy, Arrow or a DataFrame, draw the
page's charts.

from stablessm_core.client import Client
with Client() as client:                       # finds a server that `stablessm up` started here
    run = client.submit({"task": {"name": "polynomial_memory"}})
    for event in client.watch(run["id"]):
        ...
    ratios = client.series(run["id"], "ssm/0/grad_over_weight")
"""

from __future__ import annotations

from stablessm_core.client import archives, drawing, frames, live, numbers, past, service
from stablessm_core.client import lists as _lists
from stablessm_core.client import runs as _runs  # in the class these names are methods
from stablessm_core.client import sweeps as _sweeps
from stablessm_core.client import trash as _trash
from stablessm_core.client import users as _users
from stablessm_core.client.connection import ApiError, Connection, find_server
from stablessm_core.client.frames import PandasMissing
from stablessm_core.client.live import FINAL, LiveEvent
from stablessm_core.client.numbers import Series

__all__ = ["FINAL", "ApiError", "Client", "LiveEvent", "PandasMissing", "Series", "find_server"]


class Client(Connection):
    """A connection to one server with a method for each endpoint of the API.

    Methods return the API's own JSON; lists that come in pages are iterators over all of them; series come as numpy arrays.
    Raises ApiError when the server refuses, httpx.TransportError when it does not answer.
    """

    submit = _runs.submit
    run = _runs.run
    verdict = _runs.verdict
    runs = _runs.runs
    update = _runs.update
    cancel = _runs.cancel
    resume = _runs.resume
    clone = _runs.clone
    fork = _runs.fork
    forks = _runs.forks
    siblings = _runs.siblings
    compare = _runs.compare
    compare_curves = _runs.compare_curves
    alerts = _runs.alerts
    bulk = _lists.bulk
    fields = _lists.fields
    sparks = _lists.sparks
    views = _lists.views
    save_view = _lists.save_view
    delete_view = _lists.delete_view
    log = past.log
    history = past.history
    checkpoints = past.checkpoints
    download_checkpoint = past.download_checkpoint

    export_archive = archives.export_archive
    import_archive = archives.import_archive
    delete = _trash.delete
    undelete = _trash.undelete
    delete_for_good = _trash.delete_for_good
    trash = _trash.trash
    occupied = _trash.occupied

    submit_sweep = _sweeps.submit_sweep
    sweep = _sweeps.sweep
    sweeps = _sweeps.sweeps
    update_sweep = _sweeps.update_sweep
    cancel_sweep = _sweeps.cancel_sweep
    sweep_grid = _sweeps.sweep_grid
    download_sweep_grid = _sweeps.download_sweep_grid
    sweep_table = _sweeps.sweep_table
    download_sweep_table = _sweeps.download_sweep_table

    catalogue = numbers.catalogue
    series = numbers.series
    steps = numbers.steps
    arrow = numbers.arrow
    download = numbers.download
    overview = numbers.overview
    figures = numbers.figures
    figure = numbers.figure
    figure_file = drawing.figure_file
    compare_figure_file = drawing.compare_figure_file
    sweep_figure_file = drawing.sweep_figure_file
    theory_figure_file = drawing.theory_figure_file
    watch = live.watch

    runs_frame = frames.runs_frame
    sweep_frame = frames.sweep_frame
    series_frame = frames.series_frame

    queues = service.queues
    queue = service.queue
    change_queue = service.change_queue
    workers = service.workers
    create_token = service.create_token
    tokens = service.tokens
    revoke_token = service.revoke_token
    me = _users.me
    name_me = _users.name_me
    users = _users.users
    create_user = _users.create_user
    change_user = _users.change_user
    audit = service.audit
    create_webhook = service.create_webhook
    webhooks = service.webhooks
    enable_webhook = service.enable_webhook
    delete_webhook = service.delete_webhook
    systems = service.systems
    theory = service.theory
    health = service.health
    ready = service.ready
    metrics = service.metrics
