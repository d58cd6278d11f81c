/**
 * What the browser keeps: conversations, settings, the key, the theme. Nothing of it is kept by the server.
 *
 * A conversation is `{ id, title, updated, messages }`. A message is `{ role, content }`, a question also with `images` and `audio` as data URLs; an answer also has `reasoning`,
 * `toolCalls`, `model`, `finish`, `stats` and `error`.
 */

const PREFIX = "cuelight.";
const INDEX = "chats";

export function read(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Whether the value could be stored: the space of a site is limited, and a browser may offer none. */
export function write(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** `{ id, title, updated }` of each conversation, the latest first. */
export function listChats() {
  const chats = read(INDEX, []);
  return Array.isArray(chats) ? chats.sort((a, b) => b.updated - a.updated) : [];
}

export function newChat() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "New chat", updated: Date.now(), messages: [] };
}

export function loadChat(id) {
  const chat = read(`chat.${id}`, null);
  return Array.isArray(chat?.messages) ? chat : null;
}

export function saveChat(chat) {
  chat.updated = Date.now();
  return restoreChat(chat);
}

/** As `saveChat`, without a new date. */
export function restoreChat(chat) {
  const { id, title, updated } = chat;
  // Read again, because another tab may have changed it.
  const others = listChats().filter((other) => other.id !== id);
  return write(`chat.${id}`, chat) && write(INDEX, [{ id, title, updated }, ...others]);
}

export function deleteChat(id) {
  write(INDEX, listChats().filter((chat) => chat.id !== id));
  write(`chat.${id}`, null);
}

/** The conversation that this tab shows, so that it is shown again after a reload. */
export function currentId() {
  try {
    return sessionStorage.getItem(`${PREFIX}current`);
  } catch {
    return null;
  }
}

export function setCurrentId(id) {
  try {
    sessionStorage.setItem(`${PREFIX}current`, id);
  } catch {
    // Without storage a reload begins a new conversation.
  }
}

export function isIndexKey(key) {
  return key === PREFIX + INDEX;
}
