"""An analysis as people see it: the JSON document, and from it text, page and comparison.

May know `advice` and below.
"""
