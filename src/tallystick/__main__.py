"""``python -m tallystick``."""

from tallystick.cli.main import main

main()
