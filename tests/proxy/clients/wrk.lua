-- wrk ... URL -- KIND: posts without a key ("none"), with one of its own for each request ("unique"), or with one of a
-- hundred ("repeated"). Prints how many of the answers were not 201.
local kind, thread, count = "", 0, 0
local threads = {}

function setup(new)
  new:set("number", #threads)
  table.insert(threads, new)
end

function init(arguments)
  kind, thread, wrong = arguments[1], number, 0
  wrk.method = "POST"
  wrk.body = "cents=500"
end

function request()
  count = count + 1
  if kind == "unique" then wrk.headers["Idempotency-Key"] = thread .. "-" .. count end
  if kind == "repeated" then wrk.headers["Idempotency-Key"] = "r-" .. count % 100 end
  return wrk.format()
end

function response(status)
  if status ~= 201 then wrong = wrong + 1 end
end

function done(summary)
  local all = 0
  for _, each in ipairs(threads) do all = all + each:get("wrong") end
  print(string.format("answers %d, not 201: %d", summary.requests, all))
end
