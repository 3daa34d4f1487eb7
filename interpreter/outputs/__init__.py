"""Fold the messages of one run into nbformat 4.5 outputs, incrementally and in bounded memory. Pure."""

from .bundles import OutputLimits
from .displays import Displays
from .folder import OutputFolder
from .text import clean_json, clean_text, strip_ansi

__all__ = ["Displays", "OutputFolder", "OutputLimits", "clean_json", "clean_text", "strip_ansi"]
