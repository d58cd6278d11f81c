/** Audio as it is sent: WAV with one channel of 16-bit samples at the rate that models hear. So a browser's own formats are never sent. */

const RATE = 16_000;
const HEADER_BYTES = 44;

/** The data URL of an audio file. Throws if the browser cannot read it. */
export async function clipOf(file) {
  // A context converts what it decodes to its own rate.
  const context = new OfflineAudioContext(1, 1, RATE);
  const decoded = await context.decodeAudioData(await file.arrayBuffer());
  return dataUrl(new Blob([wav(mixed(decoded))], { type: "audio/wav" }));
}

/** The mean of the channels. */
function mixed(decoded) {
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, index) => decoded.getChannelData(index));
  return Float32Array.from({ length: decoded.length }, (_, at) => channels.reduce((sum, channel) => sum + channel[at], 0) / channels.length);
}

/** http://soundfile.sapp.org/doc/WaveFormat */
function wav(samples) {
  const view = new DataView(new ArrayBuffer(HEADER_BYTES + 2 * samples.length));
  const text = (at, letters) => [...letters].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  // PCM, one channel.
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, index) => view.setInt16(HEADER_BYTES + 2 * index, Math.round(Math.max(-1, Math.min(1, sample)) * 32_767), true));
  return view.buffer;
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(blob);
  });
}
