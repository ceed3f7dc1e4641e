"""`python -m simnets`, which is also what torchrun starts."""

from simnets.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
