"""Starting a job on this machine, passing on its output, and ending it with nothing left."""
