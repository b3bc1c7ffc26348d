"""An elastic job's driver: what it and the job's processes tell each other."""
