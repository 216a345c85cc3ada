"""A gateway and a broker in one process: what goes from one to the other past the rings.

`processes.guest_gateway` builds both ends. `gateway.guests` has the connections themselves.
"""
