"""The embedded profile made small: the same stages and forms, in some two minutes."""

TINY = (
    "data.max_sentences=400",
    "data.held_out=0.45",
    "data.sources.docstrings.packages=[sqlalchemy]",
    "retrieval.docstrings.packages=[sqlalchemy]",
    "retrieval.docstrings.queries=30",
    "retrieval.docstrings.documents=60",
    "validation.min_rows=300",
    "student.layers=3",
    "student.width=32",
    "student.heads=2",
    "student.intermediate=64",
    "train.epochs=1",
    "train.batch_size=32",
    "train.log_every=5",
    "loss.late_from=2",
    "exit.min_layer=2",
    "variants={baseline: {description: plain, loss: {beta: 0.0, epsilon: 0.0, gamma: 0.0}},"
    " leap: {description: the paper's}}",
    "gate.fixed_depth=baseline",
    "latency.iterations=5",
    "latency.batch_sizes=[1, 4]",
    "evaluation.bootstrap=100",
    "studies={small: {description: two small ones, sentences: 200, thresholds: [0.9], variants:"
    " {leap: {description: the paper's}, output_only: {description: the final term only,"
    " loss: {alpha: 0.0, delta: 0.0, beta: 0.0, epsilon: 0.0, gamma: 0.0}}}}}",
)

# Smaller still, and with a gate that `leap` passes on any machine: for tests that are about what breaks.
LENIENT = (
    *TINY,
    "similarity.software.max_pairs=150",
    "gate.checks.speed_up.above=0.0",
    "gate.checks.exit_rate.above=-1.0",
    "gate.checks.nn_at_10.at_least=0.1",
    "gate.checks.similarity.at_least=0.1",
    "gate.checks.retrieval.at_most=0.9",
    "gate.checks.query_exit.at_most=0.9",
    "gate.checks.query_speed_up.above=0.0",
    "gate.checks.quality_against_full.at_most=0.9",
    "gate.checks.quality_against_baseline.at_most=0.9",
)
