"""Calls between processes over rings: what an entry holds, and how a process reaches another."""
