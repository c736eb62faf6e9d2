// The conversation: what is on the page, what is asked, what is answered.

let running = null;         // the AbortController of the answer being streamed

const scroll = $("scroll");
const nearEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
const toEnd = () => { scroll.scrollTop = scroll.scrollHeight; };
const seconds = (from, to) => ((to - from) / 1000);

function welcome() {
  const box = make("div", "welcome");
  box.append(document.querySelector("header .mark").cloneNode(true), make("h1", "", "What shall we talk about?"),
    make("p", "", "The model runs on this server. Nothing you write leaves it."));
  const ideas = box.appendChild(make("div", "ideas"));
  for (const idea of ["Write one sentence about the sea.", "Explain gravity to a six-year-old.",
                      "Write a Python function that reverses a string.", "Suggest three names for a black cat."])
    ideas.append(button(idea, () => ask(idea)));
  return box;
}

// The model's reasoning: open while it comes, folded away afterwards unless its reader has opened it.
function thoughtBox() {
  const box = make("details", "thought"), label = box.appendChild(make("summary")), text = box.appendChild(make("div"));
  let touched = false;
  label.addEventListener("click", () => { touched = true; });
  const show = (message, thinking) => {
    const took = message.thoughtSeconds;
    label.textContent = thinking ? "Thinking…" : !(took >= 0.1) ? "Thought for a moment" : `Thought for ${took.toFixed(1)} s`;
    box.classList.toggle("thinking", thinking);
    if (!touched) box.open = thinking;
    if (text.textContent !== message.thought) text.textContent = message.thought;
    if (thinking) text.scrollTop = text.scrollHeight;
  };
  return { box, show };
}

// An answer on the page, and how it is drawn.
function answerTurn() {
  const turn = $("log").appendChild(make("div", "turn assistant")), text = turn.appendChild(make("div", "text"));
  const line = turn.appendChild(make("div", "about"));
  let thought = null;
  const draw = (message, live) => {
    if (message.thought) {
      if (!thought) turn.prepend((thought = thoughtBox()).box);
      thought.show(message, live && !message.content);
    }
    text.className = live && !(message.thought && !message.content) ? "text waiting" : "text";
    text.replaceChildren(markup(message.content));
  };
  return { turn, line, draw };
}
function showEnd({ line }, message) {
  line.replaceChildren();
  if (message.note) line.append(make("span", "", message.note));
  if (message.content) line.append(button("Copy", (pressed) => copyText(message.content, pressed)));
  if (message === messages.at(-1)) line.append(button("Try again", again));
}
function showFailure(failure) {
  const box = $("log").appendChild(make("div", "failed"));
  box.setAttribute("role", "alert");
  box.append(make("span", "", failure), button("Try again", again));
}
function showAll() {
  $("log").replaceChildren();
  if (!messages.length) $("log").append(welcome());
  for (const message of messages) {
    if (message.role === "user") {
      const turn = $("log").appendChild(make("div", "turn user"));
      if (message.pictures) turn.appendChild(make("div", "pictures")).append(...message.pictures.map(pictureShown));
      if (message.content) turn.append(make("div", "bubble", message.content));
      continue;
    }
    const view = answerTurn();
    view.draw(message, false);
    showEnd(view, message);
  }
  toEnd();
}
function showButtons() {
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("send").disabled = !$("input").value.trim() && !attached.length;
}

function ask(text) {
  if (running || !text.trim() && !attached.length) return;
  // Two questions in a row happen when an answer failed; templates want turns.
  if (messages.at(-1)?.role === "user") messages.pop();
  const message = { role: "user", content: text.trim() };
  if (attached.length) message.pictures = attached;
  messages.push(message);
  attached = [];
  $("input").value = "";
  showAttached();
  fit();
  again();
}
// Answers the last question, anew if it has an answer.
function again() {
  if (running) return;
  if (messages.at(-1)?.role === "assistant") messages.pop();
  keepConversation();
  showAll();
  answer();
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ") || part === "data: [DONE]") continue;
      yield JSON.parse(part.slice(6));
    }
  }
}
// What is asked: the conversation without its reasoning, which templates drop, and the settings that were made.
function question() {
  const history = messages.map((message) => ({ role: message.role, content: contentOf(message) }));
  if (settings.system) history.unshift({ role: "system", content: settings.system });
  const body = { model: served?.id, messages: history, stream: true, stream_options: { include_usage: true } };
  if (settings.temperature !== undefined) body.temperature = settings.temperature;
  if (settings.topP !== undefined) body.top_p = settings.topP;
  if (settings.maxTokens) body.max_tokens = settings.maxTokens;
  if (settings.effort) body.reasoning_effort = settings.effort;
  return body;
}
async function refusal(response) {
  try { return (await response.json()).error.message; }
  catch { return `The server answered with status ${response.status}.`; }
}

