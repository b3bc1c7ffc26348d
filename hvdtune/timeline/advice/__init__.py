"""Causes of lost time, a kind in each file; `verdict` asks for all, `accounting` sums them up.

May know `evidence` and below.
"""
