"""Places for files by address: fsspec's memory, and S3 as a real server on this machine (`make cluster`)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import fsspec
import pytest

MEMORY, S3 = "memory", "s3"
STORES = [MEMORY, pytest.param(S3, marks=pytest.mark.cluster)]


@contextmanager
def s3_server() -> Iterator[None]:
    """An S3 server on a free port of this machine, which s3:// means during the block."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    os.environ |= {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    fsspec.get_filesystem_class(S3).clear_instance_cache()
    yield
    os.environ.clear()
    os.environ.update(before)
    server.stop()


def new_bucket(kind: str) -> str:
    """The address of an empty bucket."""
    name = f"b{uuid4().hex[:12]}"
    fsspec.filesystem(kind).mkdir(name)
    return f"{kind}://{name}"
