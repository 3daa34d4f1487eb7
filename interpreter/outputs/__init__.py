"""Fold the messages of one run into nbformat 4.5 outputs, incrementally and in bounded memory. Pure."""

from interpreter.outputs.bundles import OutputLimits
from interpreter.outputs.displays import Displays
from interpreter.outputs.folder import OutputFolder
from interpreter.outputs.text import clean_json, clean_text, strip_ansi

__all__ = ["Displays", "OutputFolder", "OutputLimits", "clean_json", "clean_text", "strip_ansi"]
