// The rules of idempotent HTTP: which requests are protected, what their key is, which answers are stored, and the
// answer to a request that may not run. Pure: requests, decisions and records come in, answers come out.
// once/frontends/http/endpoint.hpp uses a store.
//
// Follows draft-ietf-httpapi-idempotency-key-header-07 (an expired draft, not an RFC). docs/http.md describes all of it
// for operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <once/engine/engine.hpp>
#include <once/frontends/http/message.hpp>
#include <once/frontends/http/principal.hpp>
#include <once/policy.hpp>
#include <once/record.hpp>

namespace once::http {

// Every replay has this header, with the value "true".
inline constexpr std::string_view replayed_header = "Idempotent-Replayed";

// What a service says of its answer: see Options::service_fate.
inline constexpr std::string_view fate_header = "Once-Fate";

// The longest key that a client may send. A longer one is 400 key-invalid.
inline constexpr std::size_t max_client_key_bytes = 255;

// What to do with the claim when the answer is there.
enum class Fate : std::uint8_t {
  store,      // Store the answer: every retry gets it.
  release,    // Nothing was done: a retry may run.
  ambiguous,  // Whether something was done is not known: see Options::on_ambiguous.
  hold,       // The same, and an operator decides, whatever Options::on_ambiguous says.
};

std::string_view to_string(Fate fate) noexcept;  // "store" …

// The rules of a service or of one of its routes.
struct Options {
  // Who the client is. There is no default: see once/frontends/http/principal.hpp. A request with a key but without a
  // principal is 400 principal-missing; 401 with `challenge`.
  Principal principal;

  bool protect = true;  // false: all requests pass through unprotected and unchanged.

  // Requests with other methods pass through unprotected and unchanged. In capitals: methods are case-sensitive (RFC
  // 9110, section 9.1). Servers differ, so one of these in another case ("patch", as a browser's fetch() may send it)
  // is 400 method-unclear.
  std::vector<std::string> methods{"POST", "PATCH"};

  // Names the operation: a key's namespace is scope, method, route and principal. No spaces, at most 128 bytes. Empty:
  // the path of the request, so "/orders/1/pay" and "/orders/2/pay" are two.
  std::string route = {};

  std::string scope = {};  // A prefix of all keys, at most 128 bytes. Empty: EngineOptions::scope.

  // Where the key is: in the header, a String of RFC 9651 ("quoted") or the bare key; or, if one of the others is set,
  // there instead. At most one of them may be set. Several headers, as "svix-id, webhook-id": in any of them.
  std::string key_header = "Idempotency-Key";
  std::string key_field = {};  // JMESPath over the body, which must be JSON; selects a string or a number. A key that
                               // it puts together, "join('-', [tenant, id])", is missing if a part is empty, unless
                               // allow_null_parts: see keys::Recipe.
  bool allow_null_parts = false;  // Of key_field.
  std::string key_query = {};     // The name of a parameter of the query.
  // "/orders/{key}/pay": this segment of the path. Other segments in braces may be anything.
  std::string key_path = {};
  // The name of a field of a form: application/x-www-form-urlencoded or multipart/form-data.
  std::string key_form = {};

  // Whether none of the others is set.
  [[nodiscard]] bool key_is_in_header() const noexcept {
    return key_field.empty() && key_query.empty() && key_path.empty() && key_form.empty();
  }

  // Which keys are accepted; others are 400 key-invalid. The pattern is a regular expression for the whole key, as
  // "[0-9a-f-]{36}", of at most 255 bytes: docs/http.md says which. Empty: any. The length is 1 to 255 characters.
  std::string key_pattern = {};
  std::size_t key_min_length = 1;  // In characters.

  // The WWW-Authenticate of a 401: "Bearer realm=\"pay\"". Empty: requests without a principal are 400, unless the
  // principal has its own challenge, as with a JWT.
  std::string challenge = {};

  // What a retry must have in common with the first request of its key. Otherwise 422. Always: method, route and path.
  // By default also the host (of the target or the header Host, without port, case-insensitive), the query, and the
  // body. A body of several parts (multipart/form-data and others) is compared by its parts, not by their boundary; a
  // compressed one (gzip, deflate, zstd) by its content, if that is not larger than max_body_bytes; all others, and
  // what is malformed, byte by byte.
  std::vector<std::string> fingerprint_headers = {};
  std::string fingerprint = {};  // JMESPath over the body, which must be JSON: only what it selects is compared.
  bool compare_json = false;     // Bodies that are JSON are compared by their meaning: blanks and order do not count.
  bool ignore_host = false;      // The host is not compared.
  bool ignore_query = false;     // The query is not compared.
  bool ignore_body = false;      // The body is not compared.

