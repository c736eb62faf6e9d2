"""Answers about images of every server with a vision tower, against the interpreter's; and asked again."""

import json

from .serving import Server


def answer(server, body):
    """Ids and log-probabilities."""
    choice = server.post("/v1/chat/completions", body)["choices"][0]
    return choice["token_ids"], [token["logprob"] for token in choice["logprobs"]["content"]]


def images(question):
    """The images of a question."""
    parts = [part for message in question["body"]["messages"] for part in message["content"]]
    return {part["image_url"]["url"] for part in parts if part["type"] == "image_url"}


def compared(found, question):
    """What is wrong with an answer (None if nothing is), how many of its tokens were compared, and how far their log-probabilities are
    from the interpreter's, relative to their bounds. What follows a token that is not the interpreter's cannot be compared."""
    ids, logprobs = found
    if not len(ids) == len(logprobs) == len(question["ids"]):
        return f"{len(ids)} ids and {len(logprobs)} log-probabilities, not {len(question['ids'])}", 0, 0.0
    worst = 0.0
    for at, bound in enumerate(question["bounds"]):
        expected, margin = question["ids"][at], question["margins"][at]
        if ids[at] != expected:
            tie = not question["exact"] and margin <= bound
            return None if tie else f"token {at} is {ids[at]}, not {expected}, which leads by {margin:.3f}", at, worst
        apart = abs(logprobs[at] - question["logprobs"][at])
        worst = max(worst, apart / bound)
        if apart > bound:
            return f"the log-probability of token {at} is {apart:.1e} away, bound {bound:.1e}", at, worst
    return None, len(ids), worst


def run(context):
    def check(case):
        questions = json.loads(context.path(case["asked"]).read_text())
        command = [context.path(case["server"]), "serve", "--weights", context.path(case["weights"]), *case["flags"]]
        wrong, answers, tokens, worst = [], [], 0, 0.0
        with Server([*command, "--memory-fraction", "0.1"]) as server:
            for question in questions:
                say = lambda what: wrong.append(f"{question['name']}: {what}")
                conversation = {"messages": question["body"]["messages"]}
                if server.post("/tokenize", conversation)["tokens"] != question["prompt"]:
                    say("its prompt has other tokens")
                found = answer(server, question["body"])
                problem, compared_tokens, apart = compared(found, question)
                tokens, worst = tokens + compared_tokens, max(worst, apart)
                if problem:
                    say(problem)
                # What is kept of the prompt and of its images answers now.
                if answer(server, question["body"]) != found:
                    say("asked again it answers otherwise")
                if found in answers:
                    say("it answers as to another question")
                answers.append(found)
            seen = json.loads(server.get("/health"))["stats"]["images_seen"]
        asked = len(set().union(*map(images, questions)))
        if seen < asked:
            wrong.append(f"{seen} images were seen of {asked}")
        all_tokens = sum(len(question["ids"]) for question in questions)
        detail = f"{tokens} of {all_tokens} tokens compared, at most {worst:.2f} of a bound away; {seen} images seen"
        return not wrong, "; ".join([*wrong, detail]), {"of_bound": worst, "tokens": tokens, "wrong": wrong}

    context.all("images", context.manifest["images"], check)
