"""The client's side: sockets, frames, request order, file sends."""
