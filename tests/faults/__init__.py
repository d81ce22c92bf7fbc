"""Processes killed, stopped and starved at awkward moments; a pure validator judges what is left."""
