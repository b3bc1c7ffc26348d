"""Makes `import horovod` and `horovodrun` use hvdtune: for one script, or for an environment.

Knows `bootstrap` and `launch`.
"""
