"""The pages' templates and static files. Handlers render them through the application's settings."""

from pathlib import Path

TEMPLATE_PATH = Path(__file__).parent / "templates"
STATIC_PATH = Path(__file__).parent / "static"
