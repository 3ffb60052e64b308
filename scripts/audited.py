"""Reads pip-audit's JSON from standard input: exit code 1 where a vulnerability is known and a fixed release exists."""

import json
import sys


def lines(report: dict) -> tuple[list[str], bool]:
    """What there is to say, a line for each vulnerability, and whether one of them can be mended by an upgrade."""
    found = [(package, hole) for package in report["dependencies"] for hole in package.get("vulns", ())]
    said = [
        f"{package['name']} {package['version']}: {hole['id']}, "
        + (f"fixed in {', '.join(hole['fix_versions'])}" if hole["fix_versions"] else "no release mends it yet")
        for package, hole in found
    ]
    return said or ["no known vulnerability"], any(hole["fix_versions"] for _, hole in found)


def main() -> int:
    """Print what was found."""
    try:
        said, mendable = lines(json.load(sys.stdin))
    except (ValueError, KeyError, TypeError):
        print(
            "pip-audit: the advisory service did not answer: known vulnerabilities were not looked for", file=sys.stderr
        )
        return 0
    for line in said:
        print(f"pip-audit: {line}", file=sys.stderr)
    return int(mendable)


if __name__ == "__main__":
    sys.exit(main())
