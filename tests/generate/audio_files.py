"""Writes a tone in every audio format that is read, but WAV, which tests write themselves.

    python tests/generate/audio_files.py      (needs av, numpy, soundfile)

Writes `tests/fixtures/audio_files/tone.*`: 440 Hz for a quarter of a second at half of the full level, in two channels of
44,100 samples a second. `tone.opus` has a codec that is not read.
"""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile

RATE = 44100
FORMATS = {"mp3": "libmp3lame", "flac": "flac", "aac": "aac", "m4a": "aac", "opus": "libopus"}
FOLDER = Path(__file__).parent.parent / "fixtures" / "audio_files"


def tone(rate: int) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate // 4) / rate)


def write(name: str, codec: str) -> None:
    rate = 48000 if codec == "libopus" else RATE
    container_name = {"aac": "adts", "m4a": "mp4", "opus": "ogg"}.get(name, name)
    with av.open(str(FOLDER / f"tone.{name}"), "w", format=container_name) as container:
        stream = container.add_stream(codec, rate=rate, layout="stereo")
        samples = (tone(rate) * 32767).round().astype(np.int16)
        frame = av.AudioFrame.from_ndarray(np.repeat(samples, 2)[None], format="s16", layout="stereo")
        frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
        for packet in stream.encode(frame):
            container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, codec in FORMATS.items():
        write(name, codec)
    soundfile.write(FOLDER / "tone.ogg", np.repeat(tone(RATE)[:, None], 2, axis=1), RATE, subtype="VORBIS")
