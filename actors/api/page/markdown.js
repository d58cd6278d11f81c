/**
 * Blocks of Markdown as DOM nodes: headings, lists, tables, code, quotes, rules, paragraphs.
 *
 * While an answer grows, only its last blocks are rendered again. A block that is not complete is shown as if it ended with
 * the text. Nesting is limited.
 */

import { copyButton, h } from "./dom.js";
import { renderInline } from "./inline.js";

const MAX_DEPTH = 8;
const FENCE = /^( *)(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*))?$/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const TASK = /^\[([ xX])\] /;
const DELIMITERS = /^\|? *:?-+:? *(?:\| *:?-+:? *)*\|?$/;
const UNFINISHED_DELIMITERS = /^[ |:-]*$/;

const isBlank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;

/** An element whose Markdown grows. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.text = "";
    /** Where the part of the text begins that is rendered again. */
    this.stable = 0;
    /** The nodes of that part. */
    this.nodes = [];
  }

  /** Shows `text`. If it begins with the text so far, only its end is rendered. */
  update(text, isOpen) {
    if (!text.startsWith(this.text) || !isOpen) this.clear();
    this.text = text;
    const lines = splitLines(text.slice(this.stable));
    const blocks = readBlocks(lines, 0, isOpen);
    this.replace(blocks.map((block) => block.node));
    this.keep(lines, blocks);
  }

  clear() {
    this.element.replaceChildren();
    this.nodes = [];
    this.stable = 0;
  }

  replace(nodes) {
    const [before, after] = [this.nodes.at(-1), nodes.at(-1)];
    if (this.nodes.length === nodes.length && isCode(before) && isCode(after)) {
      // The block stays in place, so that its button can be pressed while it grows.
      before.querySelector("code").textContent = after.querySelector("code").textContent;
      nodes[nodes.length - 1] = before;
    }
    for (const node of this.nodes) if (!nodes.includes(node)) node.remove();
    this.element.append(...nodes);
    this.nodes = nodes;
  }

  /** Keeps the blocks before the last one. A block whose first line is not complete may still join the one before. */
  keep(lines, blocks) {
    const isStarted = blocks.at(-1)?.start === lines.length - 1;
    const kept = Math.max(0, blocks.length - (isStarted ? 2 : 1));
    if (kept === 0) return;
    const start = blocks[kept].start;
    for (const line of lines.slice(0, start)) this.stable += line.length + 1;
    this.nodes = this.nodes.slice(kept);
  }
}

const isCode = (node) => node?.classList.contains("code") ?? false;

/** Lines without carriage returns or tabs, in their lengths of the text. */
function splitLines(text) {
  return text.split("\n").map((line) => line.replace(/[\t\r]/g, " "));
}

/** The blocks of some lines: each its node and its first line. */
function readBlocks(lines, depth, isOpen) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at++;
      continue;
    }
    const block = readBlock(lines, at, depth, isOpen);
    blocks.push({ start: at, node: block.render(isOpen && block.next >= lines.length) });
    at = block.next;
  }
  return blocks;
}

function readBlock(lines, at, depth, isOpen) {
  return readFence(lines, at) ?? readHeading(lines, at) ?? readRule(lines, at) ?? readQuote(lines, at, depth)
    ?? readList(lines, at, depth) ?? readTable(lines, at, isOpen) ?? readParagraph(lines, at, isOpen);
}

