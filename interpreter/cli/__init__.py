"""The subcommands of ``jupyter interpreter``."""
