import os
from pathlib import Path

# Children import what is tested, also those that do not look into the current directory.
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
