"""The control plane: who decides about topics, configs and brokers, and the log that says so.

`metadata_log` is the KRaft log on disk; `active_controller` puts each decision (`topics`,
`configs`: pure functions over the image) into it as one batch, makes it durable, and only then
answers.
"""
