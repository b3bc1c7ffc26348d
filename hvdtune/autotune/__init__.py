"""Finds the settings that make a training run fastest, while it runs.

Folders, each of which may know those before it: `statistics`, `search`, `memory`, `report`,
`session`. Only `session.online` touches the engine; all other code maps numbers to numbers.
"""
