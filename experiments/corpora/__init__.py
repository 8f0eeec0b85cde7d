"""Text and corpora for experiments: `python -m experiments.corpora VERB`."""
