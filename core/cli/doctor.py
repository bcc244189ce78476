"""``hop doctor``."""

from dataclasses import asdict

from hoptimizer.cli.screen.options import Json, Overrides, read_overrides


def doctor_command(overrides: Overrides = None, as_json: Json = False) -> None:
    """Show what works on this machine, and what to do about what doesn't.

    Example:

        hop doctor lm.default=openai/gpt-4o-mini
    """
    from rich.table import Table

    from hoptimizer.cli.screen.console import show, working

    config = read_overrides(overrides, {"data": "atlas"})
    from hoptimizer.doctor import examine

    with working():
        findings = examine(config)
    listing = Table("", "what", "found", "what to do", box=None, header_style="bold", pad_edge=False)
    for finding in findings:
        listing.add_row("ok" if finding.works else "--", finding.what, finding.detail, finding.remedy)
    show({"findings": [asdict(finding) for finding in findings]}, as_json, listing)
