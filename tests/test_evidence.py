"""Evidence can be checked: every stored run is cited by a page, and the log keeps its form."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "docs" / "runs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/adr/*.md"),
        *ROOT.glob("models/*/README.md"),
        *ROOT.glob("recipes/*.md"),
    ]
)
LINK = re.compile(r"\]\(([^)#\s]*runs/[^)#\s]*)\)")


def test_every_stored_run_is_cited() -> None:
    """By its file, or by a folder that it is in."""
    cited = {
        (page.parent / target).resolve() for page in PAGES for target in LINK.findall(page.read_text(encoding="utf-8"))
    }
    cited -= {RUNS, *RUNS.parents}
    files = [path for path in RUNS.rglob("*") if path.is_file()]
    assert [str(path.relative_to(RUNS)) for path in files if not {path, *path.parents} & cited] == []
    assert [path.name for path in files if path.parent == RUNS] == []


def test_a_log_entry_has_a_date_a_verdict_and_at_most_eight_lines() -> None:
    _, *entries = re.split(r"^## ", (ROOT / "docs" / "log.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    headings = [entry.partition("\n")[0] for entry in entries]
    assert [heading for heading in headings if not re.fullmatch(r"\d{4}-\d\d-\d\d: .+ \(.+\)", heading)] == []
    dates = [heading[:10] for heading in headings]
    assert dates == sorted(dates, reverse=True)
    assert [entry for entry in entries if len(entry.strip().splitlines()) > 2 + 8] == []
