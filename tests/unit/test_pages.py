"""The pages that a reader of the repository sees."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = ("results", "configs", "fedpart", "strategies", "clients", "tests")
PAGES = [ROOT / "README.md", *sorted(p for top in TOPS for p in (ROOT / top).rglob("README.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_points_to_is_there(page):
    """Pictures and other pages, and, in plain words, committed results and settings."""
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    links = [str((page.parent / link).resolve()) for link in links]
    named = re.findall(r"`((?:results|configs)/[\w./-]+)`", text)
    missing = [path for path in [*links, *named] if not (ROOT / path).exists()]
    assert not missing


def test_ci_runs_the_commands_of_every_page():
    """Those of ``configs/deploy`` are a test, on the loopback address."""
    pages = {str(page.relative_to(ROOT)) for page in PAGES if "```bash" in page.read_text()}
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("\\\n", " ")
    (given,) = re.findall(r"^python \.ci/readme\.py \S+ (.+?) >", run, flags=re.M)
    assert set(given.split()) == pages - {"configs/deploy/README.md"}
