"""What a network worker runs: connections, frames, Produce and Fetch, forwarding."""
