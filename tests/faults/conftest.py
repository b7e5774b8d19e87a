"""Shows at the end the tables that tests recorded."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "table":
                    terminalreporter.section(report.nodeid)
                    terminalreporter.line(str(value))
