"""What all packages stand on: settings, files that appear whole, the project's paths, how a stage runs."""
