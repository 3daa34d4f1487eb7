"""The documentation says what the code does."""

import re
from pathlib import Path

import pytest
from docs.generate import PAGES

ROOT = Path(__file__).parents[2]
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("gateway_config/*.md")])


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name](), "run `make format`"


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_named_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8")))
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_named_settings_exist(page: Path) -> None:
    from interpreter.settings import env_name, options

    named = set(re.findall(r"INTERPRETER_[A-Z_]*[A-Z]", page.read_text(encoding="utf-8")))
    assert named <= {env_name(option.name) for option in options()} | {"INTERPRETER_URL"}


def test_readme_can_be_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
