"""A Python client for the REST API. It submits runs, watches them live, reads their series and saves charts.

from stablessm_core.client import Client
with Client() as client:                       # finds a server that `stablessm up` started on this machine
    run = client.submit({"task": {"name": "polynomial_memory"}})
    for event in client.watch(run["id"]):
        ...
    ratios = client.series(run["id"], "ssm/0/grad_over_weight")
"""

from __future__ import annotations

from stablessm_core.client.connection import ApiError, find_server
from stablessm_core.client.figure_files import FigureFileMethods
from stablessm_core.client.frames import FrameMethods, PandasMissing
from stablessm_core.client.live import LiveEvent, LiveMethods
from stablessm_core.client.many_runs import ManyRunsMethods
from stablessm_core.client.series import Series
from stablessm_core.client.service import ServiceMethods
from stablessm_core.telemetry.statuses import FINAL

__all__ = ["FINAL", "ApiError", "Client", "LiveEvent", "PandasMissing", "Series", "find_server"]


class Client(LiveMethods, FrameMethods, ManyRunsMethods, FigureFileMethods, ServiceMethods):
    """A connection to one server with a method for each endpoint of the API.

    Methods return the API's JSON, or an iterator over all entries if the API returns a list in pages. Series are numpy arrays.
    Methods raise ApiError if the server refuses a request, and httpx.TransportError if the server does not respond.
    """
