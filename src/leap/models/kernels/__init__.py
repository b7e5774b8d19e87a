"""Triton kernels over packed rows."""
