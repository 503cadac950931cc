"""Makes an environment for each rival in .venv/rivals; one that cannot be installed is left out with a line.

    python bench/rivals/install.py [--only NAME ...] [--folder .venv/rivals]

Environments apart: their libraries disagree (Pillow and pillow-simd even share an import name). What is there
already, with the same requirements, is kept. Versions are lower bounds: a rival is measured at its newest.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".venv" / "rivals"
INSTALL_DEADLINE_S = 1800
READY = ".ready"


@dataclass(frozen=True)
class Requirements:
    """What one environment holds.

    Attributes:
        packages: requirements as pip takes them.
        disk_gb: free disk space that it takes, download included, in GB.
        proof: a statement that fails where it cannot run here.
        system: Debian packages that it needs besides, named where it cannot be installed.
    """

    packages: tuple[str, ...]
    disk_gb: float
    proof: str
    system: tuple[str, ...] = ()


# On x86-64 torch's usual wheel brings CUDA with it, used or not.
_TORCH = ("torch>=2.4", "torchvision>=0.19")

RIVALS = {
    "pillow": Requirements(("numpy>=1.26", "Pillow>=10"), 0.2, "import PIL.Image"),
    "pillow_simd": Requirements(
        ("numpy>=1.26", "pillow-simd>=9.5", "simplejpeg>=1.7"), 0.2, "import simplejpeg"
    ),
    "opencv": Requirements(("numpy>=1.26", "opencv-python-headless>=4.10"), 0.5, "import cv2"),
    "tfdata": Requirements(("numpy>=1.26", "tensorflow-cpu>=2.16"), 3, "import tensorflow"),
    "dali": Requirements(("numpy>=1.26", "nvidia-dali-cuda120>=1.40"), 3, "import nvidia.dali"),
    "torchvision": Requirements(("numpy>=1.26", *_TORCH), 12, "import torchvision.io"),
    # Its decoder is FFmpeg's, which the wheel looks for on the system.
    "spdl": Requirements(
        ("numpy>=1.26", "spdl-io>=0.8"),
        0.5,
        "import spdl.io.utils; spdl.io.utils.get_ffmpeg_versions()",
        ("ffmpeg",),
    ),
    "grain": Requirements(("numpy>=1.26", "grain>=0.2.18", "Pillow>=10"), 0.5, "import grain"),
    "litdata": Requirements(("numpy>=1.26", *_TORCH, "litdata>=0.2.50"), 12, "import litdata"),
    # Has no wheel: it is compiled against these libraries.
    "ffcv": Requirements(
        ("numpy>=1.26", *_TORCH, "ffcv>=1.0.2"),
        12,
        "import ffcv",
        ("g++", "pkg-config", "libopencv-dev", "libturbojpeg0-dev"),
    ),
}


def install(name: str, folder: Path) -> str | None:
    """Makes the environment `folder`/`name`.

    Returns:
        None, or why it could not be made; then nothing of it is left.
    """
    wanted = RIVALS[name]
    place = folder / name
    ready = place / READY
    if ready.is_file() and ready.read_text().split() == list(wanted.packages):
        return None
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < wanted.disk_gb:
        return f"needs {wanted.disk_gb:g} GB of disk, {free_gb:.1f} GB are free"
    python = str(place / "bin" / "python")
    try:
        venv.create(place, with_pip=True)
        _run(python, "-m", "pip", "install", "--quiet", *wanted.packages)
        _run(python, "-c", wanted.proof)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(place, ignore_errors=True)
        also = f" (on Debian it needs: apt-get install {' '.join(wanted.system)})" if wanted.system else ""
        return _last_words(error) + also
    except (OSError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(place, ignore_errors=True)
        return str(error)
    ready.write_text("\n".join(wanted.packages) + "\n")
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_DEADLINE_S)


def _last_words(error: subprocess.CalledProcessError) -> str:
    """The last line that names an error: what pip says after a failed build is longer and says less."""
    lines = [line.strip() for line in (error.stderr or "").splitlines()]
    named = [line for line in lines if line.startswith("ERROR:") or "Error: " in line]
    return named[-1] if named else f"{error.cmd[0]} ended with {error.returncode}"


def main() -> int:
    """Installs what is asked for; fails only where nothing at all could be installed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(RIVALS), default=list(RIVALS), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    missing = 0
    for name in args.only:
        print(f"{name}: {', '.join(RIVALS[name].packages)}", flush=True)
        reason = install(name, args.folder)
        if reason is not None:
            missing += 1
            print(f"{name}: left out: {reason}", flush=True)
    return 1 if missing == len(args.only) else 0


if __name__ == "__main__":
    sys.exit(main())
