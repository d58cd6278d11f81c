/** The chat page: what is shown, and what the buttons do. One answer is generated at a time. */

import { attachmentsOf } from "./attachments.js";
import { setUpComposer, focusComposer, setBusy } from "./composer.js";
import { announce, byId, toast } from "./dom.js";
import { emptyAnswer, generate, requestBody } from "./generation.js";
import { messageView } from "./message.js";
import { chosenModel, refreshModels, refreshStates, setUpModels } from "./models.js";
import { apiKey, askForKey, settings, setUpSettings, setUpTheme } from "./settings.js";
import { closeDrawer, setUpDrawer, showChats } from "./sidebar.js";
import * as store from "./store.js";
import { setUpThread, stickToEnd, scrollToEnd } from "./thread.js";

/** The conversation that is shown. */
let chat = store.loadChat(store.currentId()) ?? store.newChat();
/** The answer that is being generated: `{ chat, message, controller }`. It goes on while another conversation is shown. */
let live = null;
/** The views of the messages that are shown. */
let views = new Map();

function start() {
  setUpTheme();
  setUpDrawer();
  setUpThread();
  setUpModels();
  setUpSettings(loadModels);
  setUpComposer({ send, stop: () => live?.controller.abort() });
  byId("new-chat").addEventListener("click", openNewChat);
  addEventListener("pagehide", () => live && store.saveChat(live.chat));
  addEventListener("storage", (event) => store.isIndexKey(event.key) && showList());
  show(chat);
  loadModels();
}

async function loadModels() {
  try {
    await refreshModels(apiKey());
  } catch (error) {
    if (error.status !== 401) return toast(error.message, "Try again", loadModels);
    if (await askForKey(error.message)) return loadModels();
  }
}

function show(shown) {
  chat = shown;
  store.setCurrentId(chat.id);
  views = new Map();
  byId("messages").replaceChildren();
  for (const message of chat.messages) addView(message);
  document.title = chat.messages.length ? `${chat.title} – Cuelight` : "Cuelight";
  showList();
  refresh();
  scrollToEnd();
}

function showList() {
  showChats(chat.id, { open: openChat, remove: removeChat });
}

function refresh() {
  byId("welcome").hidden = chat.messages.length > 0;
  for (const view of views.values()) view.setBusy(live !== null);
}

function addView(message) {
  const actions = {
    edit: (text) => edit(message, text),
    regenerate: () => regenerate(message),
    remove: () => remove(message),
  };
  const view = messageView(message, actions, live?.message === message);
  views.set(message, view);
  byId("messages").append(view.element);
}

function openChat(id) {
  if (id === chat.id) return;
  show(live?.chat.id === id ? live.chat : store.loadChat(id) ?? store.newChat());
  // On a phone the keyboard would cover half of the chat.
  if (matchMedia("(hover: hover)").matches) focusComposer();
}

function openNewChat() {
  closeDrawer();
  if (chat.messages.length) show(store.newChat());
  focusComposer();
}

function removeChat(id) {
  const removed = live?.chat.id === id ? live.chat : store.loadChat(id);
  if (live?.chat.id === id) live.controller.abort();
  store.deleteChat(id);
  if (chat.id === id) show(store.newChat());
  showList();
  if (removed) toast("The chat was deleted.", "Undo", () => restoreChat(removed));
}

function restoreChat(removed) {
  store.restoreChat(removed);
  show(removed);
}

function save(saved) {
  if (!store.saveChat(saved)) toast("The browser could not store this chat. Deleting old chats frees space.");
  showList();
}

function send(text, attachments = () => ({})) {
  if (live) return false;
  chat.messages.push({ role: "user", content: text, ...attachments() });
  addView(chat.messages.at(-1));
  answer();
  return true;
}

function edit(message, text) {
  if (live) return toast("Stop the current answer first.");
  truncate(chat.messages.indexOf(message));
  send(text, () => attachmentsOf(message));
  focusComposer();
}

function regenerate(message) {
  if (live) return;
  truncate(chat.messages.indexOf(message));
  answer();
}

/** Drops the messages from an index on. */
function truncate(index) {
  for (const dropped of chat.messages.splice(index)) removeView(dropped);
}

function removeView(message) {
  views.get(message)?.element.remove();
  views.delete(message);
}

/** Deletes an answer, or a question with its answer. */
function remove(message) {
  if (live?.chat === chat) return toast("Stop the current answer first.");
  const index = chat.messages.indexOf(message);
  const hasAnswer = message.role === "user" && chat.messages[index + 1]?.role === "assistant";
  for (const dropped of chat.messages.splice(index, hasAnswer ? 2 : 1)) removeView(dropped);
  if (chat.messages.length) save(chat);
  else store.deleteChat(chat.id);
  showList();
  refresh();
  focusComposer();
}

function titleOf(messages) {
  const [first] = messages.filter(({ role }) => role === "user");
  const line = (first ? first.content || (first.images ? "Image" : "Audio") : "New chat").trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

/** Generates an answer to the conversation so far. */
async function answer() {
  const asked = chat;
  asked.title = titleOf(asked.messages);
  const message = emptyAnswer(chosenModel());
  const body = requestBody(message.model, asked.messages, settings());
  asked.messages.push(message);
  live = { chat: asked, message, controller: new AbortController() };
  addView(message);
  setBusy(true);
  refresh();
  save(asked);
  scrollToEnd();
  announce("Answering");
  await run(message, body, live.controller.signal);
  finish(asked, message);
}

/** Generates, and asks for the key as often as the server wants one. */
async function run(message, body, signal) {
  try {
    await generate(message, body, apiKey(), signal, () => views.get(message)?.update(stickToEnd));
  } catch (error) {
    if (await askForKey(error.message)) {
      loadModels();
      return run(message, body, signal);
    }
    message.error = { message: error.message, status: error.status, retryAfter: null };
  }
}

function finish(asked, message) {
  live = null;
  views.get(message)?.finish();
  setBusy(false);
  refresh();
  stickToEnd();
  // A conversation that was deleted meanwhile is not stored again.
  if (asked === chat || store.loadChat(asked.id)) save(asked);
  // The next answer reports an error of the server, if there is one.
  refreshStates(apiKey()).catch(() => {});
  announce(message.error ? "The answer failed" : "The answer is complete");
}

start();
