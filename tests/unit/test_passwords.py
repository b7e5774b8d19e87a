import pytest

from leap.core.passwords import without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at https://me:pa55@host:5000/x.", "at https://me:***@host:5000/x."),
        ("postgresql+psycopg://me:p%40ss@host/db", "postgresql+psycopg://me:***@host/db"),
        ("https://:token@host", "https://:***@host"),
        ("one http://a:b@c two http://d:e@f", "one http://a:***@c two http://d:***@f"),
        (
            "https://me@host, http://host:5000/a and mail@host",
            "https://me@host, http://host:5000/a and mail@host",
        ),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
    ],
)
def test_the_password_of_a_uri_is_struck_out(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
