"""Run the command line as ``python -m tallystick``."""

from tallystick.cli.main import main

main()
