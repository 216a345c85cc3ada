"""A family as it is at one moment, for whoever shows it: metrics, `top`, `status`, a console."""
