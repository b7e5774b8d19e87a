"""Where to look in MLflow's page: the links that `make ui` prints."""

from urllib.parse import quote

from leap.core.settings import Settings

PAGE = "http://127.0.0.1:5000/#"


def ui_links(settings: Settings, experiment: str) -> str:
    """Return the links to the runs, in the view with the columns that decide, and to the registered model."""
    runs = f"{PAGE}/experiments/{experiment}/runs?viewStateShareKey=leap"
    return f"runs    {runs}\nmodels  {PAGE}/models/{quote(settings.registered_model)}"
