-- wrk ... URL -- BODY KIND PREFIX COUNT: posts the body.
--   none       without a key
--   unique     with a key of its own for each request
--   repeated   with one of COUNT keys, in turn
-- Prints a line of JSON: answers, how many of them were not 201, seconds, and latencies in microseconds.
local threads = {}

function setup(thread)
  thread:set("number", #threads)
  table.insert(threads, thread)
end

function init(arguments)
  local body, kind, prefix, keys = arguments[1], arguments[2], arguments[3], tonumber(arguments[4])
  wrong = 0
  wrk.method = "POST"
  wrk.body = body
  wrk.headers["Content-Type"] = "application/json"
  if kind == "none" then
    local same = wrk.format()
    request = function() return same end
    return
  end
  wrk.headers["Idempotency-Key"] = "@"
  local before, after = wrk.format():match("^(.*: )@(.*)$")
  local count = 0
  request = function()
    count = count + 1
    local key = kind == "unique" and prefix .. number .. "-" .. count or prefix .. count % keys
    return before .. key .. after
  end
end

function response(status)
  if status ~= 201 then wrong = wrong + 1 end
end

function done(summary, latency)
  local all = 0
  for _, thread in ipairs(threads) do all = all + thread:get("wrong") end
  local errors = summary.errors
  print(string.format(
    '{"answers":%d,"wrong":%d,"errors":%d,"seconds":%f,"p50_us":%d,"p99_us":%d}', summary.requests, all,
    errors.connect + errors.read + errors.write + errors.timeout, summary.duration / 1e6, latency:percentile(50),
    latency:percentile(99)))
end
