"use strict";
const $ = (id) => document.getElementById(id);
const make = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};
const button = (text, pressed) => {
  const node = make("button", "", text);
  node.type = "button";
  node.onclick = () => pressed(node);
  return node;
};

// Storage may be forbidden or full; then nothing is remembered.
const remember = (key, value) => { try { localStorage.setItem("monomorph." + key, JSON.stringify(value)); } catch {} };
const recall = (key) => { try { return JSON.parse(localStorage.getItem("monomorph." + key)); } catch { return null; } };
let settings = recall("settings") || {};
let messages = recall("messages") || [];

// Asks the server. With a key that was given here the browser is kept from asking for another.
const api = (path, options = {}) => {
  if (!settings.key) return fetch(path, options);
  // Headers carry bytes: those of the key's UTF-8.
  const key = String.fromCharCode(...new TextEncoder().encode(settings.key));
  return fetch(path, { ...options, credentials: "omit", headers: { ...options.headers, authorization: "Bearer " + key } });
};

async function copyText(text, pressed) {
  const before = pressed.textContent;
  try { await navigator.clipboard.writeText(text); }
  catch {
    // Clipboards need https, except on localhost.
    const area = make("textarea"); area.value = text; document.body.append(area); area.select();
    document.execCommand("copy"); area.remove();
  }
  pressed.textContent = "Copied";
  setTimeout(() => { pressed.textContent = before; }, 1200);
}

// ---- theme ----
const dark = matchMedia("(prefers-color-scheme: dark)");
const applyTheme = () => {
  const theme = recall("theme") || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  document.documentElement.style.colorScheme = theme;
};
dark.addEventListener("change", applyTheme);
$("theme").onclick = () => {
  remember("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  applyTheme();
};
applyTheme();
