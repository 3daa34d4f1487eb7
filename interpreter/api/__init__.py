"""The native REST interface: every route of the HTTP contract, and the base handler of all others."""

from interpreter.imports import import_jsonschema

import_jsonschema()  # before a module of this package imports it
