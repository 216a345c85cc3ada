"""A local S3 server, once for all tests that want one."""

import logging
import os
import threading

import pytest


@pytest.fixture(scope="session")
def s3_endpoint():
    """The address of an S3 server that forgets everything at the end."""
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("boto3")
    from werkzeug.serving import make_server

    server = make_server(
        "127.0.0.1", 0, server_module.DomainDispatcherApplication(server_module.create_backend_app),
        threaded=True,
    )  # fmt: skip
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    thread.start()
    credentials = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in credentials}
    os.environ.update(credentials)
    yield f"http://127.0.0.1:{server.server_port}"
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    server.shutdown()
    thread.join()
