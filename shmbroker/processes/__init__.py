"""The family: supervisor and children, one main loop each. The only package that forks."""
