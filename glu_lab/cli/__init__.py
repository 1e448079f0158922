"""The command line: one module a subcommand; each parses and prints, and decides nothing."""
