"""`python -m waitinfo`."""

from waitinfo.cli import main

main()