async function answer() {
  const mine = running = new AbortController();
  const message = { role: "assistant", content: "", thought: "", note: "" };
  showButtons();
  const view = answerTurn();
  view.draw(message, true);
  toEnd();
  await picturesKept;
  const begun = performance.now();
  let first = 0, last = 0, pieces = 0, reason = "", failure = "", drawing = 0, cost = 0;
  const draw = () => {
    drawing = 0;
    // The answer ended, or a new chat was begun, since this was put off.
    if (running !== mine || !view.turn.isConnected) return;
    const began = performance.now(), follow = nearEnd();
    view.draw(message, true);
    const took = seconds(first, began);
    if (pieces > 1 && took > 0.2) view.line.textContent = `${((pieces - 1) / took).toFixed(1)} tokens/s`;
    if (follow) toEnd();
    cost = performance.now() - began;
  };
  // Long answers take longer to draw: most of the time stays free for what is pressed and scrolled.
  const drawSoon = () => { drawing ||= setTimeout(() => requestAnimationFrame(draw), 3 * cost); };
  try {
    const response = await api("/v1/chat/completions", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question()), signal: mine.signal,
    });
    if (response.status === 401) askKey(again);
    if (!response.ok) throw new Error(await refusal(response));
    let tokens = 0;
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0], thought = choice?.delta.reasoning_content, text = choice?.delta.content;
      if (thought || text) {
        pieces++;
        last = performance.now();
        first ||= last;
        if (text && !message.content && message.thought) message.thoughtSeconds = seconds(first, last);
        message.thought += thought || "";
        message.content += text || "";
        drawSoon();
      }
      if (choice?.finish_reason) reason = choice.finish_reason;
      if (event.usage) tokens = event.usage.completion_tokens;
    }
    if (!reason) throw new Error("The server ended the connection before the answer was complete.");
    const speed = tokens > 1 && last > first + 200 ? ` · ${((tokens - 1) / seconds(first, last)).toFixed(1)} tokens/s` : "";
    const wait = first ? ` · first after ${seconds(begun, first).toFixed(2)} s` : "";
    message.note = `${tokens} tokens${speed}${wait}${reason === "length" ? " · cut off at the length limit" : ""}`;
  } catch (error) {
    if (error.name === "AbortError") message.note = "stopped";
    else failure = error instanceof TypeError ? "The server cannot be reached." : error.message;
  }
  clearTimeout(drawing);
  if (running === mine) running = null;
  showButtons();
  // A new chat was begun meanwhile.
  if (!view.turn.isConnected) return;
  const follow = nearEnd();
  if (message.thought && message.thoughtSeconds === undefined) message.thoughtSeconds = seconds(first, last);
  if (message.content || message.thought || !failure) messages.push(message);
  view.draw(message, false);
  if (failure) { view.line.remove(); showFailure(failure); } else showEnd(view, message);
  if (follow) toEnd();
  keepConversation();
}
// A page that is left in the middle of an answer keeps what there was of it. Phones tell of the second alone, when connections may be cut already.
for (const leaving of ["beforeunload", "pagehide"]) addEventListener(leaving, () => running?.abort());

// ---- input ----
const input = $("input");
function fit() {
  input.style.height = "auto";
  input.style.height = input.scrollHeight + "px";
  showButtons();
}
input.addEventListener("input", fit);
input.addEventListener("keydown", (event) => {
  // On a phone, Enter is for line breaks.
  const phone = matchMedia("(pointer: coarse)").matches;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !phone) { event.preventDefault(); ask(input.value); }
});
$("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(input.value); });
$("stop").onclick = () => running?.abort();
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
});
$("new").onclick = () => {
  running?.abort();
  messages = [];
  attached = [];
  keepConversation();
  showAttached();
  showAll();
  input.focus();
};