function readFence(lines, at) {
  const opening = FENCE.exec(lines[at]);
  if (!opening) return null;
  const [, indent, fence, info] = opening;
  const closes = (line) => line.trim().length >= fence.length && line.trim() === fence[0].repeat(line.trim().length);
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end++;
  const render = (isOpen) => {
    const body = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent.length, indentOf(line))));
    // A last line like this may become the closing fence.
    if (isOpen && /^(?:`+|~+)?$/.test(body.at(-1)?.trim() ?? "")) body.pop();
    return codeBlock(info.trim().split(/\s/)[0], body.join("\n"));
  };
  return { next: end + 1, render };
}

function codeBlock(language, text) {
  const code = h("code", {}, text);
  const head = h("div", { class: "code-head" }, h("span", {}, language || "text"), copyButton(() => code.textContent, "Copy code"));
  return h("div", { class: "code" }, head, h("pre", { tabindex: "0" }, code));
}

function readHeading(lines, at) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  const text = trimHashes(found[2] ?? "");
  // The page itself has the first level.
  const tag = `h${Math.min(found[1].length + 1, 6)}`;
  return { next: at + 1, render: (isOpen) => h(tag, {}, renderInline(text, isOpen)) };
}

function trimHashes(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end--;
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trim() : text.trim();
}

function readRule(lines, at) {
  return RULE.test(lines[at]) ? { next: at + 1, render: () => h("hr") } : null;
}

function readQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  if (end === at || depth >= MAX_DEPTH) return null;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { next: end, render: (isOpen) => h("blockquote", {}, ...nodesOf(inner, depth, isOpen)) };
}

function nodesOf(lines, depth, isOpen) {
  return readBlocks(lines, depth + 1, isOpen).map((block) => block.node);
}

/** Lists of the same kind have the same bullet, or the same character after the number. */
const kindOf = (marker) => marker.at(-1);

function readList(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first || depth >= MAX_DEPTH) return null;
  const base = first[1].length;
  const items = [];
  let [end, indent, wasBlank, isLoose] = [at, 0, false, false];
  for (; end < lines.length; end++) {
    const line = lines[end];
    const item = indentOf(line) < base + 2 && !RULE.test(line) ? ITEM.exec(line) : null;
    if (item && kindOf(item[2]) !== kindOf(first[2])) break;
    if (item) {
      indent = item[0].length;
      items.push([line.slice(indent)]);
      isLoose ||= wasBlank;
    } else if (isBlank(line)) {
      items.at(-1).push("");
    } else if (indentOf(line) >= base + 2) {
      items.at(-1).push(line.slice(Math.min(indentOf(line), indent)));
    } else if (wasBlank || interrupts(lines, end)) {
      break;
    } else {
      items.at(-1).push(line);
    }
    wasBlank = isBlank(line);
  }
  return { next: end, render: (isOpen) => list(first[2], isLoose, items, depth, isOpen) };
}

function list(marker, isLoose, items, depth, isOpen) {
  const number = Number.parseInt(marker, 10);
  const isOrdered = !Number.isNaN(number);
  const render = (lines, index) => listItem(lines, depth, isOpen && index === items.length - 1);
  const start = isOrdered && number !== 1 ? number : null;
  return h(isOrdered ? "ol" : "ul", { start, class: isLoose ? "loose" : null }, ...items.map(render));
}

function listItem(lines, depth, isOpen) {
  const task = TASK.exec(lines[0]);
  const body = task ? [lines[0].slice(task[0].length), ...lines.slice(1)] : lines;
  const nodes = nodesOf(body, depth, isOpen);
  if (!task) return h("li", {}, ...nodes);
  const box = h("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "Task" });
  if (nodes[0]?.tagName === "P") nodes[0].prepend(box);
  else nodes.unshift(box);
  return h("li", { class: "task" }, ...nodes);
}

/** Whether a table begins here. While text may follow, its header is enough. */
function startsTable(lines, at, isOpen) {
  if (!lines[at].includes("|")) return false;
  const next = lines[at + 1];
  if (next === undefined) return isOpen && lines[at].trimStart().startsWith("|");
  const isLast = isOpen && at + 2 === lines.length && lines[at].trimStart().startsWith("|");
  if (isLast && UNFINISHED_DELIMITERS.test(next)) return true;
  return DELIMITERS.test(next.trim()) && cells(next).length === cells(lines[at]).length;
}

function readTable(lines, at, isOpen) {
  if (!startsTable(lines, at, isOpen)) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end++;
  return { next: end, render: (isLast) => table(lines.slice(at, end), isLast) };
}

function table([header, delimiters = "", ...rows], isOpen) {
  const names = cells(header);
  const aligns = cells(delimiters).map(alignOf);
  const row = (tag, texts, isLast) => h("tr", {}, ...texts.slice(0, names.length).map((text, column) => {
    const cell = h(tag, { scope: tag === "th" ? "col" : null }, renderInline(text, isLast));
    if (aligns[column]) cell.style.textAlign = aligns[column];
    return cell;
  }));
  const body = rows.map((line, index) => row("td", cells(line), isOpen && index === rows.length - 1));
  const node = h("table", {}, h("thead", {}, row("th", names, isOpen)), h("tbody", {}, ...body));
  return h("div", { class: "table", tabindex: "0" }, node);
}

function alignOf(text) {
  if (!text.endsWith(":")) return null;
  return text.startsWith(":") ? "center" : "right";
}

/** The cells of a row. A bar after a backslash or within code divides nothing. */
function cells(line) {
  const text = line.trim().replace(/^\|/, "");
  const lastTick = text.lastIndexOf("`");
  const found = [];
  let [cell, isInCode] = ["", false];
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === "\\" && text[at + 1] === "|") cell += text[++at];
    else if (character === "|" && !isInCode) [cell] = ["", found.push(cell.trim())];
    else cell += character;
    if (character === "`") isInCode = !isInCode && at < lastTick;
  }
  if (cell.trim()) found.push(cell.trim());
  return found;
}

/** Whether a paragraph ends before this line. */
function interrupts(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)
    || (item !== null && item[0].length < line.length) || startsTable(lines, at, false);
}

function readParagraph(lines, at, isOpen) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end) && !startsTable(lines, end, isOpen)) end++;
  const text = lines.slice(at, end).map((line) => line.trimStart()).join("\n").trimEnd();
  return { next: end, render: (isLast) => h("p", {}, renderInline(text, isLast)) };
}
