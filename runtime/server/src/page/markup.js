// What a model writes, as nodes: text nodes and elements made here, never HTML, so nothing that it writes can run.

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|\*(?=[^\s*])([^*]*[^\s*])\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;
function inline(parent, text) {
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    parent.append(text.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[1]) parent.append(make("code", "", found[2]));
    else if (found[5]) {
      const link = make("a", "", found[5]);
      link.href = found[6]; link.target = "_blank"; link.rel = "noopener noreferrer";
      parent.append(link);
    } else inline(parent.appendChild(make(found[3] ? "strong" : "em")), found[3] || found[4]);
  }
  parent.append(text.slice(from));
}
function codeBlock(language, lines) {
  const block = make("div", "block"), bar = block.appendChild(make("div"));
  bar.append(make("span", "", language || "text"));
  const copy = bar.appendChild(make("button", "", "Copy"));
  copy.type = "button";
  const text = lines.join("\n");
  copy.onclick = () => copyText(text, copy);
  block.appendChild(make("pre")).append(make("code", "", text));
  return block;
}
const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
const RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
function table(head, rule, rows) {
  const frame = make("div", "table"), node = frame.appendChild(make("table"));
  const sides = cells(rule).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const row = (parent, tag, line) => {
    const made = parent.appendChild(make("tr")), found = cells(line);
    sides.forEach((side, at) => {
      const cell = made.appendChild(make(tag));
      cell.style.textAlign = side;
      inline(cell, found[at] ?? "");
    });
  };
  row(node.appendChild(make("thead")), "th", head);
  const body = node.appendChild(make("tbody"));
  for (const line of rows) row(body, "td", line);
  return frame;
}
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
function markup(text) {
  const out = document.createDocumentFragment(), lines = text.split("\n");
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) inline(out.appendChild(make("p")), paragraph.join("\n"));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at];
    const fence = line.match(/^\s*(```+|~~~+)\s*([^`]*)$/);
    if (fence) {
      flush();
      const body = [];
      while (++at < lines.length && !(lines[at].trim().startsWith(fence[1]) && /^\s*[`~]+\s*$/.test(lines[at]))) body.push(lines[at]);
      out.append(codeBlock(fence[2].trim(), body));
      continue;
    }
    const heading = line.match(/^(#{1,6})\s+(.*)$/);
    if (heading) { flush(); inline(out.appendChild(make(heading[1].length < 3 ? "h3" : "h4")), heading[2]); continue; }
    const rule = lines[at + 1] ?? "";
    if (line.includes("|") && rule.includes("|") && RULE.test(rule) && cells(line).length === cells(rule).length) {
      flush();
      const rows = [];
      for (at++; at + 1 < lines.length && lines[at + 1].includes("|"); at++) rows.push(lines[at + 1]);
      out.append(table(line, rule, rows));
      continue;
    }
    if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) { flush(); out.append(make("hr")); continue; }
    if (/^>\s?/.test(line)) {
      flush();
      const quoted = [line.replace(/^>\s?/, "")];
      while (at + 1 < lines.length && /^>\s?/.test(lines[at + 1])) quoted.push(lines[++at].replace(/^>\s?/, ""));
      out.appendChild(make("blockquote")).append(markup(quoted.join("\n")));
      continue;
    }
    if (ITEM.test(line)) {
      flush();
      const ordered = /\d/.test(line.match(ITEM)[2]);
      const list = out.appendChild(make(ordered ? "ol" : "ul"));
      if (ordered) list.start = parseInt(line.match(ITEM)[2], 10);
      for (; at < lines.length; at++) {
        const item = lines[at].match(ITEM);
        if (item && /\d/.test(item[2]) === ordered) {
          const node = list.appendChild(make("li"));
          if (item[1].length > 1) node.style.marginLeft = Math.min(item[1].length, 8) / 2 + "em";
          inline(node, item[3]);
        } else if (lines[at].trim() && /^\s{2,}/.test(lines[at]) && !item) {
          inline(list.lastChild, "\n" + lines[at].trim());
        } else if (!(lines[at].trim() === "" && at + 1 < lines.length && ITEM.test(lines[at + 1]))) break;
      }
      at--;
      continue;
    }
    if (line.trim() === "") flush(); else paragraph.push(line);
  }
  flush();
  for (const node of out.querySelectorAll("p")) node.style.whiteSpace = "pre-line";
  return out;
}
