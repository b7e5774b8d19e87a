"""Are there known vulnerabilities among the pinned packages? Asks PyPI, else OSV, through pip-audit.

    python scripts/audit.py

Fails on a finding that `audit.toml` does not explain, and on an explanation that nothing needs any more.
Where neither service can be reached it says so and does not fail: a machine without a network has checks too.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock")
SERVICES = ("pypi", "osv")
LONGEST_SECONDS = 300
UNREACHABLE = re.compile(
    # A proxy whose certificate is not known counts too.
    r"requests\.exceptions\.|ConnectTimeout|ReadTimeout|ServiceError|Connection refused"
)


def main() -> int:
    """Prints what was found, and returns the exit code."""
    findings = tomllib.loads((PROJECT / "audit.toml").read_text()).get("finding", [])
    explained = {entry["id"]: entry for entry in findings}
    for service in SERVICES:
        answer = asked(service)
        audited = [package for package in answer if "vulns" in package]
        if audited:
            break
    else:
        say("not audited: service unreachable (neither PyPI nor OSV answers from here)")
        return 0
    return judged(audited, len(answer), explained)


def asked(service: str) -> list[dict[str, Any]]:
    """pip-audit's entry for every pinned package; none where the service cannot be reached.

    Raises:
        SystemExit: pip-audit failed for another reason.
    """
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", service, "--format", "json"]
    command += ["--disable-pip", "--no-deps", "--progress-spinner", "off", "--timeout", "15"]
    for lock in LOCKS:
        command += ["--requirement", str(PROJECT / lock)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)  # nosec B603
    except subprocess.TimeoutExpired:
        return []
    try:
        return list(json.loads(done.stdout)["dependencies"])
    except ValueError:
        if UNREACHABLE.search(done.stderr):
            return []
        sys.exit(f"error: pip-audit failed: {done.stderr[-2000:]}")


def judged(audited: list[dict[str, Any]], pinned: int, explained: dict[str, dict[str, str]]) -> int:
    """The exit code: 1 where a finding is not explained, or an explanation is not needed.

    Args:
        audited: pip-audit's entries with `name`, `version` and `vulns`.
        pinned: how many packages there are.
        explained: the entries of audit.toml by id.
    """
    wrong = []
    needed = set()
    for package in audited:
        for found in package["vulns"]:
            known = explained.keys() & {found["id"], *found.get("aliases", ())}
            needed |= known
            if not known:
                fixed = ", ".join(found["fix_versions"]) or "no version"
                wrong.append(f"{package['name']} {package['version']}: {found['id']}, fixed in {fixed}")
    wrong += [
        f"audit.toml explains {name}, which is not found any more" for name in explained.keys() - needed
    ]
    for line in wrong:
        say(f"error: {line}")
    say(
        f"audited: {len(audited)} of {pinned} pinned packages, {len(needed)} findings explained in audit.toml"
    )
    return 1 if wrong else 0


def say(line: str) -> None:
    """Prints a line."""
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