  std::size_t max_body_bytes = std::size_t{1024} * 1024;    // Of a request with a key. Longer: 413.
  std::size_t max_answer_bytes = std::size_t{1024} * 1024;  // Of an answer's body. Longer: a tombstone.

  // What to do with an operation that may have acted: its answer was 502, 503 or 504, its handler threw, or the process
  // died. hold: retries get 409 until an operator decides (`once resolve`). takeover: a retry reruns it when the lease
  // has lapsed. Overrides Policy::on_lapse.
  OnLapse on_ambiguous = OnLapse::hold;

  // What to do if the handler throws. EngineOptions::throw_rule decides first, by the exception's type. store: the 500
  // is stored and replayed. Empty: as `on_ambiguous`. Policy::on_throw is not used.
  std::optional<OnThrow> on_throw = {};

  // Overrides for single statuses, 100 to 599. Defaults:
  // - store: 2xx, 3xx, other 4xx, 500, 501, 505
  // - release: 401, 403, 407, 408, 409, 421, 425, 429
  // - ambiguous: all others, also 503, because proxies send it too for connections that broke after the request.
  // If your service's 503 means that nothing was done, set it to release.
  std::map<unsigned, Fate> fates = {};

  // For a proxy: the service says what becomes of its answer, with the header Once-Fate: complete, release or hold.
  // Another value, or a second header, means hold. No client gets this header.
  bool service_fate = false;
  // For a proxy: requests with a claim have Once-Attempt (from 1), Once-Token (the fencing token) and Once-Derived-Key
  // (the key to send on to a service downstream: the same for each attempt).
  bool send_claim = false;
  // For a proxy: requests with a claim have Once-Stored-Key and Once-Owner, both in hexadecimal digits. With them the
  // service may finish the record in a transaction of its own, by finish_or_raise() of PostgreSQL's schema: see
  // Execution::hand_out_to_service(). The store must have Capabilities::has_finish_function.
  bool service_finish = false;

  // For a proxy: content types, in addition to "text/event-stream", whose answers reach the client as they come:
  // "application/x-ndjson". Others are sent when they are stored. Servers ignore it.
  std::vector<std::string> stream_types = {};

  // For a proxy: origins of pages whose scripts may read the problems of this gateway (CORS), as
  // "https://shop.example". "*": any. Servers ignore it.
  std::vector<std::string> cors_origins = {};

  // Headers that are not stored, in addition to those that never are: see docs/http.md.
  std::vector<std::string> never_store = {};

  // Fields of the body that are left out of the record's input, as "card.number": see once/keys/input_filter.hpp. The
  // input is the body and nothing else, with Policy::keep_input: no header is kept.
  std::vector<std::string> input_without = {};

  // Empty members: the engine's. Default of on_missing_key: refuse (400). on_store_down: run_unprotected fails open.
  // Default of on_conflict: fail; wait holds duplicates of a running request until its answer is there. on_unrecorded:
  // fail is 503.
  std::optional<Policy> policy = {};

