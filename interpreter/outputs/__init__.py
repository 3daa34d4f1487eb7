"""Fold the messages of one run into nbformat 4.5 outputs, incrementally and in bounded memory. Pure."""

from interpreter.outputs.bundles import Bundle, OutputLimits
from interpreter.outputs.displays import Displays
from interpreter.outputs.folder import OutputFolder
from interpreter.outputs.prepare import prepared
from interpreter.outputs.text import clean_json, clean_text, strip_ansi

__all__ = [
    "Bundle",
    "Displays",
    "OutputFolder",
    "OutputLimits",
    "clean_json",
    "clean_text",
    "prepared",
    "strip_ansi",
]
