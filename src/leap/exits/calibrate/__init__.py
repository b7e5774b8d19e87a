"""Calibration: exit thresholds that are tested on held-out sentences, and maps to the final layer."""
