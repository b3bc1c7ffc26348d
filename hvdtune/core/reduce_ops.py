"""Horovod's reduction operators: plain integers, the same in every face."""

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5
