"""APIs that a network worker answers, from the metadata image."""
