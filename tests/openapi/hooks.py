"""What schemathesis is to look at beside its own checks."""

import schemathesis

# What a schema says, and so what a request that is valid by the document is never refused for.
OF_SCHEMAS = {"unknown_parameter", "invalid_type", "invalid_json", "invalid_body"}


@schemathesis.check
def refusals_have_reasons(ctx, response, case):
    """A request that is valid by the document is not refused for a field's name or type, or for one that is missing."""
    if response.status_code != 400 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    error = response.json()["error"]
    message = error["message"]
    wrong = error.get("code") in OF_SCHEMAS or message.endswith("is required")
    # Anthropic's envelope has no codes.
    wrong = wrong or "is not a field this server knows" in message or " must be a" in message and ", and is " in message
    if wrong:
        raise AssertionError(f"valid by the document, and refused: {message}")
