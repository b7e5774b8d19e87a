"""Settings of a size for unit tests."""

from typing import Any

from leap.core.settings import VariantSettings, merge

TINY: dict[str, Any] = {
    "name": "leap",
    "description": "tiny",
    "checkpoint": None,
    "student": {
        "layers": 4,
        "width": 8,
        "heads": 2,
        "intermediate": 16,
        "max_length": 32,
        "start": {"kind": "cold", "embeddings": "teacher"},
    },
    "loss": {
        "kind": "leap",
        "alpha": 0.3,
        "beta": 0.4,
        "beta_student": 0.7,
        "gamma": 0.05,
        "delta": 0.3,
        "epsilon": 0.2,
        "tau": 0.98,
        "tau_c": 0.1,
        "margin": "sigmoid",
        "slope": 10.0,
        "layer_weights": {"early": 0.5, "late": 1.5, "final": 1.0, "late_from": 2},
        "late_from": 2,
        "redundancy_clip": 0.3,
        "ramp": [0.1, 0.6],
        "layer_map": "interpolate",
    },
    "train": {
        "epochs": 3,
        "batch_size": 10,
        "learning_rate": 0.01,
        "warmup": 0.1,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "max_length": 32,
        "precision": "fp32",
        "device": "cpu",
        "teacher": "auto",
        "processes": 1,
        "compile": True,
        "keep_checkpoints": 2,
        "log_every": 2,
        "checkpoint_every": 5,
    },
    "exit": {"threshold": 0.95, "min_layer": 2, "patience": 1},
}
ADAPTIVE: dict[str, Any] = {
    "kind": "adaptive_layer",
    "n_layers_per_step": 1,
    "last_layer_weight": 1.0,
    "prior_layers_weight": 1.0,
    "kl_div_weight": 1.0,
    "kl_temperature": 0.3,
    "layer_weighting": "uniform",
    "delta": 0.3,
    "tau_c": 0.15,
}


def tiny_variant(**changes: Any) -> VariantSettings:
    """The tiny variant with some blocks changed."""
    return VariantSettings.model_validate(merge(TINY, changes))
