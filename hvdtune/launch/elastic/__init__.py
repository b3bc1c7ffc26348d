"""Elastic jobs: their processes come and go, and those that stay train on.

`job` is the entry point. `membership` decides, with the files around it, and knows neither clock
nor process; the room `driver` carries its decisions out. May know what `launch` lists before it.
"""
