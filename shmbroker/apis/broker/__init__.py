"""APIs that an I/O worker answers, from its logs and its groups."""
