"""Jobs that lose and gain hosts while they run."""
