"""Asks through LiteLLM: a chat, a stream, a tool, two errors by their types. Prints what came, as JSON."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched
import litellm

litellm.telemetry = False
options = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": "none", "max_retries": 0}
hello = [{"role": "user", "content": "hello"}]
tools = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]
answer = litellm.completion("openai/fake/helper", hello, **options)
told = {"chat": answer.choices[0].message.content, "usage": answer.usage.total_tokens}
stream = litellm.completion("openai/fake/helper", hello, stream=True, **options)
told["stream"] = [c.choices[0].delta.content for c in stream if c.choices[0].delta.content]
asked = [{"role": "user", "content": 'call add {"a": 19, "b": 23}'}]
called = litellm.completion("openai/fake/helper", asked, tools=tools, **options).choices[0].message
(call,) = called.tool_calls
told["tool"] = [call.function.name, json.loads(call.function.arguments)]
answered = [*asked, called.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "42"}]
told["answered"] = litellm.completion("openai/fake/helper", answered, tools=tools, **options).choices[0].message.content
told["errors"] = []
for model, most in (("openai/nobody", 1), ("openai/fake", 1 << 21)):  # the second is beyond the model's window
    try:
        litellm.completion(model, hello, max_tokens=most, **options)
    except (litellm.NotFoundError, litellm.BadRequestError) as e:
        told["errors"].append(type(e).__name__)
print(json.dumps(told))
