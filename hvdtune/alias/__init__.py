"""Makes `import horovod` and `horovodrun` mean hvdtune: for one script, or for an environment.

Knows `bootstrap` and `launch`.
"""
