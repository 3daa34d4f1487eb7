// Calls LibreChat's own tools: reads one job per line of stdin, writes one line with what each gave.
// A job: {package, baseUrl, module, factory, params, args, toolCall, tools}. The tools that the code may call
// are made here: their results are in the job. The first job of a package sets its address.
const path = require("node:path");
const readline = require("node:readline");

console.debug = console.log = console.info = console.warn; // stdout is for the answers

const modules = process.argv[2];

function makeTools(tools) {
  const called = [];
  const map = new Map();
  for (const [name, results] of Object.entries(tools)) {
    map.set(name, {
      name,
      invoke: async (input) => {
        called.push([name, input]);
        const result = results[Object.values(input)[0] ?? ""] ?? results["*"];
        if (result?.raise) throw new Error(result.raise);
        return result;
      },
    });
  }
  return { map, called };
}

async function run(job) {
  const file = path.join(modules, job.package, "dist/cjs/tools", `${job.module}.cjs`);
  process.env.LIBRECHAT_CODE_BASEURL = job.baseUrl;
  const params = { ...job.params };
  if (job.headers) params.authHeaders = async () => job.headers;
  const { map, called } = makeTools(job.tools ?? {});
  const toolDefs = [...map.keys()].map((name) => ({ name, description: name, parameters: { type: "object" } }));
  try {
    const tool = require(file)[job.factory](params);
    const call = { id: "call_1", name: tool.name, args: job.args, type: "tool_call", ...job.toolCall };
    if (job.tools) Object.assign(call, { toolMap: map, toolDefs });
    const message = await tool.invoke(call);
    return { content: message.content, artifact: message.artifact, called };
  } catch (error) {
    return { error: error.message, called };
  }
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line.trim()) process.stdout.write(`${JSON.stringify(await run(JSON.parse(line)))}\n`);
  }
})();
