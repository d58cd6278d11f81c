"""Writes a tone in every audio format that is read, but WAV, which tests write themselves.

    python tests/generate/audio_files.py      (needs av, numpy, soundfile)

Writes `tests/fixtures/audio_files/tone.*`: 440 Hz for a quarter of a second at half of the full level, in two channels of
44,100 samples a second, or 48,000 for Opus. `voice.opus` is the same tone as a voice message: one channel of 16,000 samples,
in packets of 60 milliseconds that Opus codes as speech.
"""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile

RATE = 44100
FORMATS = {"mp3": "libmp3lame", "flac": "flac", "aac": "aac", "m4a": "aac", "opus": "libopus", "webm": "libopus"}
FOLDER = Path(__file__).parent.parent / "fixtures" / "audio_files"


def tone(rate: int) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate // 4) / rate)


def write(name: str, codec: str) -> None:
    container_name = {"aac": "adts", "m4a": "mp4", "opus": "ogg"}.get(name, name)
    write_file(f"tone.{name}", container_name, codec, 48000 if codec == "libopus" else RATE, "stereo")


def write_file(name: str, container_name: str, codec: str, rate: int, layout: str, **options: str) -> None:
    with av.open(str(FOLDER / name), "w", format=container_name) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout, options=options)
        samples = (tone(rate) * 32767).round().astype(np.int16)
        channels = 2 if layout == "stereo" else 1
        frame = av.AudioFrame.from_ndarray(np.repeat(samples, channels)[None], format="s16", layout=layout)
        frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
        for packet in stream.encode(frame):
            container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, codec in FORMATS.items():
        write(name, codec)
    voice = {"application": "voip", "b": "16000", "frame_duration": "60"}
    write_file("voice.opus", "ogg", "libopus", 16000, "mono", **voice)
    soundfile.write(FOLDER / "tone.ogg", np.repeat(tone(RATE)[:, None], 2, axis=1), RATE, subtype="VORBIS")
