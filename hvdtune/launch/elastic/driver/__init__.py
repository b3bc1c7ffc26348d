"""The part that carries out an elastic job's decisions, with processes, connections and a clock.

May know `membership` and the files around it, and what starts workers here and on other hosts.
"""
