"""A local S3 server."""

from tests.unit.tier.conftest import s3_endpoint

__all__ = ["s3_endpoint"]
