"""Tools that look at a broker from outside."""
