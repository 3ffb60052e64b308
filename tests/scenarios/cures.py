"""What the scenario tests ask of every finding: its cure can be pasted, its page is there."""

import re

import gradwatch

_POLICY = re.compile(r'(?:clip|renorm)="([^"]+)"')


def policies_in(finding):
    """The policies in a finding's cure, parsed: a text that does not parse raises."""
    return [gradwatch.parse(text) for text in _POLICY.findall(finding.cure)]
