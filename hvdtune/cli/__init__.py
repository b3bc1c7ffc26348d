"""The command line: one file per verb, without logic. Knows the parts that the verbs use."""
