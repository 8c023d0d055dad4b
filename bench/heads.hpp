// Costly heads of requests, and the cost of all work on one: for the benchmark and the fuzzer.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <once/frontends/http/router.hpp>
#include <once/frontends/http/rules.hpp>

#include "frontends/proxy/head.hpp"
#include "frontends/proxy/incoming.hpp"

namespace once::proxy {

// The work of a session on a head before its first wait. False: refused.
class HeadWork {
 public:
  bool run(std::string_view bytes) {
    const HeadScan scan = scan_head(bytes);
    if (scan.kind != HeadScan::Kind::complete) return false;
    if (read_request(bytes.substr(0, scan.bytes), message_, head_)) return false;
    request_.method = head_.method;
    request_.target = head_.target;
    request_.headers.assign(head_.headers.begin(), head_.headers.end());
    if (!router_.find(request_)) return false;
    if (has_look_alike(head_.headers, rules_.options())) return false;
    const auto examined = rules_.examine_head(request_);
    if (examined.kind == http::Examination::Kind::refuse) return false;
    const std::string_view websocket = websocket_key(head_);
    Framing framing;
    if (message_.chunked()) framing = {.kind = Framing::Kind::chunked};
    framing.trailers = joined(announced_trailers(head_.headers, &rules_.options()));
    const Arrival arrival{.address = "10.0.0.1", .tls = false, .takes_trailers = takes_trailers(head_.headers)};
    return !write_request_head(head_, framing, arrival).empty() || !websocket.empty();
  }

  // This thread's processor time per byte, the least of `times` runs.
  double ns_per_byte(std::string_view bytes, int times) {
    double least = 0;
    for (int i = 0; i < times; ++i) {
      const auto start = processor_time();
      run(bytes);
      const double took = std::chrono::duration<double, std::nano>(processor_time() - start).count();
      least = i == 0 ? took : std::min(least, took);
    }
    return least / static_cast<double>(bytes.size());
  }

 private:
  static std::chrono::nanoseconds processor_time() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  }
  static http::Options some_rules() {
    http::Options options{.principal = http::Principal::headers({"Authorization", "X-Tenant"})};
    options.fingerprint_headers = {"X-Version"};
    return options;
  }

  static http::Routes some_routes() {
    http::Routes routes(some_rules());
    routes.routes.push_back({.path = "/orders/{id}/pay", .options = some_rules()});
    routes.routes.push_back({.path = "/v1/*", .options = some_rules()});
    routes.routes.back().options.protect = false;
    return routes;
  }

  http::Router router_{some_routes()};
  http::Rules rules_{some_rules()};
  Incoming message_;
  RequestHead head_;
  http::Request request_;
};

// Each of about so many bytes, with its name.
inline std::vector<std::pair<std::string, std::string>> dear_heads(std::size_t bytes) {
  const auto fill = [](std::size_t room, std::string_view text) {
    std::string out;
    while (out.size() + text.size() <= room) out += text;
    return out;
  };
  const std::string start = "POST /orders/1/pay HTTP/1.1\r\nHost: a\r\n";
  const std::size_t room = bytes - start.size() - 64;
  std::vector<std::pair<std::string, std::string>> all;
  const auto add = [&](const std::string& name, const std::string& lines) {
    all.emplace_back(name, start + lines + "\r\n");
  };
  add("nothing but Host", "");
  for (const std::string list : {"Connection", "Trailer"}) {
    add(list + ", half names, half lines", list + ": b" + fill(room / 2, ",b") + "\r\n" + fill(room / 2, "a:\r\n"));
    // As many as are taken, and as long as they may be.
    const std::string name = ",x" + std::string(140, 'y');
    add(list + " up to the bounds",
        list + ": b" + fill(99 * name.size(), name) + "\r\n" +
            fill(std::min<std::size_t>(room - 99 * name.size(), 17 * 990), "xyyyyyyyyyyyyz:\r\n"));
  }
  add("short lines", fill(room, "a:\r\n"));
  add("1000 lines", fill(std::min<std::size_t>(room, 4 * 990), "a:\r\n"));
  add("names that are looked for, nearly", fill(room, "Content-Lengtx: 1\r\n"));
  add("X-Forwarded-For", fill(room, "X-Forwarded-For: 1\r\n"));
  add("keys", fill(room, "Idempotency-Key: k\r\n"));
  add("keys in one line", "Idempotency-Key: k" + fill(room, ",k") + "\r\n");
  add("TE", "TE: a" + fill(room, ",a") + "\r\n");
  add("principals", fill(room, "Authorization: b\r\n"));
  add("a long line", "X: " + fill(room, "x") + "\r\n");
  for (const std::string piece :
       {"/a", "/%2e%2e", "/..;a=%2f", "%252f", "//", "/a%2fb", "\\\\", "/%c0%af", ".json", "/+;", "%25"}) {
    all.emplace_back("path of " + piece, "POST /v1/" + fill(room, piece) + " HTTP/1.1\r\nHost: a\r\n\r\n");
    all.emplace_back("short path of " + piece, "POST /v1/" + fill(480, piece) + " HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  return all;
}

}  // namespace once::proxy
