"""The command line: one file a verb, without logic. Knows the parts whose verbs they are."""
