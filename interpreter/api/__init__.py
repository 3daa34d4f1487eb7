"""The native REST interface: every route of the HTTP contract, and the base handler of all others."""
