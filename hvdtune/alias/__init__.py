"""Having `import horovod` and `horovodrun` mean hvdtune: for one script, or for an environment."""
