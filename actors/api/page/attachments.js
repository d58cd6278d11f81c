/** What is attached to the next message: images and audio that were chosen, pasted, dropped or recorded. */

import { clipOf } from "./audio.js";
import { byId, h, icon, iconButton, toast } from "./dom.js";
import { smaller } from "./image.js";
import { isRecording, mayRecord, startRecording, stopRecording } from "./recorder.js";

const MOST = 8;
/** How a file of each kind becomes a data URL, where a message has these, and what the user reads. */
const KINDS = {
  image: { read: smaller, list: "images", name: "an image", view: (src, label) => h("img", { src, alt: label }) },
  audio: { read: clipOf, list: "audio", name: "audio", view: (src, label) => h("audio", { src, controls: true, "aria-label": label }) },
};
const list = byId("attached");
const input = byId("attach-file");
const attach = byId("attach");
const record = byId("record");
/** `{ kind, url }` of each. */
let attached = [];
/** The kinds that the chosen model takes. */
let allowed = [];
let onChange = () => {};

/** `changed()` is called when attachments come or go. */
export function setUpAttachments(changed) {
  onChange = changed;
  attach.addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    addAll([...input.files]);
    input.value = "";
  });
  record.addEventListener("click", () => (isRecording() ? finishRecording() : beginRecording()));
  byId("prompt").addEventListener("paste", (event) => addFrom(event, event.clipboardData));
  const main = byId("main");
  main.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  main.addEventListener("drop", (event) => addFrom(event, event.dataTransfer));
  showRecording();
}

/** Shows or hides the buttons. `modalities`: what the chosen model takes. */
export function allowAttachments(modalities) {
  allowed = Object.keys(KINDS).filter((kind) => modalities.includes(kind));
  const label = `Attach ${allowed.map((kind) => KINDS[kind].name).join(" or ")}`;
  attach.hidden = !allowed.length;
  attach.title = label;
  attach.setAttribute("aria-label", label);
  input.accept = allowed.map((kind) => `${kind}/*`).join(",");
  record.hidden = !allowed.includes("audio") || !mayRecord();
}

export const hasAttachments = () => attached.length > 0;

/** Takes the attachments of the message that is sent: `{ images, audio }`, each only if there are any. */
export function takeAttachments() {
  const taken = Object.fromEntries(Object.values(KINDS).map(({ list }) => [list, []]));
  for (const { kind, url } of attached) taken[KINDS[kind].list].push(url);
  attached = [];
  show();
  return attachmentsOf(taken);
}

/** The attachments of a message, as `takeAttachments` returns them. */
export function attachmentsOf(message) {
  return Object.fromEntries(Object.values(KINDS).map(({ list }) => [list, message[list] ?? []]).filter(([, urls]) => urls.length));
}

/** A row of the attachments of a message; `null` if it has none. */
export function attachmentRow(message) {
  const views = Object.values(KINDS).flatMap(({ list, view }) => (message[list] ?? []).map((url, index) => view(url, labelOf(list, index))));
  return views.length ? h("div", { class: "thumbnails" }, ...views) : null;
}

const labelOf = (list, index) => `${list === "images" ? "Image" : "Audio"} ${index + 1}`;

const kindOf = ({ type }) => allowed.find((kind) => type.startsWith(`${kind}/`));

function addFrom(event, data) {
  const files = [...(data?.files ?? [])].filter(kindOf);
  if (!files.length) return;
  event.preventDefault();
  addAll(files);
}

async function addAll(files) {
  for (const file of files) {
    if (attached.length >= MOST) return toast(`A message can have ${MOST} attachments.`);
    const kind = kindOf(file);
    try {
      attached.push({ kind, url: await KINDS[kind].read(file) });
    } catch {
      const wanted = allowed.map((kind) => KINDS[kind].name).join(" or ");
      toast(`${file.name || "The file"} is not ${kind ? KINDS[kind].name : wanted} that this browser can read.`);
    }
    show();
  }
}

async function beginRecording() {
  try {
    await startRecording();
  } catch {
    toast("The browser did not allow the microphone.");
  }
  showRecording();
}

async function finishRecording() {
  const recorded = await stopRecording();
  showRecording();
  addAll([recorded]);
}

function showRecording() {
  const label = isRecording() ? "Stop recording" : "Record audio";
  record.replaceChildren(icon(isRecording() ? "stop" : "microphone"));
  record.classList.toggle("recording", isRecording());
  record.setAttribute("aria-label", label);
  record.title = label;
}

function show() {
  const item = ({ kind, url }, index) => {
    const remove = () => {
      attached.splice(index, 1);
      show();
    };
    const label = kind === "image" ? "Remove the image" : "Remove the audio";
    return h("div", { class: "thumbnail" }, KINDS[kind].view(url, labelOf(KINDS[kind].list, index)), iconButton("close", label, remove));
  };
  list.replaceChildren(...attached.map(item));
  list.hidden = attached.length === 0;
  onChange();
}
