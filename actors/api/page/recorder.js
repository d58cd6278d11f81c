/** Records the microphone. */

let recorder = null;
let chunks = [];

/** Whether the browser has a microphone for this page: not without TLS, except on this machine. */
export const mayRecord = () => Boolean(navigator.mediaDevices?.getUserMedia && globalThis.MediaRecorder);

export const isRecording = () => recorder !== null;

/** Throws if the user or the browser does not allow it. */
export async function startRecording() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  chunks = [];
  recorder = new MediaRecorder(stream);
  recorder.addEventListener("dataavailable", ({ data }) => chunks.push(data));
  recorder.start();
}

/** The recording, in a format of the browser. */
export async function stopRecording() {
  const ending = recorder;
  recorder = null;
  const { stream, mimeType } = ending;
  const stopped = new Promise((resolve) => ending.addEventListener("stop", resolve, { once: true }));
  ending.stop();
  await stopped;
  for (const track of stream.getTracks()) track.stop();
  return new File(chunks, "The recording", { type: mimeType.startsWith("audio/") ? mimeType : "audio/webm" });
}
