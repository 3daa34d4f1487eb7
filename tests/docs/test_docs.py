"""The documentation says what the code does."""

import ast
import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from docs.generate import PAGES
from interpreter.api.routes import ROUTES
from interpreter.app import InterpreterApp
from interpreter.frontends import PATHS
from interpreter.settings import env_name, options

ROOT = Path(__file__).parents[2]
PROSE = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("gateway_config/*.md"),
        *ROOT.glob("notebooks/*.md"),
    ]
)

each_page = pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


def subcommands(commands: Mapping[str, Any] = InterpreterApp.subcommands, before: str = "") -> set[str]:
    """All commands: ``serve``, ``record``, ``record list`` …"""
    found = set()
    for name, (location, _) in commands.items():
        module, _, cls = location.rpartition(".")
        inner = getattr(importlib.import_module(module), cls).subcommands
        found |= {before + name} | subcommands(inner, f"{before}{name} ")
    return found


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_up_to_date(name: str) -> None:
    assert text_of(ROOT / "docs" / name) == PAGES[name](), "run `make format`"


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text_of(page))
    assert not [target for target in targets if not (page.parent / target).exists()]


@each_page
def test_links_within_a_page_lead_to_a_heading(page: Path) -> None:
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", text_of(page))) <= anchors


@each_page
def test_named_make_targets_exist(page: Path) -> None:
    named = set(re.findall(r"`make ([a-z-]+)", text_of(page)))
    assert named <= set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))


@each_page
def test_named_settings_exist(page: Path) -> None:
    named = set(re.findall(r"(?<![A-Z_])INTERPRETER_[A-Z_]*[A-Z]", text_of(page)))
    assert named <= {env_name(option.name) for option in options()} | {"INTERPRETER_URL"}


@each_page
def test_named_commands_exist(page: Path) -> None:
    named = re.findall(
        r"jupyter interpreter (?!-)([a-z]+(?: (?:list|show|[a-z]+)(?=[ `\n]))?)", text_of(page)
    )
    known = subcommands()
    assert not [name for name in named if name not in known and name.split()[0] not in known]


@each_page
def test_named_routes_exist(page: Path) -> None:
    templates = [path.replace("{path}", ".+") for path in (*(path for path, _ in ROUTES), *PATHS)]
    patterns = [re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in templates]
    named = re.findall(r"(?<![\w.])(/v1/[\w/{}$.-]*)", re.sub(r"[\"'?].*", "", text_of(page)))
    named += re.findall(r"(?:8889|\$URL)(/[\w/{}$.-]*)", text_of(page))
    assert not [p for p in named if not any(r.fullmatch(p.rstrip("/.")) or p == "/" for r in patterns)]


@each_page
def test_named_modules_exist(page: Path) -> None:
    named = re.findall(r"`((?:interpreter|gateway_config|tests|docs|bench)/[\w./-]*)`", text_of(page))
    assert not [path for path in named if not (ROOT / path).exists()]


def test_each_test_that_the_threat_model_names_exists() -> None:
    files = {path.name: text_of(path) for path in (ROOT / "tests").rglob("test_*.py")}
    functions = set(re.findall(r"def (test_\w+)\(", "\n".join(files.values())))
    named = set(re.findall(r"`(test_\w+(?:\.py)?)`", text_of(ROOT / "docs/threat-model.md")))
    assert len(named) > 50
    assert not sorted(named - functions - set(files))


def test_each_attack_of_the_threat_model_names_a_test() -> None:
    text = text_of(ROOT / "docs/threat-model.md")
    _, _, attacks = text.partition("\n## Attacks, and what stops them\n")
    rows = re.findall(r"^\| (.+) \|$", attacks.partition("\n## What is not stopped\n")[0], re.MULTILINE)
    told = [row for row in rows if not row.startswith(("attack |", "---"))]
    assert len(told) > 30
    assert not [row for row in told if "`test_" not in row.rpartition(" | ")[2] and "`tests/" not in row]


@each_page
def test_examples_are_well_formed(page: Path) -> None:
    for example in blocks(page, "json"):
        json.loads(example)
    for example in blocks(page, "python"):
        ast.parse(example)


def test_the_architecture_names_every_part() -> None:
    parts = [path for path in (ROOT / "interpreter").iterdir() if not path.name.startswith("_")]
    names = [f"`interpreter/{p.name}`" for p in parts if p.suffix == ".py"]
    names += [f"`interpreter/{p.name}/`" for p in parts if (p / "__init__.py").exists()]
    text = text_of(ROOT / "ARCHITECTURE.md")
    assert not [name for name in names if name not in text]


def test_every_page_of_docs_is_in_its_index() -> None:
    index = text_of(ROOT / "docs" / "README.md")
    assert not [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "README.md" and p.name not in index]


def test_readme_can_be_read_in_five_minutes() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) <= 120
