"""The log's side of the rings: append, read, and the delayed forms of both."""
