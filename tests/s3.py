"""A real S3 server in this process for tests that store files in a bucket."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import httpx
from moto.server import ThreadedMotoServer

BUCKET = "checkpoints"


def aws_variables(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def s3_server(port: int = 0) -> Iterator[int]:
    """Serves one empty bucket and yields the port. Meanwhile the AWS_* variables are set, so that programs find the server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    variables = aws_variables(port)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        httpx.post(
            f"{variables['AWS_ENDPOINT_URL']}/moto-api/reset", timeout=120
        ).raise_for_status()  # removes data of an earlier server in this process
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield port
    finally:
        server.stop()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
