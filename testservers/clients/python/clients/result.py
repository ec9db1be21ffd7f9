"""What every library's tools/call result has."""


def read(result):
    text = "\n".join(getattr(c, "text", f"[{c.type}]") for c in result.content)
    is_error = getattr(result, "is_error", None)
    if is_error is None:
        is_error = getattr(result, "isError", False)
    return text, bool(is_error)
