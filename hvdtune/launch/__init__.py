"""Starting a job here and on other hosts, passing on its output, and leaving nothing behind."""