  // Retry-After of a conflict is the rest of the lease, but at most this, because most operations end long before. The
  // 503 of a failing store has exactly this. 1 s to 24 h, rounded up to whole seconds.
  Millis retry_after{5'000};

  // For a proxy: how long it waits for the head of the service's answer, 1 ms to 24 h. 0: proxy::Timeouts::answer.
  // Servers ignore it.
  Millis answer_timeout{0};

  // For a proxy: how long a client waits for the answer of a request with a claim, 1 ms to 24 h. Then it gets 409
  // in-progress and its connection ends. The work goes on, and its answer is stored. 0: as long as the proxy waits.
  // Servers ignore it.
  Millis client_timeout{0};

  // For a proxy: the request that asks the service what became of an unknown operation, "GET /charges?key={key}". {key}
  // is the client's key, percent-encoded. 200, 201, 203 and 204 mean that it took place, and become its stored answer.
  // Empty: it is not asked. Servers ignore it. docs/reconcile.md has more.
  std::string reconcile = {};
  // Answers to that which mean that the operation did not take place: 404, for example. There is no default, because a
  // balancer or a wrong path answers so too. Empty: no answer does. Only 4xx that do not mean something else.
  std::vector<unsigned> reconcile_not_done = {};
  // How long after the end of an attempt the service can still carry it out: such an answer counts only then. 0 to 30
  // days. Empty: the longest of lease, answer_timeout and 1 minute.
  std::optional<Millis> reconcile_settle = {};

  // Where docs/http.md is published: a URI without fragment, quotes or spaces. A problem's `type` is this, '#' and the
  // problem's name. Empty: "urn:once:problem:" and the name.
  std::string docs_url = {};

  friend bool operator==(const Options&, const Options&) = default;
};

// The problems (RFC 9457) that are the answers without a result. docs/http.md has a section for each.
enum class Problem : std::uint8_t {
  key_missing,         // 400
  key_invalid,         // 400
  keys_differ,         // 400
  body_unreadable,     // 400
  body_too_large,      // 413
  key_reused,          // 422
  in_progress,         // 409, Retry-After
  outcome_unknown,     // 409
  store_unavailable,   // 503, Retry-After
  record_unreadable,   // 500
  answer_not_kept,     // 410
  operation_failed,    // 500
  handler_failed,      // 500
  claim_lost,          // 409, Retry-After
  not_recorded,        // 503, Retry-After
  path_unclear,        // 400, of a Router
  method_unclear,      // 400
  principal_missing,   // 400; 401 with a challenge
  principal_invalid,   // 401
  principal_unstable,  // 400
  request_malformed,   // 400, of a handler that cannot parse the body
};

std::string_view to_string(Problem problem) noexcept;  // "key-missing" …
unsigned status_of(Problem problem) noexcept;          // Without a challenge.

// What the rules say about a request.
struct Examination {
  // Whether the request may run.
  enum class Kind : std::uint8_t {
    pass,       // Not one of the methods: runs unprotected.
    no_key,     // The optional key is missing: runs unprotected.
    refuse,     // `answer` says why. Do not run the request.
    operation,  // `operation` is the request for the engine. From examine_head(): read the body, then call examine().
  };
  Kind kind = Kind::refuse;                     // Says what the other members are.
  Answer answer = {};                           // refuse: what the client gets.
  std::optional<once::Request> operation = {};  // Set by examine() if `kind` is operation.
  bool is_json = false;  // operation: its Content-Type says JSON, and the body is not compressed.
};

// The rules for one route, or for many with the same options. Immutable: any number of threads may use it at once.
class Rules {
 public:
  // Throws Exception(misuse), which names the member, for invalid options.
  explicit Rules(Options options);
  Rules(Rules&&) noexcept;
  Rules& operator=(Rules&&) noexcept;
  ~Rules();

  // The whole check, for a request whose body was read.
  [[nodiscard]] Examination examine(const Request& request) const;

  // The checks that need no body: ignores `request.body`, and never sets an operation. examine() detects a body that is
  // longer than announced, so stop reading one byte above Options::max_body_bytes. examine() also finds a costly
  // principal.
  [[nodiscard]] Examination examine_head(const Request& request) const;

  [[nodiscard]] Fate fate_of(unsigned status) const noexcept;  // By Options::fates and their defaults.
  // The same, with Once-Fate if Options::service_fate is set.
  [[nodiscard]] Fate fate_of(const Answer& answer) const noexcept;

  // The target of Options::reconcile for a key. Empty: do not ask, as servers may read that target in another way.
  [[nodiscard]] std::string reconcile_target(std::string_view name) const;
  // Whether it is the key of an operation under these rules, whose clients all share their keys.
  [[nodiscard]] bool is_shared_key(const Key& key, std::string_view method, std::string_view route) const;

  // The answer for every Begin except a claim.
  [[nodiscard]] Answer answer_for(const Begin& begin) const;

  // The answer to a retry that finds a completed or failed record. A result that is not a stored answer (an operator's)
  // becomes the body of a 200.
  [[nodiscard]] Answer replay(const Record& record) const;
  // The same without the mark of a replay.
  [[nodiscard]] Answer answer_of(const Record& record) const;

  // Contains nothing of a request. `retry_after`: for problems that have one. 0: Options::retry_after.
  [[nodiscard]] Answer problem(Problem problem, Millis retry_after = Millis{0}) const;

  // The stored forms, with this route's limits.
  [[nodiscard]] Result encode(const Answer& answer) const;
  // Of an answer that is too large: status and headers without the body. `body_bytes`: 0 if not known.
  [[nodiscard]] Result encode_tombstone(const Answer& head, std::uint64_t body_bytes) const;

  [[nodiscard]] const Options& options() const noexcept;  // As given. Lives as long as the rules.

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace once::http
