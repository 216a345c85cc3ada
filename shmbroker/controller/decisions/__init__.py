"""What the active controller decides: pure functions from request and image to records."""
