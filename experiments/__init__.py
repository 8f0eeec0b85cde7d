"""What made the figures in results/: experiments, their runner, corpora, and pages."""
