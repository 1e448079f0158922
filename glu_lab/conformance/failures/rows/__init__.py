"""The failures, one file a group: how each is planted, and what is said of it."""
