/**
 * Inline Markdown as DOM nodes: emphasis, code, links, line breaks.
 *
 * The text comes from a model and is not trusted. It only ever becomes text nodes; links lead to http, https and mailto.
 * Time is linear: open elements are kept on a stack of limited depth, and each pattern looks ahead a limited length.
 */

import { h } from "./dom.js";

const MAX_DEPTH = 16;
const SPECIAL = /[\\`*_~[\]!<&\n]|https?:\/\//g;
const TICKS = /`+/g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BREAK = /<br ?\/?>/iy;
const ADDRESS = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE_ADDRESS = /https?:\/\/[^\s<>"`*|[\]]{1,2000}/y;
const DESTINATION = /\(\s{0,9}<?((?:[^\s()<>]|\([^\s()<>]{0,500}\)){0,2000})>?(?:\s{1,9}"([^"]{0,500})")?\s{0,9}\)/y;
const UNFINISHED_DESTINATION = /\([^)\n]{0,2000}$/y;
const ENTITY = /&(amp|lt|gt|quot|apos|nbsp|#39);/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };
const TAGS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };
const PROTOCOLS = ["http:", "https:", "mailto:"];

/** `isOpen`: more text may follow, so unfinished emphasis is shown as if it ended here. */
export function renderInline(text, isOpen = false) {
  return new Parser(isOpen ? withoutTrailingMarkers(text) : text, isOpen).run();
}

function withoutTrailingMarkers(text) {
  let end = text.length;
  while (end > 0 && "*_~`[".includes(text[end - 1])) end--;
  return text.slice(0, end);
}

/** An absolute address that a link may have, or null. */
function safeAddress(text) {
  const address = URL.canParse(text) ? new URL(text) : null;
  return address && PROTOCOLS.includes(address.protocol) ? address.href : null;
}

function link(href, title) {
  return h("a", { href, title, target: "_blank", rel: "noopener noreferrer" });
}

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

const isSpace = (character) => character === undefined || /\s/.test(character);
const isWord = (character) => character !== undefined && /[\p{L}\p{N}]/u.test(character);

class Parser {
  constructor(text, isOpen) {
    this.text = text;
    this.isOpen = isOpen;
    this.at = 0;
    this.root = document.createDocumentFragment();
    /** Open elements, the outermost first: `{ marker, node }`. */
    this.stack = [];
    /** Text that is not yet in a node. */
    this.plain = "";
    /** Lengths of backtick runs that have no further partner. */
    this.unpaired = new Set();
  }

  run() {
    while (this.at < this.text.length) this.step();
    this.flush();
    while (this.stack.length) {
      const isShown = this.isOpen && this.stack.at(-1).marker in TAGS;
      if (isShown) this.stack.pop();
      else this.unwrap(this.stack.length - 1);
    }
    return this.root;
  }

  step() {
    const found = matchAt(SPECIAL, this.text, this.at);
    const end = found?.index ?? this.text.length;
    this.plain += this.text.slice(this.at, end);
    this.at = end;
    if (!found) return;
    const character = found[0][0];
    const isRead = this.read(character);
    if (!isRead) this.take(1);
  }

  /** Whether the construct that begins with a special character was read. Otherwise the character is text. */
  read(character) {
    switch (character) {
      case "\\": return this.readEscape();
      case "`": return this.readCode();
      case "*": case "_": case "~": return this.readDelimiters(character);
      case "[": return this.openBracket("[");
      case "!": return this.text[this.at + 1] === "[" && this.openBracket("![");
      case "]": return this.closeBracket();
      case "<": return this.readBreak() || this.readAddress(ADDRESS, 1);
      case "&": return this.readEntity();
      case "\n": return this.readNewline();
      default: return !isWord(this.text[this.at - 1]) && this.readAddress(BARE_ADDRESS, 0);
    }
  }

  take(length) {
    this.plain += this.text.slice(this.at, this.at + length);
    this.at += length;
  }

  get top() {
    return this.stack.at(-1)?.node ?? this.root;
  }

  flush() {
    if (this.plain) this.top.append(this.plain);
    this.plain = "";
  }

  add(node, length) {
    this.flush();
    this.top.append(node);
    this.at += length;
    return true;
  }

  readEscape() {
    const next = this.text[this.at + 1];
    if (next === "\n") return this.add(h("br"), 2);
    if (next === undefined || !ESCAPABLE.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  readNewline() {
    this.plain = this.plain.trimEnd();
    return this.add(h("br"), 1);
  }

  readBreak() {
    const found = matchAt(BREAK, this.text, this.at);
    return found !== null && this.add(h("br"), found[0].length);
  }

  readEntity() {
    const found = matchAt(ENTITY, this.text, this.at);
    if (!found) return false;
    this.plain += ENTITIES[found[1]];
    this.at += found[0].length;
    return true;
  }

  readCode() {
    const length = matchAt(TICKS, this.text, this.at)[0].length;
    const begin = this.at + length;
    const end = this.partner(length, begin) ?? (this.isOpen ? this.text.length : null);
    if (end === null) {
      this.take(length);
      return true;
    }
    const code = this.text.slice(begin, end).replaceAll("\n", " ");
    const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
    return this.add(h("code", {}, isPadded ? code.slice(1, -1) : code), end + length - this.at);
  }

  /** Where the next run of `length` backticks begins. */
  partner(length, from) {
    if (this.unpaired.has(length)) return null;
    TICKS.lastIndex = from;
    for (let run = TICKS.exec(this.text); run; run = TICKS.exec(this.text)) {
      if (run[0].length === length) return run.index;
    }
    this.unpaired.add(length);
    return null;
  }

  readAddress(pattern, group) {
    const found = matchAt(pattern, this.text, this.at);
    const written = found && (group ? found[group] : withoutPunctuation(found[0]));
    const href = written && safeAddress(written);
    if (!href) return false;
    const node = link(href);
    node.append(written);
    return this.add(node, group ? found[0].length : written.length);
  }

  readDelimiters(character) {
    let length = 1;
    while (this.text[this.at + length] === character) length++;
    const [before, after] = [this.text[this.at - 1], this.text[this.at + length]];
    const isInWord = character === "_" && isWord(before) && isWord(after);
    this.at += length;
    let left = length;
    if (!isSpace(before) && !isInWord) left = this.close(character, left);
    if (isSpace(after) || isInWord || left > 3) this.plain += character.repeat(left);
    else this.open(character, left);
    return true;
  }

  /** Ends elements that the run of delimiters ends. Returns how many delimiters are left. */
  close(character, left) {
    const ends = ({ marker }) => marker[0] === character && marker.length <= left;
    for (let index = this.stack.findLastIndex(ends); index >= 0; index = this.stack.findLastIndex(ends)) {
      this.flush();
      while (this.stack.length > index + 1) this.unwrap(this.stack.length - 1);
      left -= this.stack.pop().marker.length;
    }
    return left;
  }

  open(character, left) {
    for (; left > 0; left -= Math.min(left, 2)) {
      const marker = character.repeat(Math.min(left, 2));
      const tag = this.stack.length < MAX_DEPTH ? TAGS[marker] : undefined;
      if (tag) this.push(marker, h(tag));
      else this.plain += marker;
    }
  }

  push(marker, node) {
    this.flush();
    this.top.append(node);
    this.stack.push({ marker, node });
  }

  openBracket(marker) {
    if (this.stack.length >= MAX_DEPTH) return false;
    this.push(marker, h("span"));
    this.at += marker.length;
    return true;
  }

  closeBracket() {
    const index = this.stack.findLastIndex(({ marker }) => marker.endsWith("["));
    if (index < 0) return false;
    const found = matchAt(DESTINATION, this.text, this.at + 1);
    const href = found && safeAddress(found[1]);
    if (href) return this.closeLink(index, link(href, found[2]), found[0].length + 1);
    const unfinished = this.isOpen && matchAt(UNFINISHED_DESTINATION, this.text, this.at + 1);
    if (unfinished) return this.closeLink(index, h("span"), unfinished[0].length + 1);
    this.flush();
    this.unwrap(index);
    return false;
  }

  /** Replaces the open bracket by `node`. A link has no links inside. Images are links too: the page loads none. */
  closeLink(index, node, length) {
    this.flush();
    while (this.stack.length > index + 1) this.unwrap(this.stack.length - 1);
    const { node: bracket, marker } = this.stack.pop();
    while (bracket.firstChild) node.append(bracket.firstChild);
    for (const inner of node.querySelectorAll("a")) inner.replaceWith(inner.textContent);
    if (marker === "![" && !node.hasChildNodes()) node.append("image");
    bracket.replaceWith(node);
    this.at += length;
    return true;
  }

  /** Turns an element that was never ended into its marker and its content. */
  unwrap(index) {
    const [{ marker, node }] = this.stack.splice(index, 1);
    node.before(marker);
    while (node.firstChild) node.before(node.firstChild);
    node.remove();
  }
}

/** An address in running text, without the punctuation of the sentence around it. */
function withoutPunctuation(address) {
  let end = address.length;
  let unmatched = address.split(")").length - address.split("(").length;
  for (; end > 0; end--) {
    const last = address[end - 1];
    if (last === ")" && unmatched > 0) unmatched--;
    else if (!".,;:!?'_~".includes(last)) break;
  }
  return address.slice(0, end);
}
