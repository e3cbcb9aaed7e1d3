// Asks through the Vercel AI SDK, over responses and over chats: text, a stream, a tool. Prints what came, as JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const options = { name: "tartlet", baseURL: process.env.OPENAI_BASE_URL, apiKey: "none" };
const models = {
  responses: createOpenAI(options)("fake/helper"),
  chats: createOpenAICompatible(options)("fake/helper"),
};
const add = tool({
  description: "Add two numbers.",
  inputSchema: jsonSchema({
    type: "object",
    properties: { a: { type: "integer" }, b: { type: "integer" } },
    required: ["a", "b"],
    additionalProperties: false,
  }),
  execute: async ({ a, b }) => a + b,
});
const told = {};
for (const [name, model] of Object.entries(models)) {
  const once = { model, maxRetries: 0 };
  const said = await generateText({ ...once, prompt: "hello" });
  const pieces = [];
  const stream = streamText({ ...once, prompt: "hello" });
  for await (const piece of stream.textStream) pieces.push(piece);
  const answered = await generateText({
    ...once, prompt: 'call add {"a": 19, "b": 23}', tools: { add }, stopWhen: stepCountIs(3),
  });
  told[name] = {
    chat: said.text, reason: said.finishReason, usage: said.usage.totalTokens, stream: pieces,
    answered: answered.text, steps: answered.steps.length,
  };
}
console.log(JSON.stringify(told));
