"""The groups of one broker: found, timed, stored, loaded, expired."""
