"""Random models, judged against C MuJoCo: `python -m tests.fuzz --help`."""
