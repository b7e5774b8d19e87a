"""Encoders: where they lie, how they load, start and are saved."""
