"""Settings, files that appear whole, the project's paths, how a stage runs: what all packages import."""
