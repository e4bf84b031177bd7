"""Write the digest behind the base image's tag into the Dockerfile, as the registry has it now: `make pin-base`."""

import re
import subprocess
import sys
from pathlib import Path

DOCKERFILE = Path(__file__).parent / "Dockerfile"
LINE = re.compile(r"^ARG BASE=([^@\s]+)(?:@sha256:[0-9a-f]{64})?$", re.M)


def main(dockerfile: Path) -> None:
    """dockerfile: the file to change; it stays as it is where no digest is told."""
    text = dockerfile.read_text()
    tag = LINE.search(text)[1]
    asked = subprocess.run(["docker", "buildx", "imagetools", "inspect", tag, "--format", "{{.Manifest.Digest}}"],
                           capture_output=True, text=True, check=False)
    digest = asked.stdout.strip()
    if asked.returncode or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        sys.exit(f"docker tells no digest of {tag}: {asked.stderr.strip() or digest}")
    dockerfile.write_text(LINE.sub(f"ARG BASE={tag}@{digest}", text))
    print(f"{tag}@{digest}")


if __name__ == "__main__":
    main(DOCKERFILE)
