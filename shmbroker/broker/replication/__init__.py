"""Following and being followed: how replicas get what their leader has."""
