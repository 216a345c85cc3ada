"""The control plane: who decides about topics, configs and brokers, and the log that says so.

`controller` is what a controller process runs. While its voter leads it has an `active_controller`,
which puts each decision (`decisions`: pure functions over the image) into the metadata log (`raft`)
as one batch, makes it durable, and only then answers.
"""
