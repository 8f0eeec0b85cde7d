"""`python -m waitinfo`."""

from waitinfo.cli import main

if __name__ == "__main__":
    main()
