from types import SimpleNamespace
from typing import Any

import audit
import pytest

FOUND = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"]}
PACKAGE = {"name": "leaky", "version": "1.0", "vulns": [FOUND]}
CLEAN = {"name": "clean", "version": "1.0", "vulns": []}


@pytest.mark.parametrize(
    ("audited", "explained", "code", "says"),
    [
        ([CLEAN], {}, 0, "audited: 1 of 2 pinned packages, 0 findings explained"),
        ([PACKAGE], {}, 1, "error: leaky 1.0: PYSEC-1, fixed in 2.0"),
        ([PACKAGE], {"CVE-1": {"reason": "never called"}}, 0, "1 findings explained"),
        ([CLEAN], {"CVE-1": {"reason": "never called"}}, 1, "explains CVE-1, which is not found any more"),
    ],
)
def test_a_finding_fails_unless_it_is_explained(
    audited: list[Any], explained: dict[str, Any], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.judged(audited, 2, explained) == code
    assert says in capsys.readouterr().out


def answering(monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str = "") -> None:
    done = SimpleNamespace(stdout=stdout, stderr=stderr)
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: done)


def test_without_a_service_it_says_so_and_does_not_fail(monkeypatch, capsys) -> None:
    answering(monkeypatch, "", "requests.exceptions.ConnectionError: Max retries exceeded")
    assert audit.main() == 0
    skipped = '{"dependencies": [{"name": "a", "skip_reason": "Dependency not found on PyPI"}]}'
    answering(monkeypatch, skipped)
    assert audit.main() == 0
    assert capsys.readouterr().out.count("not audited: service unreachable") == 2


def test_any_other_failure_of_the_tool_fails(monkeypatch) -> None:
    answering(monkeypatch, "", "No module named pip_audit")
    with pytest.raises(SystemExit, match="No module named pip_audit"):
        audit.main()
