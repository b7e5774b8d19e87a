"""How a model is evaluated where no params.yaml says it: `leap evaluate` and `leap doctor`."""

from leap.core.settings.evaluation import EvaluationSettings, SweepSettings

BATCH = 64


def shipped_settings() -> EvaluationSettings:
    """Return the settings of the shipped profiles; nothing is cached, and nothing is swept."""
    return EvaluationSettings(
        batch_size=BATCH,
        device="auto",
        primary_set="none",
        nn_k=10,
        length_bins=[8, 16, 32, 64, 128],
        sweep=SweepSettings(thresholds=[0.95], min_layers=[1], patience=[1]),
        cache_gb=0.0,
        bootstrap=1000,
        seed=17,
    )
